"""The units that sharded training gathers (all-gather), and where every parameter lies in them.

A unit's bytes are the ranks' parts one behind the other, all of one size. FSDP2 cuts every
parameter along one dimension and pads each cut to the first one's size; a rank's part holds its
cuts of all parameters of the unit (torch/distributed/fsdp/_fully_shard/_fsdp_param.py,
_init_sharded_param). FSDP1 cuts the parameters laid end to end
(torch/distributed/fsdp/_flat_param.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowcheck.errors import StateError
from flowcheck.findings.catalog.parameter_layouts import (
    GATHER_RANKS,
    GATHER_UNITS,
    UNITS_NOT_OF_DTYPE,
)
from flowcheck.replica.param_layout import Layout, dtype_size_bytes
from flowcheck.wire.traffic.observed_messages import Range
from flowcheck.wire.training_job.operator_statements import ShardedTraining


class UnitParameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One parameter of a unit."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """Dtype in which the parameter is gathered, torch's name without the prefix."""
    start_byte: int
    """Offset in a rank's part; in the unit if `dim` is None."""
    dim: int | None = None
    """Dimension along which the parameter is sharded; None: it lies in the unit in one piece."""
    shard_shape: tuple[int, ...] = msgspec.field(default=(), name="cut")
    """Shape of a rank's cut with its padding."""

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * dtype_size_bytes(self.dtype)


class GatherUnit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A unit: the parameters that one all-gather gathers."""

    name: str
    """Name of the wrapped module; empty: the root."""
    block_bytes: int
    """Bytes of one rank's part."""
    pieces: tuple[UnitParameter, ...]


class ShardedModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A sharded model: its units in the order of its modules, its parameters in theirs."""

    ranks: int
    units: tuple[GatherUnit, ...]
    names: tuple[str, ...]
    sharded_wire: ShardedTraining | None = msgspec.field(default=None, name="parted")
    """The collectives of a trainer other than FSDP; None for FSDP."""


class UnitSplitter:
    """Takes units apart into the parameters of a layout."""

    def __init__(
        self, layout: Layout, sizes: Sequence[int], ranks: int, order: list[GatherUnit]
    ) -> None:
        """sizes: [unit on the wire] bytes; order: what the model calls them, or []."""
        self.layout = layout
        self._ranks = ranks
        self._bounds = np.concatenate([[0], np.cumsum(sizes)]).astype(int)
        self._at: dict[str, tuple[int, UnitParameter | None]] = {
            piece.name: (n, piece) for n, unit in enumerate(order) for piece in unit.pieces
        }
        if not order:
            self._at = {p.name: (n, None) for n, p in enumerate(layout.parameters)}

    @property
    def gathered_bytes(self) -> int:
        return int(self._bounds[-1])

    def parameters(self, gathered: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """[layout bytes] in registration order of [all units] bytes as they were gathered."""
        parts = []
        for p in self.layout.parameters:
            unit, piece = self._at[p.name]
            own = gathered[self._bounds[unit] : self._bounds[unit + 1]]
            parts.append(own if piece is None else self._taken(own, piece))
        return np.concatenate(parts)

    def _taken(self, unit: NDArray[np.uint8], piece: UnitParameter) -> NDArray[np.uint8]:
        if piece.dim is None:
            return unit[piece.start_byte : piece.start_byte + piece.nbytes]
        each = dtype_size_bytes(piece.dtype)
        count = math.prod(piece.shard_shape)
        blocks = unit.reshape(self._ranks, -1)[:, piece.start_byte :][:, : count * each]
        cuts = blocks.reshape(self._ranks, *piece.shard_shape, each)
        joined = np.moveaxis(cuts, 0, piece.dim)
        shape = list(piece.shard_shape)
        shape[piece.dim] *= self._ranks
        whole = joined.reshape(*shape, each)
        whole = np.take(whole, range(piece.shape[piece.dim]), axis=piece.dim)
        return np.ascontiguousarray(whole).reshape(-1)

    def complete_parameters(self, missing: Sequence[Range]) -> NDArray[np.bool_]:
        """[parameters] True if the parameter's unit is complete. missing: ranges of the gathered
        bytes that were not captured."""
        short = {
            unit
            for start, stop in missing
            for unit in range(
                int(np.searchsorted(self._bounds, start, "right")) - 1,
                int(np.searchsorted(self._bounds, stop, "left")),
            )
        }
        return np.array([self._at[p.name][0] not in short for p in self.layout.parameters])


def flat_units(sizes: Sequence[int], ranks: int, dtype: str) -> UnitSplitter:
    """Treats each unit as one parameter: unit.0, unit.1, ... Raises StateError if a unit is not a
    whole number of elements."""
    each = dtype_size_bytes(dtype)
    if any(size % each for size in sizes):
        raise StateError(UNITS_NOT_OF_DTYPE(sizes=tuple(sizes), dtype=dtype))
    names = [f"unit.{n}" for n in range(len(sizes))]
    layout = Layout.of_shapes([(size // each,) for size in sizes], names=names, dtype=dtype)
    return UnitSplitter(layout, sizes, ranks, [])


def model_units(sizes: Sequence[int], ranks: int, model: ShardedModel) -> tuple[UnitSplitter, bool]:
    """(splitter into the model's own parameters, whether only the order distinguishes units of
    equal size).

    Raises StateError if the model is sharded in another way than the gathered units.
    """
    if model.ranks != ranks:
        raise StateError(GATHER_RANKS(stated=model.ranks, ranks=ranks))
    left = list(model.units)
    order: list[GatherUnit] = []
    for size in sizes:
        found = next((u for u in left if u.block_bytes * ranks == size), None)
        if found is None:
            break
        left.remove(found)
        order.append(found)
    if left or len(order) < len(sizes):
        own = tuple(f"{unit.block_bytes * ranks:,}" for unit in model.units)
        raise StateError(GATHER_UNITS(model=own, wire=tuple(f"{size:,}" for size in sizes)))
    pieces = {piece.name: piece for unit in order for piece in unit.pieces}
    shapes = [pieces[name].shape for name in model.names]
    strides = [
        tuple(np.cumprod((1, *shape[:0:-1]))[::-1].tolist()) if shape else () for shape in shapes
    ]
    layout = Layout.of(
        zip(shapes, strides, strict=True),
        names=model.names,
        dtype=[pieces[name].dtype for name in model.names],
    )
    alike = len({unit.block_bytes for unit in order}) < len(order)
    return UnitSplitter(layout, sizes, ranks, order), alike
