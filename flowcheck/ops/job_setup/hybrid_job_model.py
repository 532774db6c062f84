"""The model of a job file whose [sharded] states hybrid sharding: what torch makes of its factory
takes the place of [model]."""

from __future__ import annotations

from itertools import accumulate
from operator import mul

import msgspec

from flowcheck.config import ELEMENT_BYTES, JobConfig, ModelConfig, OptimizerConfig
from flowcheck.config.sharding_config import ShardedConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_settings import (
    MODEL_BESIDE_MESH,
    ONE_OF,
    ONE_SHARD_CLIPPED,
    ONE_SHARD_FORMAT,
    ONE_SHARD_NOT_PER_ELEMENT,
    OTHER_DIVISOR,
    SUMS_DIVIDED_LATER,
)
from flowcheck.replica.sharding.hybrid_model import HybridModel, HybridParameter
from flowcheck.vault.checkpoint_formats.format_registry import SHARD_FORMATS
from flowcheck.wire.training_job.learned_job import Parameter
from flowcheck.wire.training_job.operator_statements import ShardCut, ShardingStyle


def with_hybrid_model(config: JobConfig) -> JobConfig:
    """`config` with the parameters and sums of the shard that [sharded] states; as it is for
    another style. Raises ConfigError where the factory does not work out, or where what it returns
    cannot be followed."""
    sharded = config.sharded
    if sharded is None or sharded.style is not ShardingStyle.HYBRID:
        return config
    from flowcheck.replica.sharding.hybrid_probe import probe_hybrid_models

    assert sharded.mesh is not None, "checked when the file was read"
    assert config.optimizer is not None, "checked when the file was read"
    _check_alone(config.model)
    one = sharded.one_of_shards
    if one is not None:
        _check_shards(config, config.optimizer, one[1])
    followed = range(sharded.mesh[1]) if config.all_shards else (sharded.own_shard,)
    made = probe_hybrid_models(sharded.factory, sharded.mesh, followed)
    models = [_model_of(config.model, each, cut=one is not None) for each in made]
    optimizer = _divided(config.optimizer, made[0], sharded)
    jobs = config.job
    if config.all_shards:
        jobs = tuple(
            msgspec.structs.replace(own, model=model)
            for own, model in zip(config.job, models, strict=True)
        )
    return msgspec.structs.replace(config, model=models[0], job=jobs, optimizer=optimizer)


def _model_of(stated: ModelConfig, made: HybridModel, *, cut: bool) -> ModelConfig:
    """`stated` with the parameters and sums of one shard. cut: it is one of several. Raises
    ConfigError for a type that no replica can hold."""
    for parameter in made.parameters:
        if parameter.dtype not in ELEMENT_BYTES:
            raise ConfigError("sharded.factory", parameter.dtype, ONE_OF(tuple(ELEMENT_BYTES)))
    padding, groups = _padded_groups(made)
    return msgspec.structs.replace(
        stated,
        names=tuple(parameter.name for parameter in made.parameters),
        parameters=tuple(_wire_of(p.own_shape, p.dtype) for p in made.parameters),
        gradient_dtype=made.reduce_dtype,
        padding=padding,
        groups=groups,
        cuts=tuple(map(_cut_of, made.parameters)) if cut else (),
    )


def _check_shards(config: JobConfig, optimizer: OptimizerConfig, shards: int) -> None:
    """Raises ConfigError for what the replica of one shard does not tell: steps that depend on the
    others, and checkpoints of the whole model. A norm is one number of each, which they exchange
    where all are followed."""
    if config.all_shards:
        optimizer = msgspec.structs.replace(optimizer, clip_norm=None, clip_together=False)
    if optimizer.clip_norm is not None:
        right = ONE_SHARD_CLIPPED(shards=shards)
        raise ConfigError("optimizer.clip_norm", optimizer.clip_norm, right)
    if not optimizer.per_element:
        right = ONE_SHARD_NOT_PER_ELEMENT(shards=shards)
        raise ConfigError("optimizer.name", optimizer.name, right)
    if config.persist is not None and config.persist.format not in SHARD_FORMATS:
        right = ONE_SHARD_FORMAT(shards=shards, formats=SHARD_FORMATS)
        raise ConfigError("persist.format", config.persist.format, right)


def _padded_groups(
    made: HybridModel,
) -> tuple[tuple[Parameter, ...], tuple[tuple[int, ...], ...]]:
    """(what fills the shards of parameters up, the groups with it): behind each shard, as only the
    first dimension is ever filled up."""
    padding: list[Parameter] = []
    groups = []
    for group in made.groups:
        filled: list[int] = []
        for index in group:
            parameter = made.parameters[index]
            filled.append(index)
            rows = parameter.shard_shape[0] - parameter.own_shape[0] if parameter.own_shape else 0
            if rows:
                filled.append(len(made.parameters) + len(padding))
                padding.append(_wire_of((rows, *parameter.own_shape[1:]), parameter.dtype))
        groups.append(tuple(filled))
    return tuple(padding), tuple(groups)


def _cut_of(parameter: HybridParameter) -> ShardCut:
    size = parameter.own_shape[parameter.dim]
    return ShardCut(
        whole=parameter.shape, dim=parameter.dim, start=parameter.start if size else 0, size=size
    )


def _check_alone(model: ModelConfig) -> None:
    """Raises ConfigError for a statement that the factory of [sharded] makes."""
    stated = {
        "model.factory": model.factory,
        "model.names": model.names,
        "model.dtype": model.dtype,
        "model.dtypes": model.dtypes,
        "model.gradient_dtype": model.gradient_dtype,
        "model.parameters": model.parameters,
        "model.order": model.order,
    }
    for key, value in stated.items():
        if value:
            raise ConfigError(key, str(value), MODEL_BESIDE_MESH())


def _divided(
    optimizer: OptimizerConfig, made: HybridModel, sharded: ShardedConfig
) -> OptimizerConfig:
    """The settings with what torch divides each sum by. Raises ConfigError where it does so in
    another type than the optimizer sees, or where the file states another number."""
    if made.divisor == 1.0:
        return optimizer
    if made.reduce_dtype is not None:
        right = SUMS_DIVIDED_LATER(dtype=made.reduce_dtype, divisor=made.divisor)
        raise ConfigError("sharded.factory", sharded.factory, right)
    if optimizer.gradient_divisor not in (1.0, made.divisor):
        right = OTHER_DIVISOR(made.divisor)
        raise ConfigError("optimizer.gradient_divisor", optimizer.gradient_divisor, right)
    return msgspec.structs.replace(optimizer, gradient_divisor=made.divisor)


def _wire_of(sizes: tuple[int, ...], dtype: str) -> Parameter:
    """Of these sizes, contiguous: torch sums no other layout."""
    strides = tuple(accumulate(sizes[:0:-1], mul, initial=1))[::-1]
    return Parameter(
        sizes=sizes,
        strides=strides,
        element_bytes=ELEMENT_BYTES[dtype],
        dtype=dtype,
    )
