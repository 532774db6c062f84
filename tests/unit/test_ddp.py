"""DDP's start-up messages, shapes and buckets, judged by torch itself."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest

from flowcheck.wire.ddp_startup.ddp_messages import (
    parse_bucket_indices,
    parse_bucket_sizes,
    parse_parameter_count,
    parse_shape_values,
)
from flowcheck.wire.ddp_startup.parameter_shapes import SCALAR, Shape, parse_shapes, shape_cost
from flowcheck.wire.training_job.gradient_buckets import (
    BucketLayout,
    assign_buckets,
    find_unused_buckets,
    first_buckets,
    rebuilt_buckets,
)
from flowcheck.wire.training_job.learned_job import Parameter

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    import torch.distributed as dist


DTYPES = (torch.float32, torch.float16, torch.float64)


def message(values: list[int], kind: str) -> Any:
    return np.frombuffer(np.array(values, kind).tobytes(), np.uint8)


def metadata(tensors: list[torch.Tensor]) -> list[int]:
    """What verify_params_across_processes sends: every tensor's sizes, then its strides."""
    return [value for t in tensors for value in (*t.size(), *t.stride())]


def shapes_of(tensors: list[torch.Tensor]) -> tuple[Shape, ...]:
    return tuple((tuple(t.size()), tuple(t.stride())) for t in tensors)


def parameters_of(tensors: list[torch.Tensor]) -> list[Parameter]:
    return [
        Parameter(
            sizes=tuple(t.size()),
            strides=tuple(t.stride()),
            element_bytes=t.element_size(),
            dtype=str(t.dtype).removeprefix("torch."),
        )
        for t in tensors
    ]


def torch_buckets(
    tensors: list[torch.Tensor], caps: list[int], order: list[int] | None = None
) -> tuple[tuple[int, ...], ...]:
    came = tensors if order is None else [tensors[index] for index in order]
    found, _ = dist._compute_bucket_assignment_by_size(came, caps, [False] * len(came), order or [])
    return tuple(map(tuple, found))


def conv_net(memory_format: torch.memory_format) -> list[torch.Tensor]:
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 7, bias=False),
        torch.nn.BatchNorm2d(64),
        torch.nn.Conv2d(64, 64, 1),
        torch.nn.Conv2d(64, 1, 3),
        torch.nn.Conv2d(1, 8, 1),
        torch.nn.Conv3d(2, 4, 3),
        torch.nn.Linear(512, 1),
        torch.nn.Linear(1, 1),
    )
    return [
        p.detach().contiguous(memory_format=memory_format) if p.dim() == 4 else p.detach()
        for p in net.parameters()
    ]


def transformer() -> list[torch.Tensor]:
    layer = torch.nn.TransformerEncoderLayer(64, 4, 256)
    return [torch.empty(1, 1, 64), torch.empty(1, 17, 64), *layer.parameters()]


def test_captured_start_up_messages_of_a_linear_model() -> None:
    assert parse_parameter_count(message([1], "<i8")) == 1
    values = parse_shape_values(message([1, 5000, 5000, 1], "<i8"))
    assert values == (1, 5000, 5000, 1)
    (cut,) = parse_shapes(values, 1)
    assert (cut.shapes, cut.cost, cut.elements) == ((((1, 5000), (5000, 1)),), 0, 5000)
    assert parse_bucket_indices(message([0, 1], "<i4"), 1) == ((0,), 1)
    assert parse_bucket_sizes(message([1, 0], "<i4"), 1, 1) == (1,)


@pytest.mark.parametrize(
    "tensors",
    [
        conv_net(torch.contiguous_format),
        conv_net(torch.channels_last),
        transformer(),
        transformer() * 12,
        [torch.empty(5)] * 40,
    ],
    ids=["contiguous", "channels-last", "transformer", "deep", "vectors"],
)
def test_shapes_of_usual_models_end_where_they_should_once_the_elements_are_known(
    tensors: list[torch.Tensor],
) -> None:
    counts = tuple(t.numel() for t in tensors)
    cuts = parse_shapes(metadata(tensors), len(tensors), elements=sum(counts))
    assert cuts[0].counts == counts
    assert shapes_of(tensors) in [cut.shapes for cut in cuts]
    assert [cut.cost for cut in cuts] == sorted(cut.cost for cut in cuts)


def test_without_the_number_of_elements_a_transformer_is_still_cut_right() -> None:
    tensors = transformer() * 12
    cuts = parse_shapes(metadata(tensors), len(tensors))
    assert cuts[0].shapes == shapes_of(tensors)
    assert len({cut.counts for cut in cuts}) > 1, "others fit too, and are reported"


def test_a_model_of_thousands_of_parameters_is_cut_in_reasonable_time() -> None:
    tensors = transformer() * 150
    elements = sum(t.numel() for t in tensors)
    best, *_ = parse_shapes(metadata(tensors), len(tensors), elements=elements, most=2)
    assert best.shapes == shapes_of(tensors)


@pytest.mark.parametrize("seed", range(20))
def test_random_dense_tensors_are_among_the_cuts(seed: int) -> None:
    dice = random.Random(seed)
    tensors = []
    for _ in range(dice.randint(1, 6)):
        sizes = [dice.choice([1, 2, 3, 5, 8, 64]) for _ in range(dice.randint(1, 5))]
        axes = dice.sample(range(len(sizes)), len(sizes))
        tensors.append(torch.empty(sizes).permute(axes))
    elements = sum(t.numel() for t in tensors)
    cuts = parse_shapes(metadata(tensors), len(tensors), elements=elements, most=4000)
    assert shapes_of(tensors) in [cut.shapes for cut in cuts]
    assert {cut.elements for cut in cuts} == {elements}


def test_a_scalar_leaves_no_values_and_so_several_places() -> None:
    tensors = [torch.empty(4, 3), torch.empty(()), torch.empty(4)]
    cuts = parse_shapes(metadata(tensors), 3)
    assert shapes_of(tensors) in [cut.shapes for cut in cuts]
    assert len(cuts) == 3
    assert all(SCALAR in cut.shapes for cut in cuts)


def test_values_that_are_no_dense_tensors_fit_nothing() -> None:
    assert parse_shapes([3, 4, 5, 6], 1) == ()
    assert parse_shapes([5, 1], 7) == ()
    assert shape_cost([4, 4], [8, 1]) is None
    costs = [shape_cost([3, 1, 2], strides) for strides in ([2, 2, 1], [1, 3, 3], [1, 77, 3])]
    assert None not in costs
    assert costs[0] == 0
    assert costs == sorted(set(costs)), "contiguous, then permuted, then odd"
    assert shape_cost([4, 4], [1, 1]) is None


@pytest.mark.parametrize("seed", range(30))
def test_bucket_assignment_equals_torchs(seed: int) -> None:
    dice = random.Random(seed)
    tensors = [
        torch.empty(dice.choice([1, 100, 512, 1024, 262_144, 300_000]), dtype=dice.choice(DTYPES))
        for _ in range(dice.randint(1, 60))
    ]
    caps = [dice.choice([1, 4096, 1 << 20]) for _ in range(dice.randint(1, 3))]
    sizes, groups = [t.nbytes for t in tensors], [t.dtype for t in tensors]
    assert assign_buckets(sizes, caps, groups=groups) == torch_buckets(tensors, caps)
    order = dice.sample(range(len(tensors)), len(tensors))
    found = assign_buckets(sizes, caps, groups=groups, order=order)
    assert found == torch_buckets(tensors, caps, order)


def test_default_plans_of_a_model_equal_torchs() -> None:
    tensors = [*conv_net(torch.channels_last), *[torch.empty(700_000)] * 30]
    parameters, caps = parameters_of(tensors), [1 << 20, 25 << 20]
    backwards = list(range(len(tensors)))[::-1]
    assert rebuilt_buckets(parameters) == torch_buckets(tensors, caps, backwards)
    assert find_unused_buckets(parameters) == torch_buckets(tensors, caps)[::-1]
    assert first_buckets(parameters) == torch_buckets(tensors, [2**63 - 1])[::-1]


def test_mixed_dtypes_start_in_one_bucket_each() -> None:
    tensors = [torch.empty(3, dtype=dtype) for dtype in DTYPES * 2]
    assert first_buckets(parameters_of(tensors)) == ((2, 5), (1, 4), (0, 3))


@pytest.mark.parametrize("seed", range(10))
def test_bucket_bytes_land_where_torch_flattens_the_parameters(seed: int) -> None:
    dice = random.Random(seed)
    tensors = [torch.arange(dice.choice([0, 1, 5, 300])) + 1000 * i for i in range(12)]
    parameters = parameters_of(tensors)
    state = torch.cat(tensors).numpy().view(np.uint8)
    for bucket in ([2, 3, 4, 11, 0], list(range(12)), [7], dice.sample(range(12), 12)):
        flat = torch.cat([tensors[index] for index in bucket]).numpy().view(np.uint8)
        layout = BucketLayout(parameters, bucket)
        assert layout.size_bytes == len(flat)
        start = dice.randint(0, len(flat))
        stop = dice.randint(start, len(flat))
        pieces = layout.pieces(start, stop - start)
        assert sum(piece.size_bytes for piece in pieces) == stop - start
        for piece in pieces:
            seen = flat[piece.bucket_byte : piece.bucket_byte + piece.size_bytes]
            assert (state[piece.state_byte : piece.state_byte + piece.size_bytes] == seen).all()
