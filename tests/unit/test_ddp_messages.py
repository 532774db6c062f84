"""What DDP's own messages tell, and what is refused of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flowcheck.wire.ddp_startup.ddp_messages import (
    buckets_of,
    parse_bucket_indices,
    parse_bucket_sizes,
    parse_parameter_count,
    parse_shape_values,
    shapes_ends,
    weight_broadcasts,
    weights_fits,
)
from flowcheck.wire.training_job.gradient_buckets import BucketLayout
from flowcheck.wire.training_job.learned_job import Parameter


def message(values: list[int], kind: str) -> Any:
    return np.frombuffer(np.array(values, kind).tobytes(), np.uint8)


def test_bucket_messages_give_the_plan_with_and_without_line_padding() -> None:
    order, sizes = [3, 2, 4, 0, 1], [2, 3]
    for padding in ([], [77]):
        found = parse_bucket_indices(message([*order, 2, *padding], "<i4"), 5)
        assert found == (tuple(order), 2)
        assert parse_bucket_sizes(message([*sizes, *padding], "<i4"), 2, 5) == (2, 3)
    assert buckets_of(order, sizes) == ((3, 2), (4, 0, 1))


@pytest.mark.parametrize("wrong", [[0, 0, 1], [0, 1, 0], [0, 1, 3], [0, 1], [0, 1, 1, 1, 1]])
def test_messages_that_are_no_bucket_indices_are_refused(wrong: list[int]) -> None:
    assert parse_bucket_indices(message(wrong, "<i4"), 2) is None


def test_other_messages_that_are_not_what_they_should_be_are_refused() -> None:
    assert parse_bucket_sizes(message([1, 3], "<i4"), 2, 5) is None
    assert parse_bucket_sizes(message([5, 0], "<i4"), 2, 5) is None
    assert parse_parameter_count(message([0], "<i8")) is None
    assert parse_parameter_count(message([1, 1], "<i8")) is None
    assert parse_shape_values(message([1, -1], "<i8")) is None
    with pytest.raises(ValueError, match="add up to 4"):
        buckets_of([0, 1, 2], [2, 2])


def test_weight_broadcasts_are_cut_per_dtype_at_250_mib() -> None:
    quarter = 100 << 20
    pieces = weight_broadcasts([quarter] * 4 + [8], groups=["f"] * 4 + ["i"])
    assert pieces == (((0, 1, 2), 3 * quarter), ((3,), quarter), ((4,), 8))


def test_element_size_follows_from_the_weights_unless_buffers_ride_along() -> None:
    best, *others = weights_fits(5000, 20_000)
    assert (best.element_bytes, best.buffer_bytes) == (4, 0)
    assert [fit.element_bytes for fit in others] == [2]
    assert weights_fits(5000, 20_256)[0].buffer_bytes == 256
    assert weights_fits(5001, 10_008)[0].element_bytes == 2


def test_neighbours_in_the_state_are_one_piece_and_ranges_outside_are_refused() -> None:
    parameters = [Parameter(sizes=(n,), strides=(1,)) for n in (3, 4, 5)]
    layout = BucketLayout(parameters, [1, 2, 0])
    assert [(p.state_byte, p.size_bytes) for p in layout.pieces(0, 48)] == [(12, 36), (0, 12)]
    with pytest.raises(ValueError, match="of a bucket of 48"):
        layout.pieces(40, 9)


def sent_shapes(model: torch.nn.Module) -> list[int]:
    """As torch's reducer sends them: sizes and strides of each parameter."""
    return [n for p in model.parameters() for n in (*p.shape, *p.stride())]


@pytest.mark.parametrize("tail", [[], [0], [-1, 5], [1 << 50], [0, 0, 0, 64, 1]])
def test_the_end_of_the_shapes_is_found_before_anything_that_is_no_shape(tail: list[int]) -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Linear(40, 10)
    )
    values, count = sent_shapes(model), len(list(model.parameters()))
    found = shapes_ends(message([*values, *tail], "<i8"), count, 120 * 8)
    assert found == (len(values) * 8,)
    assert shapes_ends(message([*values, *tail], "<i8"), count + 30, 120 * 8) == ()


def test_shapes_of_a_model_with_scalars_end_where_fewest_parameters_are_scalars() -> None:
    """Two vectors and a scalar; a third vector behind them would need no scalar."""
    values = [7, 1, 9, 1]
    assert shapes_ends(message([*values, 0], "<i8"), 3, 960) == (32,)
    assert shapes_ends(message([*values, 5, 1], "<i8"), 3, 960) == (48,)


def test_the_end_of_long_lists_costs_one_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    from flowcheck.wire.ddp_startup import parameter_shapes

    seen = 0
    cost = parameter_shapes.shape_cost

    def counted(sizes: Any, strides: Any) -> int | None:
        nonlocal seen
        seen += 1
        return cost(sizes, strides)

    monkeypatch.setattr(parameter_shapes, "shape_cost", counted)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 24)
    values = sent_shapes(layer) * 40
    count = 40 * len(list(layer.parameters()))
    assert shapes_ends(message([*values, 0], "<i8"), count, 120 * 8) == (len(values) * 8,)
    assert seen <= len(values) // 2 * parameter_shapes.MOST_DIMENSIONS
