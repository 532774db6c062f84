"""Flat tensors as callers hand them in: bytes or arrays, taken without a copy where that can be."""

from __future__ import annotations

import ctypes

import numpy as np

from flowcheck.errors import StateError
from flowcheck.replica.layout import Layout

Flat = np.ndarray | bytes | bytearray | memoryview
"""Raw bytes of a flat tensor, or an array of its elements: registration order, memory order."""


def elements_of(values: Flat, layout: Layout, what: str) -> np.ndarray:
    """`values` as [layout.elements] over the same memory; copied only if it is misaligned.

    The array claims to be writable, for torch knows no other kind; nothing here writes to it, and
    it is good only as long as the caller's own `values`.
    """
    source = values if isinstance(values, np.ndarray) else np.frombuffer(values, np.uint8)
    if not source.flags.c_contiguous:
        source = np.ascontiguousarray(source)
    if source.nbytes != layout.size_bytes:
        raise StateError(
            f"{what}: {source.nbytes} bytes given, the layout has {layout.size_bytes} "
            f"({layout.elements} elements of {layout.dtype})"
        )
    if source.ctypes.data % layout.element_bytes:
        source = source.copy()
    if source.flags.writeable or not source.nbytes:
        return source.reshape(-1).view(layout.stored_as)
    memory = (ctypes.c_uint8 * source.nbytes).from_address(source.ctypes.data)
    return np.frombuffer(memoryview(memory), layout.stored_as)
