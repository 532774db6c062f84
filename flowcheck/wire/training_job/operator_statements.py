"""What the operator states about a job because the traffic does not show it: model tensors, ring
orders, layout of sharded training.

In sharded training parameters are grouped into units, and each rank holds one shard of each unit.
In each step gradients are summed; after the optimizer step of each rank every unit is all-gathered
once, in the model's dtype.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from flowcheck.wire.collectives.nccl_debug_log import RingOrder
from flowcheck.wire.training_job.learned_job import Parameter


class ShardingStyle(StrEnum):
    """Framework of the sharded training."""

    FSDP = "fsdp"
    """torch's FSDP; its layout is learned from the traffic."""
    ZERO = "zero"
    """DeepSpeed ZeRO stages 1 and 2: gradients are all-reduced."""
    MEGATRON = "megatron"
    """Megatron-LM's distributed optimizer: each bucket is reduce-scattered, later all-gathered."""
    HYBRID = "hsdp"
    """torch's `fully_shard` over a mesh (replicas, shards): each rank's part of the gradients is
    all-reduced over the replicas."""


class UnitShard(msgspec.Struct, frozen=True, kw_only=True):
    """The shard of one unit on each rank. `gathered_bytes`: bytes per rank in the all-gather."""

    gathered_bytes: int
    scattered_bytes: int
    """Bytes per rank in the gradient's reduce-scatter; 0: the gradient is not reduce-scattered."""
    dtype: str
    """dtype of the all-gather, torch's name without the prefix."""
    gradient_bytes: int = 4
    """Bytes per gradient element."""


class ParameterPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Position of a parameter in its unit."""

    nbytes: int
    unit: int | None = None
    """Index of the unit; None: the parameter has no gradient and belongs to no unit."""
    start_byte: int = 0
    """Offset in the unit."""


class ShardedTraining(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of one step of sharded training."""

    style: ShardingStyle
    ranks: int
    parts: tuple[UnitShard, ...]
    """Shards of all units, in the order in which gradients are reduce-scattered."""
    places: tuple[ParameterPlace, ...] = ()
    """[parameter] positions in registration order, for trainers that broadcast parameters one by
    one at the start."""
    summed_bytes: int = 0
    """Bytes of all gradients together, if they are all-reduced; else 0."""
    sums: int = 1
    """Number of all-reduces of all gradients per step."""
    backward: bool | None = None
    """True: units are gathered from the last to the first; None: not stated."""


class StatedTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter or buffer of the model with its name."""

    name: str
    wire: Parameter
    """Sizes and strides in elements, dtype, bytes per element."""
    has_gradient: bool = msgspec.field(default=True, name="trains")
    """False: a frozen parameter or a buffer."""
    buffer: bool = False


class ShardCut(msgspec.Struct, frozen=True, kw_only=True):
    """A shard of a parameter, as torch's fully_shard cuts it."""

    whole: tuple[int, ...]
    """Shape of the whole parameter."""
    dim: int
    """Dimension that it is cut along."""
    start: int
    """First place of the shard in that dimension."""
    size: int
    """Places that it has; 0 where the shard holds nothing of the parameter."""


class OperatorStatement(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's statements about one job."""

    parameters: tuple[Parameter, ...] = ()
    """Parameters with gradients in registration order; (): not stated."""
    module_tensors: tuple[StatedTensor, ...] = msgspec.field(default=(), name="everything")
    """All tensors in DistributedDataParallel's start-up broadcasts, in their order: parameters
    with frozen ones at their places, then buffers; (): not stated."""
    order: tuple[int, ...] = ()
    """Parameter indices in the order in which their gradients are all-reduced, one by one or in
    flat buffers; (): not stated."""
    padding: tuple[Parameter, ...] = ()
    """Zeros that stand among the gradients of `groups`."""
    groups: tuple[tuple[int, ...], ...] = ()
    """[all-reduce of an iteration] parameter indices in their order in the tensor, for a trainer
    whose own code tells what it sums together, in whatever order; (): not stated. Indices of
    `padding` follow those of `parameters`."""
    gradient_element_bytes: int = 0
    """Bytes per element of the dtype that gradients are summed in; 0: their parameters' own."""
    weights_unsent: bool = False
    """True: the trainer broadcasts no weights, so that no frame shows what it began with."""
    linear: bool | None = None
    """True: LL128 lines are in linear order, since the stated NCCL release is older than 2.10;
    None: no release is stated."""
    rings: tuple[RingOrder, ...] = ()
    """Ring orders from NCCL's debug log."""
    bucket_elements: int | None = None
    """Elements that a bucket of gradients has at most: a gradient that would take it over begins
    the next one. None: not stated."""
    steps_masters: bool = False
    """The optimizer of a sharded trainer is stated, so that the wider copies that it steps of
    parameters of two bytes are followed as well."""
