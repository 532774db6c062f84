"""Tensors as flat contiguous memory; dtypes and reductions by their numbers in the C library."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import ReduceOp

TYPES = {
    torch.int8: 0,
    torch.uint8: 1,
    torch.int32: 2,
    torch.int64: 3,
    torch.float16: 4,
    torch.bfloat16: 5,
    torch.float32: 6,
    torch.float64: 7,
}
"""torch dtype -> enum fcl_type (dpdk_ext/lab/fcl_reduce.h)."""

REDUCTIONS = {"sum": 0, "avg": 1, "min": 2, "max": 3, "prod": 4}
"""Reduction -> enum fcl_reduction (dpdk_ext/lab/fcl_reduce.h)."""

_BY_OPERATION = (
    (ReduceOp.SUM, "sum"),
    (ReduceOp.AVG, "avg"),
    (ReduceOp.MIN, "min"),
    (ReduceOp.MAX, "max"),
    (ReduceOp.PRODUCT, "prod"),
)


def reduction_of(op: Any, dtype: torch.dtype) -> int:
    """enum fcl_reduction of a torch ReduceOp. Raises ValueError for one that NCCL does not have."""
    for known, name in _BY_OPERATION:
        if op == known:
            # As ProcessGroupNCCL: the bytes of bools are 0 and 1, a sum of them is an "or".
            if dtype == torch.bool:
                name = {"sum": "max", "prod": "min"}.get(name, name)  # noqa: PLW2901
            return REDUCTIONS[name]
    raise ValueError(f"the lab's RoCE backend has no reduction {op} for {dtype}")


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """A flat view [numel] in memory order. Raises ValueError for a tensor that is not dense, or not
    on the CPU."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise ValueError(
            f"the RoCE backend moves dense CPU tensors, not {tensor.layout} on {tensor.device}"
        )
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.numel() == 0:
        return tensor.detach().reshape(0)
    strides = [s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1]
    if span != tensor.numel() or len(set(strides)) != len(strides):
        raise ValueError("tensors must be contiguous")
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's memory as uint8 [bytes]: data that is only moved, NCCL moves as bytes."""
    return dense(tensor).view(torch.uint8)


def as_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's memory in a dtype that the library reduces: bool as uint8, complex as pairs.

    Raises ValueError for a dtype that NCCL does not reduce.
    """
    flat = dense(tensor)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    if flat.dtype == torch.bool:
        flat = flat.view(torch.uint8)
    if flat.dtype not in TYPES:
        raise ValueError(f"the lab's RoCE backend does not reduce {tensor.dtype}")
    return flat
