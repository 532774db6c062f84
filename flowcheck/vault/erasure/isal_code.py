"""The erasure code k + m, by ISA-L: Cauchy rows over GF(2^8), sums (xor) where m is 1.

The field is that of ISA-L: polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11d; erasure_code/ec_base.h).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowcheck.errors import StateError
from flowcheck.findings.catalog.striped_saves import NEEDS_ISAL

ALIGN_BYTES = 64
"""xor_gen wants 32 (raid.h); a cache line."""
Bytes = NDArray[np.uint8]


@lru_cache(maxsize=1)
def _isal() -> tuple[Any, Any]:
    """(ffi, lib). Raises StateError where the module was not built, or libisal is not there."""
    try:
        from flowcheck._isal import ffi, lib
    except ImportError as error:
        raise StateError(NEEDS_ISAL(error)) from error
    return ffi, lib


def check_isal() -> None:
    """Raises StateError where the code cannot be computed on this machine."""
    _isal()


def aligned_blocks(rows: int, size: int) -> Bytes:
    """[rows, size] bytes, each row on a cache line. size: a multiple of ALIGN_BYTES."""
    raw = np.empty(rows * size + ALIGN_BYTES, dtype=np.uint8)
    begin = -raw.ctypes.data % ALIGN_BYTES
    return raw[begin : begin + rows * size].reshape(rows, size)


class ErasureCode:
    """k data blocks and m parities, of which any k give all of them."""

    def __init__(self, data: int, parity: int) -> None:
        """data, parity: k and m. Raises StateError where ISA-L is missing."""
        self._ffi, self._lib = _isal()
        self.data, self.parity, self.blocks = data, parity, data + parity
        self.matrix = self._generator()
        self._tables = lru_cache(maxsize=64)(self._tables_of)
        self._own = self._as_tables(self.matrix[data:])

    def encode(self, data: Bytes, parity: Bytes) -> None:
        """data: [k, size], parity: [m, size], both of `aligned_blocks`, which it fills."""
        size = data.shape[1]
        if self.parity == 1:
            self._xor(list(data), parity[0])
            return
        self._multiply(size, self._own, list(data), list(parity))

    def rebuild(self, there: Mapping[int, Bytes], wanted: Mapping[int, Bytes]) -> None:
        """Fills the blocks `wanted` from k others. there, wanted: {block's number, data first:
        aligned bytes}, all of one size; `there` has at least k. Raises ValueError with fewer."""
        if len(there) < self.data:
            raise ValueError(f"{len(there)} blocks of {self.data}")
        if not wanted:
            return
        taken = tuple(sorted(there))[: self.data]
        size = len(there[taken[0]])
        if self.parity == 1:  # one is wanted: the sum of all others
            for block in wanted.values():
                self._xor([there[one] for one in taken], block)
            return
        order = tuple(sorted(wanted))
        tables = self._tables(taken, order)
        sources = [there[one] for one in taken]
        self._multiply(size, tables, sources, [wanted[one] for one in order])

    def _generator(self) -> Bytes:
        """[k + m, k]: the unit matrix, then the parities' rows."""
        matrix = np.zeros((self.blocks, self.data), dtype=np.uint8)
        pointer = self._ffi.cast("unsigned char *", matrix.ctypes.data)
        self._lib.gf_gen_cauchy1_matrix(pointer, self.blocks, self.data)
        if self.parity == 1:
            matrix[-1] = 1
        return matrix

    def _tables_of(self, taken: tuple[int, ...], wanted: tuple[int, ...]) -> Any:
        """What multiplies the blocks `taken` to those `wanted`."""
        k, byte = self.data, "unsigned char *"
        rows = np.ascontiguousarray(self.matrix[list(taken)])
        inverse = np.empty((k, k), dtype=np.uint8)
        cast = self._ffi.cast
        if self._lib.gf_invert_matrix(
            cast(byte, rows.ctypes.data), cast(byte, inverse.ctypes.data), k
        ):
            raise AssertionError("every k rows of a Cauchy code have an inverse")
        mul = self._lib.gf_mul
        made = np.zeros((len(wanted), k), dtype=np.uint8)
        for at, block in enumerate(wanted):
            for column in range(k):
                total = 0
                for own in range(k):
                    total ^= mul(int(self.matrix[block, own]), int(inverse[own, column]))
                made[at, column] = total
        return self._as_tables(made)

    def _as_tables(self, rows: Bytes) -> Any:
        held = np.ascontiguousarray(rows)
        tables = self._ffi.new("unsigned char[]", 32 * rows.size)  # ec_init_tables: 32 each
        pointer = self._ffi.cast("unsigned char *", held.ctypes.data)
        self._lib.ec_init_tables(self.data, len(rows), pointer, tables)
        return tables

    def _multiply(
        self, size: int, tables: Any, sources: Sequence[Bytes], made: Sequence[Bytes]
    ) -> None:
        self._lib.ec_encode_data(
            size, self.data, len(made), tables, self._pointers(sources), self._pointers(made)
        )

    def _xor(self, sources: Sequence[Bytes], made: Bytes) -> None:
        if len(sources) == 1:  # k = 1: a mirror, and xor_gen wants two sources
            made[:] = sources[0]
            return
        vectors = [*sources, made]
        pointers = self._ffi.cast("void **", held := self._pointers(vectors))
        if self._lib.xor_gen(len(vectors), len(made), pointers):
            raise AssertionError("xor_gen takes two sources and more")
        del held

    def _pointers(self, blocks: Sequence[Bytes]) -> Any:
        addresses = [block.ctypes.data for block in blocks]
        if any(address % ALIGN_BYTES for address in addresses):
            raise ValueError("blocks of aligned_blocks are wanted")
        cast = self._ffi.cast
        return self._ffi.new("unsigned char *[]", [cast("unsigned char *", a) for a in addresses])
