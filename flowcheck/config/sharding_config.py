"""Settings of sharded training (FSDP, HSDP, ZeRO, Megatron-LM): [sharded]."""

from __future__ import annotations

import msgspec

from flowcheck.config.config_decoding import ConfigSection, at_least
from flowcheck.config.multi_job_config import addresses
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_settings import (
    ADDRESS_EACH,
    FACTORY_FORM,
    FROM_TO,
    MESH_RANKS,
    NOT_STATED,
    OF_STYLES,
    ONE_OF,
    SHARD_NOT_STATED,
)
from flowcheck.wire.training_job.operator_statements import ShardingStyle

GRADIENTS = ("float32", "bfloat16", "float16")
OF_STYLE: dict[str, tuple[ShardingStyle, ...]] = {
    "gradient_dtype": (ShardingStyle.ZERO, ShardingStyle.MEGATRON),
    "bucket_elements": (ShardingStyle.ZERO, ShardingStyle.MEGATRON),
    "overlap_param_gather": (ShardingStyle.MEGATRON,),
    "sums_per_step": (ShardingStyle.ZERO,),
    "round_robin_gradients": (ShardingStyle.ZERO,),
    "pad_buckets_for_high_nccl_busbw": (ShardingStyle.MEGATRON,),
    "mesh": (ShardingStyle.HYBRID,),
    "seed": (ShardingStyle.HYBRID,),
    "shard": (ShardingStyle.HYBRID,),
    "addresses": (ShardingStyle.HYBRID,),
}
"""{key: styles it belongs to}, for the keys that not every style has."""
_DEFAULTS: dict[str, object] = {"sums_per_step": 1, "addresses": ()}


class ShardedConfig(ConfigSection, frozen=True, kw_only=True):
    """The model as the training script shards it. Without this table FlowCheck names the gathered
    units unit.0, unit.1, ..."""

    factory: str
    """Function "train.py:make". With the style "fsdp" it returns the model wrapped by fully_shard
    or FullyShardedDataParallel, with "hsdp" by fully_shard; FlowCheck takes names, shapes and
    dtypes from torch. With another style it returns the model as it is trained, or (model,
    parameter groups) where the optimizer has several groups."""
    ranks: int = 0
    """Number of ranks. With the style "fsdp": ranks of the whole job, the world size in which
    FlowCheck calls the factory. With "hsdp" `mesh` tells it, and it may be left out. With another
    style: ranks of the data-parallel group."""
    style: ShardingStyle = ShardingStyle.FSDP
    """How the trainer shards: "fsdp"; "hsdp" for fully_shard over a mesh of replicas, whose
    gradients are followed with all state; "zero" for DeepSpeed's ZeRO stages 1 and 2; "megatron"
    for Megatron-LM's distributed optimizer."""
    mesh: tuple[int, int] | None = None
    """With "hsdp": (replicas, shards of each), the shape of the mesh that the script gives
    fully_shard."""
    shard: int | None = None
    """With "hsdp" and several shards: which one the mirrored port carries, from 0: the number of
    the GPU in its node, where each node holds all shards."""
    addresses: tuple[str, ...] = ()
    """With "hsdp", in place of `shard`, where the ports of all shards are mirrored: [shard] an IP
    address of a NIC that carries it, as `flowcheck analyze` prints it: that of the GPU of this
    number in a mirrored node. Each shard has a replica, and they are saved together."""
    seed: int | None = None
    """With "hsdp": what the script gives torch.manual_seed before it calls the factory. The
    replica starts with the weights that the factory then makes. None: it waits for the trainer's
    checkpoint (`flowcheck base`)."""
    gradient_dtype: str | None = None
    """Dtype in which gradients are summed. None: the parameters' dtype with "zero", "float32" with
    "megatron"."""
    bucket_elements: int | None = None
    """--ddp-bucket-size of Megatron-LM, in elements. None: one bucket holds all, as without
    --overlap-grad-reduce. With "zero" reduce_bucket_size of DeepSpeed, needed where sizes leave
    open which gradients a bucket has; None: they tell."""
    overlap_param_gather: bool | None = None
    """--overlap-param-gather of Megatron-LM, which gathers the last bucket first. None: FlowCheck
    decides by the message sizes."""
    sums_per_step: int = 1
    """How often DeepSpeed sums all gradients before a step. Its stage 2 sums them in every
    accumulated backward pass."""
    round_robin_gradients: bool = False
    """round_robin_gradients of DeepSpeed, which deals parameters to the ranks in turn."""
    pad_buckets_for_high_nccl_busbw: bool = False
    """--ddp-pad-buckets-for-high-nccl-busbw of Megatron-LM."""

    def __post_init__(self) -> None:
        file, _, name = self.factory.rpartition(":")
        if not (file.endswith(".py") and name.isidentifier()):
            raise ConfigError("sharded.factory", self.factory, FACTORY_FORM())
        if self.style is ShardingStyle.HYBRID:
            self._check_mesh()
        at_least("sharded.ranks", self.ranks, 2)
        at_least("sharded.sums_per_step", self.sums_per_step, 1)
        if self.bucket_elements is not None:
            at_least("sharded.bucket_elements", self.bucket_elements, 1)
        if self.gradient_dtype is not None and self.gradient_dtype not in GRADIENTS:
            raise ConfigError("sharded.gradient_dtype", self.gradient_dtype, ONE_OF(GRADIENTS))
        for key, styles in OF_STYLE.items():
            given = getattr(self, key)
            if (
                given not in (None, False)
                and given != _DEFAULTS.get(key)
                and self.style not in styles
            ):
                of = " or ".join(f'"{style}"' for style in styles)
                raise ConfigError(f"sharded.{key}", given, OF_STYLES(of))

    @property
    def own_shard(self) -> int:
        """The shard that is followed, from 0."""
        return self.shard or 0

    @property
    def one_of_shards(self) -> tuple[int, int] | None:
        """(shard, number of shards) where the replica has one of several; None: it has all."""
        if self.style is not ShardingStyle.HYBRID or self.mesh is None or self.mesh[1] == 1:
            return None
        return self.own_shard, self.mesh[1]

    def _check_mesh(self) -> None:
        """Checks `mesh` and `shard`, and sets `ranks` by the mesh. Raises ConfigError."""
        if self.mesh is None:
            raise ConfigError("sharded.mesh", None, NOT_STATED("sharded.mesh"))
        replicas, shards = self.mesh
        at_least("sharded.mesh", replicas, 2)
        at_least("sharded.mesh", shards, 1)
        if self.ranks not in (0, replicas * shards):
            raise ConfigError("sharded.ranks", self.ranks, MESH_RANKS(replicas * shards))
        if self.addresses:
            self._check_addresses(shards)
        elif self.shard is None and shards > 1:
            raise ConfigError("sharded.shard", None, SHARD_NOT_STATED(shards))
        if self.shard is not None and not 0 <= self.shard < shards:
            raise ConfigError("sharded.shard", self.shard, FROM_TO(least=0, most=shards - 1))
        msgspec.structs.force_setattr(self, "ranks", replicas * shards)

    def _check_addresses(self, shards: int) -> None:
        """Puts the addresses in their standard spelling. Raises ConfigError."""
        own = addresses("sharded.addresses", self.addresses)
        if shards < 2 or len(own) != shards or len(set(own)) != shards:
            raise ConfigError("sharded.addresses", list(own), ADDRESS_EACH(shards))
        msgspec.structs.force_setattr(self, "addresses", own)
