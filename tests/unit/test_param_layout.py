"""Layout: parameters back to back in registration order, bytes in memory order."""

import numpy as np
import pytest
import torch
from support.refused_as import refused_as

from flowcheck.findings.catalog.parameter_layouts import (
    NAME_COUNT,
    NEGATIVE_SIZE,
    NO_PARAMETERS,
    NOT_DENSE,
    SAME_NAME,
    STRIDE_COUNT,
    UNKNOWN_DTYPE,
)
from flowcheck.replica.param_layout import Layout, contiguous_stride, is_contiguous


def test_parameters_lie_back_to_back_in_registration_order_without_padding():
    layout = Layout.of_shapes([(3, 5), (1,), (7,)])
    assert [(p.name, p.start, p.stop) for p in layout.parameters] == [
        ("param.0", 0, 15),
        ("param.1", 15, 16),
        ("param.2", 16, 23),
    ]
    assert (layout.elements, layout.size_bytes) == (23, 92)


@pytest.mark.parametrize("shape", [(), (1,), (4, 3), (2, 3, 4, 5), (1, 7, 1)])
def test_contiguous_strides_are_those_of_torch(shape):
    assert contiguous_stride(shape) == torch.empty(shape).stride()
    assert is_contiguous(shape, torch.empty(shape).stride())


def test_channels_last_weights_go_from_index_order_to_memory_order_as_torch_stores_them():
    weight = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)
    stored = weight.contiguous(memory_format=torch.channels_last)
    layout = Layout.of([((2,), (1,)), (tuple(stored.shape), stored.stride())])
    logical = np.concatenate([[7.0, 8.0], weight.reshape(-1).numpy()]).astype(np.float32)
    memory = torch.as_strided(stored, (stored.numel(),), (1,)).numpy()
    assert layout.memory_order(logical).tolist() == [7.0, 8.0, *memory.tolist()]


def test_contiguous_weights_are_not_copied():
    logical = np.zeros(6, np.float32)
    assert Layout.of_shapes([(2, 3)]).memory_order(logical) is logical


@pytest.mark.parametrize(
    ("sizes", "strides"),
    [((2, 3), (4, 1)), ((2, 3), (1, 1)), ((2, 3), (0, 1)), ((2, 3), (3,)), ((-1,), (1,))],
)
def test_a_tensor_with_holes_or_overlaps_is_refused(sizes, strides):
    with refused_as(NOT_DENSE, STRIDE_COUNT, NEGATIVE_SIZE, name="param.0"):
        Layout.of([(sizes, strides)])


def test_the_stride_of_a_dimension_of_size_one_says_nothing():
    assert Layout.of([((1, 3), (999, 1))]).elements == 3


def test_names_and_dtype_that_do_not_fit_are_refused():
    with refused_as(NAME_COUNT, names=2, parameters=1):
        Layout.of_shapes([(1,)], names=["a", "b"])
    with refused_as(SAME_NAME):
        Layout.of_shapes([(1,), (1,)], names=["a", "a"])
    with refused_as(UNKNOWN_DTYPE, dtype="'int8'"):
        Layout.of_shapes([(1,)], dtype="int8")
    with refused_as(NO_PARAMETERS):
        Layout.of_shapes([])


def test_bfloat16_counts_two_bytes():
    assert Layout.of_shapes([(5,)], dtype="bfloat16").size_bytes == 10
