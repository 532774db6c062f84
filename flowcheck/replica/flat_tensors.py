"""Flat memory as torch tensors: caller's bytes as elements, parameters with the trainer's
strides, gradients as they were reduced."""

from __future__ import annotations

import ctypes

import numpy as np
import torch

from flowcheck.errors import StateError
from flowcheck.findings.catalog.parameter_layouts import BYTE_COUNT, GRADIENT_BYTES
from flowcheck.replica.param_layout import SEVERAL_DTYPES, FlatParameter, Layout

FlatValues = np.ndarray | bytes | bytearray | memoryview
"""Raw bytes of a flat tensor, or an array of its elements: registration order, memory order."""


def elements_of(values: FlatValues, layout: Layout, what: str) -> np.ndarray:
    """`values` as [layout.elements] over the same memory; copied only if it is misaligned.

    The array claims to be writable, for torch knows no other kind; nothing here writes to it, and
    it is good only as long as the caller's own `values`.
    """
    source = values if isinstance(values, np.ndarray) else np.frombuffer(values, np.uint8)
    if not source.flags.c_contiguous:
        source = np.ascontiguousarray(source)
    if source.nbytes != layout.size_bytes:
        own = {"elements": layout.elements, "dtype": layout.dtype}
        sizes = {"bytes": source.nbytes, "expected": layout.size_bytes}
        raise StateError(BYTE_COUNT(what=what, **sizes, **own))
    if source.ctypes.data % layout.element_bytes:
        source = source.copy()
    if source.flags.writeable or not source.nbytes:
        return source.reshape(-1).view(layout.numpy_dtype)
    memory = (ctypes.c_uint8 * source.nbytes).from_address(source.ctypes.data)
    return np.frombuffer(memoryview(memory), layout.numpy_dtype)


Tensors = list[torch.Tensor]


def parameter_views(flat: torch.Tensor, layout: Layout) -> Tensors:
    """`flat`, [layout.elements], as one tensor per parameter with the trainer's own strides."""
    if layout.dtype != SEVERAL_DTYPES:
        return [torch.as_strided(flat, p.shape, p.stride, p.start) for p in layout.parameters]
    return [torch.as_strided(own, p.shape, p.stride) for p, own in _typed(flat, layout)]


def flat_tensor(array: np.ndarray, layout: Layout) -> torch.Tensor:
    """A flat tensor over the memory of `array`, in the layout's dtype; of bytes for several."""
    raw = torch.from_numpy(array.view(np.uint8))
    return raw if layout.dtype == SEVERAL_DTYPES else raw.view(getattr(torch, layout.dtype))


def _typed(flat: torch.Tensor, layout: Layout) -> list[tuple[FlatParameter, torch.Tensor]]:
    """Every parameter's part of `flat`, [elements of the parameter], in its own dtype."""
    return [
        (p, flat[p.start : p.stop].view(getattr(torch, layout.dtype_of(p))))
        for p in layout.parameters
    ]


def flat_gradient(values: FlatValues, layout: Layout) -> torch.Tensor:
    """Gradients as they were reduced, [layout.gradient_bytes] in registration order, as the
    optimizer sees them: [layout.elements], each in its parameter's dtype. Over the same memory
    where that is how they are already. Raises StateError for another size."""
    if layout.gradient_dtype is None and layout.dtype != SEVERAL_DTYPES:
        return flat_tensor(elements_of(values, layout, "gradient"), layout)
    source = values if isinstance(values, np.ndarray) else np.frombuffer(values, np.uint8)
    raw = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
    if raw.size != layout.gradient_bytes:
        raise StateError(GRADIENT_BYTES(bytes=raw.size, expected=layout.gradient_bytes))
    flat = flat_tensor(np.empty(layout.size_bytes, np.uint8), layout)
    parts = _typed(flat, layout) if layout.dtype == SEVERAL_DTYPES else [(None, flat)]
    at = 0
    for _, part in parts:
        wire = getattr(torch, layout.gradient_dtype) if layout.gradient_dtype else part.dtype
        size = part.numel() * wire.itemsize
        # torch's hook writes what was reduced into the bucket: Tensor.copy_ converts.
        part.copy_(torch.from_numpy(raw[at : at + size].copy()).view(wire))
        at += size
    return flat
