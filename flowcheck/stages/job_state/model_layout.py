"""Layout and optimizer of a learned job, from the traffic and the job file."""

from __future__ import annotations

import msgspec

from flowcheck.config import ELEMENT_BYTES, JobConfig, ModelConfig, OptimizerConfig
from flowcheck.errors import StateError
from flowcheck.findings.catalog.replica_update_notes import (
    CLIP_TOGETHER_TYPE,
    GRADIENT_TYPE_OPEN,
    GRADIENT_TYPE_SIZE,
    OPTIMIZER_NOT_STATED,
    PARAMETER_COUNT,
    PARAMETER_SHAPE,
    SHARDED_TRAINING,
    STATED_TYPE_SIZE,
    TYPE_OPEN,
    TYPES_OPEN,
)
from flowcheck.findings.finding import Finding
from flowcheck.optimizer_rules.torch_optimizers import NO_OPTIMIZER
from flowcheck.replica.param_layout import Layout
from flowcheck.stages.job_state.training_facts import known_training
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.wire.training_job.learned_job import FollowedData, Parameter
from flowcheck.wire.training_job.training_spec import TrainingFacts

NO_OPTIMIZER_CONFIG = OptimizerConfig(name=NO_OPTIMIZER.name, learning_rate=0.0)
"""For a job whose parameters are followed as they are sent."""
DTYPES = {2: None, 4: "float32", 8: "float64"}
"""{bytes of an element: dtype of a gradient}; None for 2 bytes, as two types have that size."""


def optimizer_of(job: TrainingFacts, config: JobConfig) -> OptimizerConfig:
    """The optimizer of the replica's steps. Raises StateError where none is stated."""
    if job.kind is FollowedData.PARAMETERS:
        return NO_OPTIMIZER_CONFIG
    optimizer = config.optimizer
    assert optimizer is not None, "checked when the configuration was read"
    if not optimizer.computes_steps:
        raise StateError(OPTIMIZER_NOT_STATED())
    return optimizer


def optimizer_of_run(run: RunDir) -> OptimizerConfig:
    """The optimizer of a run whose job is known. Raises ConfigError without a run, StateError as
    `optimizer_of`, FileNotFoundError as `known_training`."""
    return optimizer_of(known_training(run), run.settings())


def layout_of(job: TrainingFacts, config: JobConfig) -> Layout:
    """The replica's layout. Raises StateError where a dtype must be stated, or the traffic
    contradicts a stated one."""
    job = msgspec.structs.replace(job, parameters=_typed(job, config.model))
    sizes = sorted({parameter.element_bytes for parameter in job.parameters})
    told = all(parameter.dtype is not None for parameter in job.parameters)
    meant = {} if told else _dtypes(sizes, config.model)
    optimizer = optimizer_of(job, config)
    for part in optimizer.per_optimizer:
        if why := part.rule.unreproducible(part, sizes):
            raise StateError(why)
    if optimizer.clip_together and {p.element_bytes for p in job.reduced} != {4}:
        raise StateError(CLIP_TOGETHER_TYPE())
    shapes = [(parameter.sizes, parameter.strides) for parameter in job.parameters]
    names = list(config.model.names) if names_fit(job, config) else None
    return Layout.of(
        shapes,
        names=names,
        dtype=[p.dtype or meant[p.element_bytes] for p in job.parameters],
        gradient_dtype=_gradient_dtype(job, config.model),
    )


def _typed(job: TrainingFacts, model: ModelConfig) -> tuple[Parameter, ...]:
    """The job's parameters, with the types of the stated model where the model has the same
    parameters."""
    same = [(p.sizes, p.element_bytes) for p in job.parameters] == [
        (p.sizes, p.element_bytes) for p in model.parameters
    ]
    if not same or model.dtype is not None or model.dtypes:
        return job.parameters
    return tuple(
        msgspec.structs.replace(own, dtype=own.dtype or stated.dtype)
        for own, stated in zip(job.parameters, model.parameters, strict=True)
    )


def _dtypes(sizes: list[int], model: ModelConfig) -> dict[int, str]:
    """{bytes of an element: dtype}"""
    stated = (model.dtype,) if model.dtype is not None else model.dtypes
    told = " and ".join(map(str, sizes))
    key, value = ("dtype", model.dtype) if model.dtype is not None else ("dtypes", model.dtypes)
    wrong = [dtype for dtype in stated if ELEMENT_BYTES[dtype] not in sizes]
    if wrong:
        raise StateError(
            STATED_TYPE_SIZE(key=key, value=repr(value), bytes=ELEMENT_BYTES[wrong[0]], sizes=told)
        )
    meant = DTYPES | {ELEMENT_BYTES[dtype]: dtype for dtype in stated}
    found = {size: dtype for size in sizes if (dtype := meant.get(size)) is not None}
    if len(found) == len(sizes):
        return found
    if len(sizes) == 1:
        raise StateError(TYPE_OPEN())
    others = "".join(f', "{found[size]}"' for size in sizes if size in found)
    raise StateError(TYPES_OPEN(sizes=told, dtypes=f'["bfloat16"{others}]'))


def _gradient_dtype(job: TrainingFacts, model: ModelConfig) -> str | None:
    """The dtype in which gradients are reduced; None: each has its parameter's."""
    stated, size = model.gradient_dtype, job.gradient_element_bytes
    if stated is None and size:
        raise StateError(GRADIENT_TYPE_OPEN(size))
    sizes = {p.element_bytes for p in job.reduced[: job.map_index]}
    if stated is not None and sizes != {ELEMENT_BYTES[stated]}:
        own = " and ".join(map(str, sorted(sizes)))
        raise StateError(
            GRADIENT_TYPE_SIZE(value=repr(stated), bytes=ELEMENT_BYTES[stated], sizes=own)
        )
    return stated


def stated_model_mismatch(job: TrainingFacts, stated: tuple[Parameter, ...]) -> Finding | None:
    """How a factory's parameters differ from those that the trainers sent; None: they are the
    same."""
    if job.kind is FollowedData.PARAMETERS:
        return SHARDED_TRAINING()
    own = job.parameters
    if len(own) != len(stated):
        return PARAMETER_COUNT(stated=len(stated), sent=len(own))
    for number, (sent, ours) in enumerate(zip(own, stated, strict=True)):
        if (sent.sizes, sent.element_bytes) != (ours.sizes, ours.element_bytes):
            return PARAMETER_SHAPE(
                parameter=number,
                stated=_shape(ours),
                stated_bytes=ours.element_bytes,
                sent=_shape(sent),
                sent_bytes=sent.element_bytes,
            )
    return None


def _shape(parameter: Parameter) -> str:
    return "x".join(map(str, parameter.sizes)) or "a scalar"


def names_fit(job: TrainingFacts, config: JobConfig) -> bool:
    """Whether there is a stated name for every parameter. Names are labels only: a list of names
    that does not fit is no reason to lose a start-up broadcast, which is sent once."""
    return len(config.model.names) == len(job.parameters)
