"""What a job file refers to: Python factories of models and optimizers, sharded models, NCCL's
log. Loads and checks it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from flowcheck.config import JobConfig, ModelConfig
from flowcheck.config.optimizer_config import ShardedGroup
from flowcheck.errors import ConfigError, LearnError, StateError
from flowcheck.findings.catalog.distributed_optimizers import OTHER_PARAMETERS
from flowcheck.findings.catalog.refused_commands import ORDER_OF_NAMES, OTHER_NAMES, OTHER_SIZES
from flowcheck.findings.catalog.refused_settings import UNREADABLE
from flowcheck.ops.planning.meta_device_model import MetaModel, load_model
from flowcheck.replica.param_layout import Layout, dtype_size_bytes
from flowcheck.replica.preflight.factory_preflight import try_factory
from flowcheck.replica.preflight.optimizer_preflight import check_optimizer
from flowcheck.replica.sharding.gather_units import ShardedModel
from flowcheck.replica.sharding.zero_megatron_layout import ShardingSettings
from flowcheck.stages.run_directory.job_run_dirs import job_count
from flowcheck.untrusted_text import decode_text
from flowcheck.wire.collectives.nccl_debug_log import NcclLog, parse_nccl_log
from flowcheck.wire.training_job.operator_statements import ShardingStyle

KEY = "model.factory"


def with_factory_model(model: ModelConfig, *, joins: bool = False) -> ModelConfig:
    """`model` with the names, sizes and types its factory gives; joins: and the order of gradients,
    where a loss is stated. Raises ConfigError if the user's code fails, or gives a model
    that differs from what else is stated."""
    assert model.factory is not None
    settings = [f"{key}={value!r}" for key, value in model.factory_arguments.items()]
    loss = model.loss if joins else None
    made = load_model(model.factory, settings, dtype=None, loss=loss, key=KEY)
    names = tuple(tensor.name for tensor in made.trained)
    parameters = tuple(tensor.wire for tensor in made.trained)
    if model.names and model.names != names:
        raise ConfigError("model.names", model.names[0], OTHER_NAMES(model.factory))
    if model.parameters and model.parameters != parameters:
        raise ConfigError("model.parameters", "", OTHER_SIZES(model.factory))
    if not isinstance(model.order, str) and model.order and sorted(model.order) != sorted(names):
        wrong = next((name for name in model.order if name not in names), model.order[0])
        raise ConfigError("model.order", wrong, ORDER_OF_NAMES(model.factory))
    return msgspec.structs.replace(
        model,
        names=names,
        parameters=parameters,
        everything=(*made.tensors, *made.buffers),
        keys=made.keys,
        ready=made.ready,
    )


def factory_model(model: ModelConfig) -> MetaModel:
    """The model that `with_factory_model` put there, without a second call of its factory: large
    models take long to make."""
    of_module = [tensor for tensor in model.everything if not tensor.buffer]
    return MetaModel(
        name=model.factory or "",
        tensors=tuple(of_module),
        buffers=tuple(tensor for tensor in model.everything if tensor.buffer),
        keys=model.keys,
        ready=model.ready,
    )


def check_optimizers_of_jobs(config: JobConfig) -> None:
    """Every job's optimizer over its own model, where that is stated. Raises ConfigError."""
    for number in range(1, job_count(config) + 1):
        own = config.job[number - 1] if config.job else None
        optimizer = (own.optimizer if own is not None else None) or config.optimizer
        model = (own.model if own is not None else None) or config.model
        assert optimizer is not None, "checked when the file was read"
        layout = _layout(model)
        if optimizer.factory is not None:
            try_factory(optimizer, layout)
        elif layout is not None and optimizer.computes_steps:
            check_optimizer(optimizer, layout)


def _layout(model: ModelConfig) -> Layout | None:
    """Of the parameters that are stated; None where some of them is not known."""
    own = model.parameters
    if not own or any(p.dtype is None for p in own) or len(model.names) != len(own):
        return None
    shapes = [(p.sizes, p.strides) for p in own]
    try:
        return Layout.of(shapes, names=model.names, dtype=[p.dtype or "" for p in own])
    except StateError:
        return None  # no type of a replica's, which is refused where it is learned


def with_nccl_log(config: JobConfig) -> JobConfig:
    """`config` with what its NCCL log says. Raises ConfigError if the log shows no ring."""
    if config.nccl_log is None:
        return config
    logged = read_nccl_log("nccl_log", Path(config.nccl_log))
    version = config.nccl or logged.version
    return msgspec.structs.replace(config, ring_orders=logged.orders, nccl=version)


def read_nccl_log(key: str, file: Path) -> NcclLog:
    """NCCL's log in a file that was named as `key`. Raises ConfigError."""
    try:
        content = file.read_bytes()
        return parse_nccl_log(decode_text(key, file, content, ending=".log", lenient=True))
    except OSError as error:
        raise ConfigError(key, str(file), UNREADABLE(error.strerror)) from error
    except LearnError as error:
        raise ConfigError(key, str(file), error.finding) from error


def with_zero_groups(config: JobConfig) -> JobConfig:
    """`config` with the groups by whose parts DeepSpeed sums the norm that it clips by. Raises
    ConfigError where [sharded] and [model] have other parameters."""
    optimizer = config.optimizer
    if not config.whole_zero or optimizer is None or optimizer.clip_norm is None:
        return config
    made = sharded_model(config)
    assert made is not None, "a ZeRO job has one"
    index = {name: n for n, name in enumerate(config.model.names)}
    if set(made.names) != set(index):
        assert config.sharded is not None
        raise ConfigError("sharded.factory", config.sharded.factory, OTHER_PARAMETERS())
    groups = tuple(
        ShardedGroup(
            ranks=made.ranks,
            part_elements=unit.block_bytes // dtype_size_bytes(unit.pieces[0].dtype),
            starts=tuple(
                (index[p.name], p.start_byte // dtype_size_bytes(p.dtype)) for p in unit.pieces
            ),
        )
        for unit in made.units
    )
    own = msgspec.structs.replace(optimizer, sharded_groups=groups)
    return msgspec.structs.replace(config, optimizer=own)


def sharded_model(config: JobConfig) -> ShardedModel | None:
    """The model of [sharded], as torch and the trainer that is stated cut it; None: none is named,
    or it is one whose gradients are followed (hybrid_job_model.py).
    Raises ConfigError where its factory does not work out."""
    sharded = config.sharded
    if sharded is None or sharded.style is ShardingStyle.HYBRID:
        return None
    from flowcheck.replica.sharding.sharded_model_probe import probe_sharded_model

    if sharded.style is ShardingStyle.FSDP:
        return probe_sharded_model(sharded.factory, sharded.ranks)
    how = ShardingSettings(
        style=sharded.style,
        gradient_dtype=sharded.gradient_dtype,
        bucket_elements=sharded.bucket_elements,
        overlap_param_gather=sharded.overlap_param_gather,
        sums_per_step=sharded.sums_per_step,
        round_robin_gradients=sharded.round_robin_gradients,
        pad_buckets_for_high_nccl_busbw=sharded.pad_buckets_for_high_nccl_busbw,
    )
    return probe_sharded_model(sharded.factory, sharded.ranks, how)
