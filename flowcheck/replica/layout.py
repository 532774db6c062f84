"""Where every parameter lies in the flat state: registration order, back to back, for ever.

Inside a parameter the bytes follow memory order (its strides), as DDP's buckets keep them, so one
element range means the same place in a gradient, in the parameters and in every optimizer state.
Pure: no torch, no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from flowcheck.errors import StateError

_STORED_AS = {"float32": "<f4", "float64": "<f8", "float16": "<f2", "bfloat16": "<u2"}
"""numpy's spelling of torch's dtypes; numpy has no bfloat16 and carries its bits as uint16."""

Decomposition = Iterable[tuple[Sequence[int], Sequence[int]]]
"""(sizes, strides) per parameter, in elements, as DDP verifies them at start-up."""


class Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One parameter: sizes and strides in elements, and its first element in the flat state."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    start: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        return self.start + self.elements

    @property
    def order(self) -> tuple[int, ...]:
        """Dimensions from the slowest to the fastest in memory."""
        return tuple(sorted(range(len(self.shape)), key=lambda d: (-self.stride[d], d)))


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All parameters of one dtype. `dtype` is torch's word: float32, float64, float16, bfloat16."""

    dtype: str
    parameters: tuple[Parameter, ...]

    @classmethod
    def of(
        cls, shapes: Decomposition, *, names: Sequence[str] | None = None, dtype: str = "float32"
    ) -> Layout:
        """The layout of (sizes, strides) in registration order.

        names: as many as there are shapes; param.0, param.1 ... where none are stated.
        Raises StateError for an unknown dtype, names that do not fit, or a tensor with holes.
        """
        if dtype not in _STORED_AS:
            raise StateError(f"dtype {dtype!r}: a replica holds one of {', '.join(_STORED_AS)}")
        listed = [(tuple(sizes), tuple(strides)) for sizes, strides in shapes]
        if not listed:
            raise StateError("a layout needs at least one parameter")
        if names is None:
            names = [f"param.{index}" for index in range(len(listed))]
        if len(names) != len(listed):
            raise StateError(f"{len(names)} names for {len(listed)} parameters")
        if len(set(names)) != len(names):
            raise StateError("two parameters have the same name")
        parameters, start = [], 0
        for name, (shape, stride) in zip(names, listed, strict=True):
            _check_dense(name, shape, stride)
            parameters.append(Parameter(name, shape, stride, start))
            start += math.prod(shape)
        return cls(dtype, tuple(parameters))

    @classmethod
    def of_shapes(
        cls,
        shapes: Iterable[Sequence[int]],
        *,
        names: Sequence[str] | None = None,
        dtype: str = "float32",
    ) -> Layout:
        """The layout of contiguous parameters of these shapes."""
        return cls.of([(s, contiguous_stride(s)) for s in shapes], names=names, dtype=dtype)

    @property
    def elements(self) -> int:
        return self.parameters[-1].stop

    @property
    def element_bytes(self) -> int:
        return np.dtype(_STORED_AS[self.dtype]).itemsize

    @property
    def size_bytes(self) -> int:
        return self.elements * self.element_bytes

    @property
    def stored_as(self) -> str:
        """numpy's dtype of one element; bfloat16 appears as its 16 bits."""
        return _STORED_AS[self.dtype]

    def memory_order(self, logical: np.ndarray) -> np.ndarray:
        """Elements flattened in index order, as DDP's start-up broadcast sends weights, put into
        memory order. [elements] in, [elements] out; the same array where all are contiguous."""
        if logical.size != self.elements:
            raise StateError(f"{logical.size} elements given, the layout has {self.elements}")
        if all(is_contiguous(p.shape, p.stride) for p in self.parameters):
            return logical
        parts = [
            logical[p.start : p.stop].reshape(p.shape).transpose(p.order).reshape(-1)
            for p in self.parameters
        ]
        return np.concatenate(parts)


def contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a row-major tensor."""
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))


def is_contiguous(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether memory order is index order; the stride of a dimension of size 1 says nothing."""
    want = contiguous_stride(shape)
    return all(s == w for size, s, w in zip(shape, stride, want, strict=True) if size > 1)


def _check_dense(name: str, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    """DDP keeps strides only of tensors without holes or overlap; anything else has no place."""
    if len(shape) != len(stride):
        raise StateError(f"{name}: {len(shape)} sizes and {len(stride)} strides")
    if any(size < 0 for size in shape):
        raise StateError(f"{name}: shape {list(shape)} has a negative size")
    if 0 in shape:
        return
    expected = 1
    for step, size in sorted((st, si) for st, si in zip(stride, shape, strict=True) if si > 1):
        if step != expected:
            raise StateError(
                f"{name}: shape {list(shape)} with strides {list(stride)} has holes or overlaps; "
                "only dense tensors (contiguous, channels_last and other permutations) fit"
            )
        expected *= size
