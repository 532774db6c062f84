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
    ONE_SHARD,
    OTHER_DIVISOR,
    SUMS_DIVIDED_LATER,
)
from flowcheck.replica.sharding.hybrid_model import HybridModel, HybridParameter
from flowcheck.wire.training_job.learned_job import Parameter
from flowcheck.wire.training_job.operator_statements import ShardingStyle


def with_hybrid_model(config: JobConfig) -> JobConfig:
    """`config` with the parameters and sums of the shard that [sharded] states; as it is for
    another style. Raises ConfigError where the factory does not work out, or where what it returns
    cannot be followed."""
    sharded = config.sharded
    if sharded is None or sharded.style is not ShardingStyle.HYBRID:
        return config
    from flowcheck.replica.sharding.hybrid_probe import probe_hybrid_model

    assert sharded.mesh is not None, "checked when the file was read"
    assert config.optimizer is not None, "checked when the file was read"
    _check_alone(config.model)
    if sharded.mesh[1] > 1:
        raise ConfigError("sharded.mesh", sharded.mesh, ONE_SHARD())
    made = probe_hybrid_model(sharded.factory, sharded.mesh, sharded.shard)
    for parameter in made.parameters:
        if parameter.dtype not in ELEMENT_BYTES:
            raise ConfigError("sharded.factory", parameter.dtype, ONE_OF(tuple(ELEMENT_BYTES)))
    model = msgspec.structs.replace(
        config.model,
        names=tuple(parameter.name for parameter in made.parameters),
        parameters=tuple(map(_wire_of, made.parameters)),
        gradient_dtype=made.reduce_dtype,
        groups=made.groups,
    )
    optimizer = _divided(config.optimizer, made, sharded)
    return msgspec.structs.replace(config, model=model, optimizer=optimizer)


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


def _wire_of(parameter: HybridParameter) -> Parameter:
    """The shard, contiguous: torch sums no other layout."""
    sizes = parameter.shard_shape
    strides = tuple(accumulate(sizes[:0:-1], mul, initial=1))[::-1]
    return Parameter(
        sizes=sizes,
        strides=strides,
        element_bytes=ELEMENT_BYTES[parameter.dtype],
        dtype=parameter.dtype,
    )
