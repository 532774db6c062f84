"""Where DeepSpeed ZeRO stages 1 and 2 and Megatron-LM's distributed optimizer put parameters in
their flat buffers.

DeepSpeed (deepspeed/runtime/zero/stage_1_and_2.py): the parameters of each group of the optimizer
end to end, padded to two elements a rank; a group is a unit. Megatron-LM
(megatron/core/optimizer/distrib_optimizer.py, _compute_per_buffer_param_layout, and
param_layout.py): from the last parameter to the first, each at a multiple of 64 elements, closed
once a bucket holds as many elements as it may and padded to a multiple of 128 and of the ranks; a
bucket is a unit, and parameters of each type have buckets of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from flowcheck.replica.param_layout import dtype_size_bytes
from flowcheck.replica.sharding.gather_units import GatherUnit, ShardedModel, UnitParameter
from flowcheck.wire.collectives.nccl_parameters import round_up
from flowcheck.wire.training_job.operator_statements import (
    ParameterPlace,
    ShardedTraining,
    ShardingStyle,
    UnitShard,
)

ZERO_ELEMENTS = 2
"""A rank's part is a multiple of these (nccl_start_alignment_factor)."""
START_ELEMENTS, END_ELEMENTS = 64, 128
"""Elements of which each parameter's start, and each bucket's end, is a multiple in Megatron-LM's
distributed optimizer (_compute_per_buffer_param_layout, above)."""
BUSBW_ELEMENTS = 1 << 16
"""Elements of which a bucket's size is a multiple too, with pad_buckets_for_high_nccl_busbw."""


class ShardingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The trainer's settings that decide the layout."""

    style: ShardingStyle
    gradient_dtype: str | None = None
    """Dtype of gradients. None: the parameters' dtype in DeepSpeed, float32 in Megatron-LM."""
    bucket_elements: int | None = None
    """Megatron-LM's bucket size; None: one bucket."""
    overlap_param_gather: bool | None = None
    sums_per_step: int = 1
    round_robin_gradients: bool = False
    pad_buckets_for_high_nccl_busbw: bool = False


class NamedParameter(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    own_bucket: bool = msgspec.field(default=False, name="alone")
    """Megatron-LM gives it a bucket of its own (shared_embedding)."""

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def shard_parameters(
    groups: Sequence[Sequence[NamedParameter]],
    registered: Sequence[NamedParameter],
    ranks: int,
    how: ShardingSettings,
) -> ShardedModel:
    """The units of parameters by the optimizer's groups. registered: all there are, frozen ones
    too, in their order. Raises ValueError for what the trainer itself would refuse."""
    zero = how.style is ShardingStyle.ZERO
    units = list(_zero(groups, ranks, how) if zero else _megatron(groups, ranks, how))
    types = [unit.pieces[0].dtype for unit in units]
    usual = [kind if zero else "float32" for kind in types]
    gradients = [dtype_size_bytes(how.gradient_dtype or kind) for kind in usual]
    if zero and len(set(gradients)) > 1:
        raise ValueError("groups of several types: state [sharded] gradient_dtype")
    parts = tuple(
        UnitShard(
            gathered_bytes=unit.block_bytes,
            scattered_bytes=0 if zero else unit.block_bytes // dtype_size_bytes(kind) * each,
            dtype=kind,
            gradient_bytes=each,
        )
        for unit, kind, each in zip(units, types, gradients, strict=True)
    )
    every = sum(named.elements for group in groups for named in group)
    sharded = ShardedTraining(
        style=how.style,
        ranks=ranks,
        parts=parts,
        places=tuple(_places(registered, units)),
        summed_bytes=every * gradients[0] if zero else 0,
        sums=how.sums_per_step,
        backward=False if zero else how.overlap_param_gather,
    )
    own = {named.name for group in groups for named in group}
    names = tuple(named.name for named in registered if named.name in own)
    return ShardedModel(ranks=ranks, units=tuple(units), names=names, sharded_wire=sharded)


def _places(
    registered: Sequence[NamedParameter], units: Sequence[GatherUnit]
) -> Iterator[ParameterPlace]:
    at = {p.name: (n, p.start_byte) for n, unit in enumerate(units) for p in unit.pieces}
    for named in registered:
        nbytes = named.elements * dtype_size_bytes(named.dtype)
        unit, start = at.get(named.name, (None, 0))
        yield ParameterPlace(nbytes=nbytes, unit=unit, start_byte=start)


def _zero(
    groups: Sequence[Sequence[NamedParameter]], ranks: int, how: ShardingSettings
) -> Iterator[GatherUnit]:
    for number, group in enumerate(groups):
        if len({named.dtype for named in group}) != 1:
            raise ValueError(f"parameters of group {number} are not of one type")
        turns = [i for turn in range(ranks) for i in range(turn, len(group), ranks)]
        order = turns if how.round_robin_gradients else range(len(group))
        starts, at = [], 0
        for i in order:
            starts.append(at)
            at += group[i].elements
        whole = round_up(at, ZERO_ELEMENTS * ranks)
        yield _unit(f"group {number}", [group[i] for i in order], starts, whole, ranks)


def _megatron(
    groups: Sequence[Sequence[NamedParameter]], ranks: int, how: ShardingSettings
) -> Iterator[GatherUnit]:
    every = [named for group in groups for named in group]  # it knows no groups
    divisor = math.lcm(ranks, END_ELEMENTS)
    if how.pad_buckets_for_high_nccl_busbw:
        divisor = math.lcm(divisor, BUSBW_ELEMENTS)
    most = math.inf if how.bucket_elements is None else how.bucket_elements
    number = 0
    for dtype in dict.fromkeys(named.dtype for named in every):
        own, starts, at = list[NamedParameter](), list[int](), 0
        for named in [named for named in every if named.dtype == dtype][::-1]:
            at = round_up(at, START_ELEMENTS)
            if named.own_bucket and own:
                yield _unit(f"bucket {number}", own, starts, round_up(at, divisor), ranks)
                own, starts, at, number = [], [], 0, number + 1
            own.append(named)
            starts.append(at)
            at += named.elements
            if at >= most or named.own_bucket:
                yield _unit(f"bucket {number}", own, starts, round_up(at, divisor), ranks)
                own, starts, at, number = [], [], 0, number + 1
        if own:
            yield _unit(f"bucket {number}", own, starts, round_up(at, divisor), ranks)
            number += 1


def _unit(
    name: str, own: Sequence[NamedParameter], starts: Sequence[int], elements: int, ranks: int
) -> GatherUnit:
    """starts, elements: of the unit."""
    each = dtype_size_bytes(own[0].dtype)
    pieces = (
        UnitParameter(
            name=named.name, shape=named.shape, dtype=named.dtype, start_byte=start * each
        )
        for named, start in zip(own, starts, strict=True)
    )
    return GatherUnit(name=name, block_bytes=elements * each // ranks, pieces=tuple(pieces))
