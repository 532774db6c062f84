"""Settings of sharded training (FSDP, ZeRO, Megatron-LM): [sharded]."""

from __future__ import annotations

from flowcheck.config.config_decoding import ConfigSection, at_least
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_settings import FACTORY_FORM, OF_STYLES, ONE_OF
from flowcheck.wire.training_job.operator_statements import ShardingStyle

GRADIENTS = ("float32", "bfloat16", "float16")
OF_STYLE: dict[str, tuple[ShardingStyle, ...]] = {
    "gradient_dtype": (ShardingStyle.ZERO, ShardingStyle.MEGATRON),
    "bucket_elements": (ShardingStyle.MEGATRON,),
    "overlap_param_gather": (ShardingStyle.MEGATRON,),
    "sums_per_step": (ShardingStyle.ZERO,),
    "round_robin_gradients": (ShardingStyle.ZERO,),
    "pad_buckets_for_high_nccl_busbw": (ShardingStyle.MEGATRON,),
}
"""Settings that only some trainers have."""


class ShardedConfig(ConfigSection, frozen=True, kw_only=True):
    """The model as the training script wraps it. Without it what is gathered is called unit.N."""

    factory: str
    """"train.py:make", which returns the model wrapped by fully_shard or FullyShardedDataParallel:
    names, shapes and types are asked of torch."""
    ranks: int
    """Of the whole job: the world that the factory is called in. Where it is no FSDP: of the group
    that data is parallel over."""
    style: ShardingStyle = ShardingStyle.FSDP
    """"zero": DeepSpeed's stages 1 and 2; "megatron": Megatron-LM's distributed optimizer. The
    factory returns the model as it is trained then, or (model, groups of parameters) where the
    optimizer has several."""
    gradient_dtype: str | None = None
    """That gradients are summed in; by default the parameters' own with "zero", "float32" with
    "megatron"."""
    bucket_elements: int | None = None
    """Megatron-LM's --ddp-bucket-size; by default all is one bucket, as without
    --overlap-grad-reduce."""
    overlap_param_gather: bool | None = None
    """Megatron-LM's: the last bucket is gathered first. By default sizes must tell."""
    sums_per_step: int = 1
    """Times that DeepSpeed sums all gradients before a step: its stage 2 does so in every backward
    pass that it accumulates."""
    round_robin_gradients: bool = False
    """DeepSpeed's: parameters are dealt to the ranks in turn."""
    pad_buckets_for_high_nccl_busbw: bool = False
    """Megatron-LM's."""

    def __post_init__(self) -> None:
        file, _, name = self.factory.rpartition(":")
        if not (file.endswith(".py") and name.isidentifier()):
            raise ConfigError("sharded.factory", self.factory, FACTORY_FORM())
        at_least("sharded.ranks", self.ranks, 2)
        at_least("sharded.sums_per_step", self.sums_per_step, 1)
        if self.bucket_elements is not None:
            at_least("sharded.bucket_elements", self.bucket_elements, 1)
        if self.gradient_dtype is not None and self.gradient_dtype not in GRADIENTS:
            raise ConfigError("sharded.gradient_dtype", self.gradient_dtype, ONE_OF(GRADIENTS))
        for key, styles in OF_STYLE.items():
            if getattr(self, key) not in (None, False, 1) and self.style not in styles:
                of = " or ".join(f'"{style}"' for style in styles)
                raise ConfigError(f"sharded.{key}", getattr(self, key), OF_STYLES(of))
