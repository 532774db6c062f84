"""Where every parameter lies in the flat state: registration order, back to back. No torch, no
I/O.

Inside a parameter the bytes follow memory order (its strides), as DDP's buckets keep them, so one
element range means the same place in the parameters and in every optimizer state. Parameters of
several dtypes lie in the state by the size of their elements, the largest first, so that each is
aligned; the flat state is bytes then. Pure: no torch, no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate

import msgspec
import numpy as np

from flowcheck.errors import StateError
from flowcheck.findings.catalog.parameter_layouts import (
    ELEMENT_COUNT,
    NAME_COUNT,
    NEGATIVE_SIZE,
    NO_PARAMETERS,
    NOT_DENSE,
    NOT_IN_PLACE,
    SAME_NAME,
    STRIDE_COUNT,
    UNKNOWN_DTYPE,
)

_STORED_AS = {"float32": "<f4", "float64": "<f8", "float16": "<f2", "bfloat16": "<u2"}
"""numpy's spelling of torch's dtypes; numpy has no bfloat16 and carries its bits as uint16."""
STORED_AS = _STORED_AS | {
    **{"int64": "<i8", "int32": "<i4", "int16": "<i2", "int8": "|i1", "uint8": "|u1"},
    **{"int": "<i8", "float": "<f8", "bool": "|b1"},
}
"""Also of what an optimizer may keep, and of Python's numbers."""
SEVERAL_DTYPES = "several"
"""In place of a dtype where parameters have different ones."""

Decomposition = Iterable[tuple[Sequence[int], Sequence[int]]]
"""(sizes, strides) per parameter, in elements, as DDP verifies them at start-up."""


class FlatParameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One parameter: sizes and strides in elements, and its first element in the flat state; its
    first byte, and its dtype, where parameters are of several."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    start: int
    dtype: str | None = None

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        return self.start + self.elements * (dtype_size_bytes(self.dtype) if self.dtype else 1)

    @property
    def order(self) -> tuple[int, ...]:
        """Dimensions from the slowest to the fastest in memory."""
        return tuple(sorted(range(len(self.shape)), key=lambda d: (-self.stride[d], d)))


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """All parameters. `dtype` is torch's word: float32, float64, float16, bfloat16; or
    SEVERAL_DTYPES."""

    dtype: str
    parameters: tuple[FlatParameter, ...]
    gradient_dtype: str | None = None
    """Of the gradients that are handed in; None: each has its parameter's."""

    @classmethod
    def of(
        cls,
        shapes: Decomposition,
        *,
        names: Sequence[str] | None = None,
        dtype: str | Sequence[str] = "float32",
        gradient_dtype: str | None = None,
    ) -> Layout:
        """The layout of (sizes, strides) in registration order.

        names: as many as there are shapes; param.0, param.1 ... where none are stated. dtype: of
        all, or of each. Raises StateError for an unknown dtype, names that do not fit, or a tensor
        with holes.
        """
        listed = [(tuple(sizes), tuple(strides)) for sizes, strides in shapes]
        if not listed:
            raise StateError(NO_PARAMETERS())
        if names is None:
            names = [f"param.{index}" for index in range(len(listed))]
        if len(names) != len(listed):
            raise StateError(NAME_COUNT(names=len(names), parameters=len(listed)))
        if len(set(names)) != len(names):
            raise StateError(SAME_NAME())
        dtypes = [dtype] * len(listed) if isinstance(dtype, str) else list(dtype)
        for one in (*dtypes, gradient_dtype or dtypes[0]):
            if one not in _STORED_AS:
                raise StateError(UNKNOWN_DTYPE(dtype=repr(one), dtypes=tuple(_STORED_AS)))
        several = len(set(dtypes)) > 1
        starts = _by_size(listed, dtypes) if several else _back_to_back(listed)
        parameters = []
        for name, (shape, stride), own, start in zip(names, listed, dtypes, starts, strict=True):
            _check_dense(name, shape, stride)
            parameters.append(FlatParameter(name, shape, stride, start, own if several else None))
        if gradient_dtype is not None and set(dtypes) == {gradient_dtype}:
            gradient_dtype = None
        return cls(SEVERAL_DTYPES if several else dtypes[0], tuple(parameters), gradient_dtype)

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

    def check(self) -> None:
        """Raises StateError unless it is a layout that `of` gives: of one that was read."""
        parts = self.parameters
        own = Layout.of(
            [(p.shape, p.stride) for p in parts],
            names=[p.name for p in parts],
            dtype=[self.dtype_of(p) for p in parts],
            gradient_dtype=self.gradient_dtype,
        )
        if own != self:
            raise StateError(NOT_IN_PLACE())

    @cached_property
    def elements(self) -> int:
        """Of the flat state: its bytes where parameters are of several dtypes."""
        return max(p.stop for p in self.parameters)

    @property
    def element_bytes(self) -> int:
        return np.dtype(self.numpy_dtype).itemsize

    @property
    def size_bytes(self) -> int:
        return self.elements * self.element_bytes

    @property
    def numpy_dtype(self) -> str:
        """numpy's dtype of one element of the flat state; bfloat16 appears as its 16 bits."""
        return "|u1" if self.dtype == SEVERAL_DTYPES else _STORED_AS[self.dtype]

    def dtype_of(self, parameter: FlatParameter) -> str:
        """torch's word."""
        return parameter.dtype or self.dtype

    def with_single_dtype(self, dtype: str) -> Layout:
        """The same parameters in one type, back to back; gradients come as they did."""
        shapes = [(p.shape, p.stride) for p in self.parameters]
        wire = self.gradient_dtype or (self.dtype if self.dtype != SEVERAL_DTYPES else None)
        names = [p.name for p in self.parameters]
        return Layout.of(shapes, names=names, dtype=dtype, gradient_dtype=wire)

    @property
    def gradient_bytes(self) -> int:
        """Of a gradient as it is handed in."""
        own = ((p, self.gradient_dtype or self.dtype_of(p)) for p in self.parameters)
        return sum(p.elements * dtype_size_bytes(dtype) for p, dtype in own)

    def memory_order(self, logical: np.ndarray) -> np.ndarray:
        """Elements flattened in index order and in registration order, as DDP's start-up broadcast
        sends weights, put into memory order and where they lie in the flat state. [elements] in,
        [elements] out; the same array where all are contiguous and of one dtype."""
        if logical.size != self.elements:
            raise StateError(ELEMENT_COUNT(elements=logical.size, expected=self.elements))
        whole = all(is_contiguous(p.shape, p.stride) for p in self.parameters)
        if whole and self.dtype != SEVERAL_DTYPES:
            return logical
        parts, start = [], 0
        for p in self.parameters:
            part = logical[start : start + p.stop - p.start].view(_STORED_AS[self.dtype_of(p)])
            parts.append(part.reshape(p.shape).transpose(p.order).reshape(-1))
            start += p.stop - p.start
        return self.concatenated(parts)

    def concatenated(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """The flat state of tensors in registration order, each flat in memory order."""
        placed = zip(self.parameters, parts, strict=True)
        in_state = [part for _, part in sorted(placed, key=lambda one: (one[0].start, one[0].stop))]
        if self.dtype == SEVERAL_DTYPES:
            in_state = [np.ascontiguousarray(part).view(np.uint8) for part in in_state]
        return np.concatenate(in_state)

    def registration_order(self, flat: np.ndarray) -> np.ndarray:
        """A flat state as training scripts hash it: tensors back to back in registration order."""
        if self.dtype != SEVERAL_DTYPES:
            return flat
        return np.concatenate([flat[p.start : p.stop] for p in self.parameters])


def dtype_size_bytes(dtype: str) -> int:
    """Bytes of an element of torch's dtype."""
    return np.dtype(_STORED_AS[dtype]).itemsize


def as_float64(raw: np.ndarray, dtype: str) -> np.ndarray:
    """The bytes of elements of torch's dtype as float64, [elements]."""
    stored = raw.view(_STORED_AS[dtype])
    if dtype == "bfloat16":
        stored = (stored.astype("<u4") << np.uint32(16)).view("<f4")
    return stored.astype(np.float64)


def _back_to_back(shapes: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> list[int]:
    """[parameter] first element, in registration order."""
    ends = list(accumulate((math.prod(shape) for shape, _ in shapes), initial=0))
    return ends[:-1]


def _by_size(
    shapes: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], dtypes: Sequence[str]
) -> list[int]:
    """[parameter] first byte, the largest elements first."""
    starts, at = [0] * len(shapes), 0
    for index in sorted(range(len(shapes)), key=lambda i: -dtype_size_bytes(dtypes[i])):
        starts[index] = at
        at += math.prod(shapes[index][0]) * dtype_size_bytes(dtypes[index])
    return starts


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
        raise StateError(STRIDE_COUNT(name=name, sizes=len(shape), strides=len(stride)))
    if any(size < 0 for size in shape):
        raise StateError(NEGATIVE_SIZE(name=name, shape=shape))
    if 0 in shape:
        return
    expected = 1
    for step, size in sorted((st, si) for st, si in zip(stride, shape, strict=True) if si > 1):
        if step != expected:
            raise StateError(NOT_DENSE(name=name, shape=shape, strides=stride))
        expected *= size
