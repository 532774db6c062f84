"""What DistributedDataParallel sends besides gradients: parameter count, shapes, initial
weights, bucket plan.

At start-up the ranks compare parameter counts and shapes, then rank 0 sends its weights; at the
second forward rank 0 sends the bucket plan that holds from then on. parameter_shapes.py
cuts the shapes; training_job/gradient_buckets.py tells which bucket holds which parameter.

Sources: torch/csrc/distributed/c10d/reducer.cpp (verify_params_across_processes,
Reducer::sync_bucket_indices), torch/nn/parallel/distributed.py (_sync_module_states).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from flowcheck.wire.collectives.nccl_parameters import LL_LINE_DATA_BYTES
from flowcheck.wire.ddp_startup.parameter_shapes import (
    ParsedShapes,
    Shape,
    parse_shapes,
    scalars_at_ends,
)
from flowcheck.wire.training_job.gradient_buckets import (
    BROADCAST_CAP_BYTES,
    BucketLayout,
    BucketPiece,
    Buckets,
    assign_buckets,
    find_unused_buckets,
    first_buckets,
    rebuilt_buckets,
)

__all__ = [
    "BucketLayout",
    "BucketPiece",
    "Buckets",
    "ParsedShapes",
    "Shape",
    "WeightsFit",
    "assign_buckets",
    "buckets_of",
    "find_unused_buckets",
    "first_buckets",
    "parse_bucket_indices",
    "parse_bucket_sizes",
    "parse_parameter_count",
    "parse_shape_values",
    "parse_shapes",
    "rebuilt_buckets",
    "shapes_ends",
    "weight_broadcasts",
    "weights_fits",
]

MOST_PARAMETERS = 10_000_000
"""Parameter tensors of a model. A choice: above every model; stops other numbers from being taken
for a count."""
_LINE_SLACK_BYTES = LL_LINE_DATA_BYTES - 1
"""The wire may show up to so many more than were meant."""


def parse_parameter_count(message: NDArray[np.uint8]) -> int | None:
    """The number of parameters, from one rank's int64 of the first all-gather; None if the
    bytes are no such number."""
    if len(message) != 8:
        return None
    count = int(np.frombuffer(message.tobytes(), "<i8")[0])
    return count if 0 < count <= MOST_PARAMETERS else None


def parse_shape_values(message: NDArray[np.uint8]) -> tuple[int, ...] | None:
    """Sizes and strides of all parameters as sent, for `parse_shapes`; None if the bytes are no
    list of small positive int64."""
    if not len(message) or len(message) % 16:
        return None
    values = np.frombuffer(message.tobytes(), "<i8")
    return tuple(values.tolist()) if ((values >= 0) & (values < 1 << 48)).all() else None


def shapes_ends(message: NDArray[np.uint8], parameters: int, slack_bytes: int) -> tuple[int, ...]:
    """[1] bytes of `message` that are the shapes, where up to `slack_bytes` at its end may be
    anything; () where none fits or several do: then nothing tells which."""
    values = np.frombuffer(message[: len(message) // 16 * 16].tobytes(), "<i8")
    # A dense parameter has no size and no stride of zero.
    bad = np.flatnonzero((values <= 0) | (values >= 1 << 48))
    most = int(bad[0]) if len(bad) else len(values)
    least = max(2, -(-max(0, len(message) - slack_bytes) // 8))
    ends = scalars_at_ends(values[:most].tolist(), parameters)
    fits = {8 * stop: scalars for stop, scalars in ends.items() if stop >= least}
    # Parameters left out at the end would be scalars beside those that there are.
    fewest = min(fits.values(), default=0)
    likely = [end for end, scalars in fits.items() if scalars == fewest]
    return tuple(likely) if len(likely) == 1 else ()


def parse_bucket_indices(
    message: NDArray[np.uint8], parameters: int
) -> tuple[tuple[int, ...], int] | None:
    """(parameter indices in bucket order, number of buckets) from the first broadcast of the
    second forward; None if it is no permutation followed by a count."""
    values = _int32(message, parameters + 1)
    if values is None:
        return None
    *order, buckets = values
    return (
        (tuple(order), buckets)
        if sorted(order) == list(range(parameters)) and (0 < buckets <= parameters)
        else None
    )


def parse_bucket_sizes(
    message: NDArray[np.uint8], buckets: int, parameters: int
) -> tuple[int, ...] | None:
    """Parameters per bucket from the second broadcast; None if they do not add up."""
    values = _int32(message, buckets)
    if values is None or min(values) < 1 or sum(values) != parameters:
        return None
    return tuple(values)


def buckets_of(order: Sequence[int], sizes: Sequence[int]) -> Buckets:
    """The bucket plan those two messages state. Raises ValueError if they disagree."""
    if sum(sizes) != len(order):
        raise ValueError(f"bucket sizes add up to {sum(sizes)}, not to {len(order)} parameters")
    starts = [sum(sizes[:bucket]) for bucket in range(len(sizes))]
    return tuple(
        tuple(order[start : start + size]) for start, size in zip(starts, sizes, strict=True)
    )


def weight_broadcasts(
    sizes_bytes: Sequence[int], groups: Sequence[Hashable] | None = None
) -> tuple[tuple[tuple[int, ...], int], ...]:
    """(tensor indices, bytes) of each start-up broadcast: parameters, then buffers, flattened
    per dtype in pieces that are closed once they reach 250 MiB."""
    return _broadcasts(tuple(sizes_bytes), None if groups is None else tuple(groups))


@lru_cache(maxsize=64)
def _broadcasts(
    sizes_bytes: tuple[int, ...], groups: tuple[Hashable, ...] | None
) -> tuple[tuple[tuple[int, ...], int], ...]:
    pieces = assign_buckets(sizes_bytes, [BROADCAST_CAP_BYTES], groups=groups)
    return tuple((piece, sum(sizes_bytes[index] for index in piece)) for piece in pieces)


@dataclass(frozen=True, slots=True)
class WeightsFit:
    """How `elements` parameters fill the start-up broadcasts."""

    element_bytes: int
    buffer_bytes: int
    """What follows the parameters: the module's buffers of the same dtype, line slack aside."""


def weights_fits(
    elements: int, broadcast_bytes: int, *, slack_bytes: int = _LINE_SLACK_BYTES
) -> tuple[WeightsFit, ...]:
    """Element sizes that let all parameters fit the broadcast, those without buffers first, then
    the larger elements, which leave fewer bytes to buffers that nothing else speaks for. No
    gradient is of one byte an element: what holds all parameters only then is a part of them."""
    fits: list[WeightsFit] = []
    for element_bytes in (8, 4, 2):
        rest = broadcast_bytes - elements * element_bytes
        if rest >= 0:
            fits.append(WeightsFit(element_bytes, rest if rest > slack_bytes else 0))
    return tuple(sorted(fits, key=lambda fit: fit.buffer_bytes > 0))


def _int32(message: NDArray[np.uint8], length: int) -> list[int] | None:
    """`length` int32; the last line may hold one word that was not meant."""
    meant = 4 * length
    if length < 1 or not meant <= len(message) <= meant + _LINE_SLACK_BYTES:
        return None
    values: list[int] = np.frombuffer(message.tobytes()[:meant], "<i4").tolist()
    return values
