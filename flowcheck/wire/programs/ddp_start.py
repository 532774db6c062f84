"""How DistributedDataParallel starts up: parameter count, shapes, initial weights.

Sources: torch/csrc/distributed/c10d/reducer.cpp (verify_params_across_processes),
torch/nn/parallel/distributed.py (_sync_module_states).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.ddp_startup import ddp_messages
from flowcheck.wire.ddp_startup.ddp_messages import ParsedShapes
from flowcheck.wire.programs.expectation import Came, Content, Expect

COUNT, SHAPES, WEIGHTS = "parameter count", "parameter shapes", "initial weights"
COUNT_BYTES = 8
COUNTED_BY = (CollectiveKind.ALL_GATHER, CollectiveKind.ALL_GATHER_V)
"""The list form of all_gather is one call of NCCL in torch's older backend
(torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, allgather), and in nccl2, torch's own choice from
2.15 on, a broadcast of each rank, grouped (c10d/nccl2/ProcessGroupNCCL.cpp, all_gather)."""
DIMENSIONS_MAX = 64
"""Of a parameter, which is told with a size and a stride for each. A choice: torch's kernels for
GPUs take 25 (ATen/cuda/detail/OffsetCalculator.cuh, MAX_DIMS); more lets the start of the weights
be looked at for shapes."""
ELEMENT_BYTES = (4, 2, 8)
"""Of the types that parameters have, the likeliest first. Gradients of one byte an element are none
that NCCL would sum for torch (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp refuses float8)."""


@dataclass(frozen=True, slots=True)
class Model:
    """The parameters, all of elements of one size."""

    shapes: ParsedShapes
    element_bytes: int

    @property
    def parameters(self) -> int:
        return len(self.shapes.shapes)

    def bytes_of(self, parameters: Sequence[int], element_bytes: int) -> int:
        """Of some parameters, if their elements have so many bytes."""
        counts = self.shapes.counts
        return sum(counts[i] for i in parameters) * element_bytes


def start_up() -> Generator[tuple[Expect, ...], Came, tuple[Model, int]]:
    """(the model, bytes of its weights that the first broadcast did not hold)."""
    came = yield tuple(map(_count, COUNTED_BY))
    assert came.content is not None
    count = ddp_messages.parse_parameter_count(came.content)
    assert count is not None
    came = yield (_shapes(count),)
    assert came.content is not None
    cuts = _cuts(came.content, count)
    # The sizes tell most: where all is of one type, and no buffers follow, one is just as large.
    # While it is on its way the first one that fits is taken: of a large model its first piece.
    whole = [cuts[0].elements * each for each in ELEMENT_BYTES]
    pieces = [first_piece(cut, each) for cut in cuts for each in ELEMENT_BYTES]
    exact = [one or other for one, other in zip(pieces, whole, strict=False)] + whole + pieces
    sizes = [size for size in dict.fromkeys(exact) if size]
    came = yield (*(weights(size) for size in sizes), weights(0))
    return _model(cuts, came)


def weights(size: int) -> Expect:
    """A broadcast of so many bytes of weights, and of buffers behind them; 0: of any number."""
    return Expect(kind=CollectiveKind.BROADCAST, meaning=WEIGHTS, work_bytes=size)


def first_piece(shapes: ParsedShapes, element_bytes: int) -> int:
    """Bytes of the first of several broadcasts of weights; 0: one holds all of them."""
    sizes = [count * element_bytes for count in shapes.counts]
    first, *more = ddp_messages.weight_broadcasts(sizes)
    return first[1] if more else 0


def _count(kind: CollectiveKind) -> Expect:
    return Expect(
        kind=kind,
        meaning=COUNT,
        work_bytes=COUNT_BYTES,
        holds=lambda content, ranks: ddp_messages.parse_parameter_count(content) is not None,
    )


def _shapes(count: int) -> Expect:
    def ends(content: Content, slack_bytes: int) -> Sequence[int]:
        if slack_bytes < 8:  # Sizes and strides are words of 8 bytes: there is no other.
            return (len(content),)
        return ddp_messages.shapes_ends(content, count, slack_bytes)

    return Expect(
        kind=CollectiveKind.BROADCAST,
        meaning=SHAPES,
        most_bytes=count * DIMENSIONS_MAX * 2 * 8,
        holds=lambda content, ranks: bool(_cuts(content, count)),
        ends=ends,
    )


def _cuts(content: Content, count: int) -> tuple[ParsedShapes, ...]:
    values = ddp_messages.parse_shape_values(content)
    return () if values is None else ddp_messages.parse_shapes(values, count)


def _model(cuts: Sequence[ParsedShapes], came: Came) -> tuple[Model, int]:
    """By the first broadcast of weights: of the ways to cut the shapes one that it holds without
    anything left over is the likelier."""
    fits = [
        (shapes.cost, fit.buffer_bytes > 0, place, fit.element_bytes)
        for place, shapes in enumerate(cuts)
        for fit in ddp_messages.weights_fits(
            shapes.elements, came.work_bytes, slack_bytes=came.slack_bytes
        )[:1]
    ]
    if all(buffers for _, buffers, _, _ in fits):
        for shapes in cuts:
            for each in ELEMENT_BYTES:
                if first_piece(shapes, each) == came.work_bytes:
                    return Model(shapes, each), shapes.elements * each - came.work_bytes
    if not fits:
        return Model(cuts[0], 0), 0
    *_, place, each = min(fits)
    return Model(cuts[place], each), 0
