"""What the operator states because the wire does not tell it: model tensors, ring orders, and
the layout of sharded training.

The parameters lie in units, each cut into one part a rank. Every step sums the gradients, and once
each rank has stepped its parts gathers every unit once, in the type of the model.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from flowcheck.wire.collectives.nccl_debug_log import RingOrder
from flowcheck.wire.training_job.learned_job import Parameter


class ShardingStyle(StrEnum):
    """Whose collectives they are."""

    FSDP = "fsdp"
    """torch's: the wire tells them."""
    ZERO = "zero"
    """DeepSpeed's first two stages: gradients are all-reduced."""
    MEGATRON = "megatron"
    """Megatron-LM's distributed optimizer: each bucket is reduce-scattered, then gathered."""


class UnitShard(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank holds of one unit."""

    gathered_bytes: int
    scattered_bytes: int
    """Of its gradient's sum; 0: that is no reduce-scatter's."""
    dtype: str
    """As it is gathered, torch's name without the prefix."""
    gradient_bytes: int = 4
    """Of an element of the gradient."""


class ParameterPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a parameter lies."""

    nbytes: int
    unit: int | None = None
    """None: it takes no gradients, and lies in none."""
    start_byte: int = 0
    """In the unit."""


class ShardedTraining(msgspec.Struct, frozen=True, kw_only=True):
    """What crosses the wire in every step."""

    style: ShardingStyle
    ranks: int
    parts: tuple[UnitShard, ...]
    """In the order that gradients are scattered in."""
    places: tuple[ParameterPlace, ...] = ()
    """Of all parameters in registration order, as the trainer may send each before it begins."""
    summed_bytes: int = 0
    """Of all gradients, where they are all-reduced."""
    sums: int = 1
    """Times that they are, in a step."""
    backward: bool | None = None
    """Units are gathered from the last one on; None: it is not stated."""


class StatedTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter or a buffer by its name."""

    name: str
    wire: Parameter
    """Sizes and strides in elements, the type, bytes of an element."""
    has_gradient: bool = msgspec.field(default=True, name="trains")
    """False: frozen, or a buffer; it has no gradient."""
    buffer: bool = False


class OperatorStatement(msgspec.Struct, frozen=True, kw_only=True):
    """What gradients are of, and in which order rings pass through ranks."""

    parameters: tuple[Parameter, ...] = ()
    """Those that take gradients, in registration order; (): they are not stated."""
    module_tensors: tuple[StatedTensor, ...] = msgspec.field(default=(), name="everything")
    """All that DistributedDataParallel's start-up broadcasts hold of the module, in their order:
    parameters, frozen ones in their places, then buffers; (): it is not stated."""
    order: tuple[int, ...] = ()
    """Parameters in the order of their gradients, one by one or in flat buffers; (): it is not
    stated."""
    linear: bool | None = None
    """LL128 is that of an NCCL before 2.10, by the release that is stated; None: none is."""
    rings: tuple[RingOrder, ...] = ()
    """As NCCL's log tells them."""
