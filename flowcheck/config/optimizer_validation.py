"""Validation of [optimizer], as far as it is possible without torch."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from flowcheck.config.config_decoding import at_least
from flowcheck.config.optimizer_config import (
    CLASS_ARGUMENTS,
    AverageConfig,
    GroupConfig,
    OptimizerConfig,
    ScalerConfig,
)
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_optimizers import (
    BACKOFF_FACTOR,
    BETAS,
    CLIP_NORM_TYPE,
    CLIP_ORDER_ALONE,
    CLIP_VALUE_FIRST,
    CLIP_WAIT,
    HAS_NO_SETTING,
    KEYS_DIFFER,
    LEARNING_RATE_NEEDED,
    NAME_NEEDED,
    NAME_NOT_STATED,
    NO_GROUP_PARAMETERS,
    NOT_WITH,
    ONE_GROUP_FOR_FROZEN,
    ROUNDS_MASTER_WEIGHTS,
    STATED_BY_EACH,
    STATED_BY_FACTORY,
    TWO_TABLES_OF_REST,
)
from flowcheck.findings.catalog.refused_settings import (
    ABOVE,
    AT_LEAST,
    FACTORY_FOR_ARGUMENTS,
    FINITE,
    FINITE_ABOVE,
    FROM_TO,
    VERSION,
)
from flowcheck.findings.finding import Finding
from flowcheck.optimizer_rules.torch_optimizers import KEYS, followed_names

REST = "rest"
NEVER_BELOW_0 = ("learning_rate", "momentum", "eps", "weight_decay")
"""Keys whose values must not be negative: the constructors in torch/optim/adam.py, adamw.py and
sgd.py refuse negative ones."""
OF_THE_OPTIMIZER = (
    *("implementation", *CLASS_ARGUMENTS, "arguments"),
    *("groups", "each", "schedule", "schedule_arguments"),
)
"""Keys that must be left out beside `factory`, since the factory decides them itself."""


def validate_optimizer(optimizer: OptimizerConfig) -> None:
    """Refuses, before anything starts, settings that torch would refuse at the first step. Raises
    ConfigError that names the key."""
    _check_maker(optimizer)
    _check_numbers(optimizer, "optimizer")
    if not (math.isfinite(optimizer.gradient_divisor) and optimizer.gradient_divisor > 0):
        value = optimizer.gradient_divisor
        raise ConfigError("optimizer.gradient_divisor", value, FINITE_ABOVE(0))
    at_least("optimizer.threads", optimizer.threads, 1)
    at_least("optimizer.clip_threads", optimizer.torch_threads, 1)
    at_least("optimizer.synced_backwards", optimizer.synced_backwards, 1)
    at_least("optimizer.schedule_every", optimizer.schedule_every, 1)
    if optimizer.torch is not None and not re.fullmatch(
        r"\d+\.\d+(\.\d+)?(\+\w+)?", optimizer.torch
    ):
        raise ConfigError("optimizer.torch", optimizer.torch, VERSION(short="2.10", long="2.10.0"))
    _check_clips(optimizer)
    several = optimizer.groups or optimizer.each or optimizer.factory is not None
    if optimizer.takes_frozen and several:
        raise ConfigError("optimizer.takes_frozen", True, ONE_GROUP_FOR_FROZEN())
    for table, groups in (
        ("optimizer.each", optimizer.each),
        *(("optimizer.groups", part.groups) for part in optimizer.per_optimizer),
    ):
        _check_tables(table, groups)
    if optimizer.rounding is not None and optimizer.master_dtype is None:
        raise ConfigError("optimizer.rounding", optimizer.rounding, ROUNDS_MASTER_WEIGHTS())
    if optimizer.scaler is not None:
        _check_scaler(optimizer.scaler)
    if optimizer.average is not None:
        _check_average(optimizer.average)


def _check_tables(table: str, groups: Sequence[GroupConfig]) -> None:
    for group in groups:
        _check_numbers(group, table)
        if not group.parameters:
            raise ConfigError(f"{table}.parameters", (), NO_GROUP_PARAMETERS(REST))
    if sum(group.parameters == REST for group in groups) > 1:
        raise ConfigError(f"{table}.parameters", REST, TWO_TABLES_OF_REST())


def _check_maker(optimizer: OptimizerConfig) -> None:
    """Checks that the table states a class, a factory or several optimizers, and no keys of the
    other two. Raises ConfigError."""
    if optimizer.factory is not None:
        _refuse_stated(optimizer, ("name", *OF_THE_OPTIMIZER), STATED_BY_FACTORY())
        return
    if optimizer.factory_arguments:
        right = FACTORY_FOR_ARGUMENTS("optimizer.factory")
        raise ConfigError("optimizer.factory_arguments", "", right)
    if optimizer.each:
        own = tuple(key for key in ("name", *OF_THE_OPTIMIZER) if key != "each")
        _refuse_stated(optimizer, own, STATED_BY_EACH())
        _check_each(optimizer)
        return
    if not optimizer.name:
        raise ConfigError("optimizer.name", None, NAME_NOT_STATED(NAME_NEEDED(followed_names())))
    _check_class(optimizer)


def _refuse_stated(optimizer: OptimizerConfig, keys: Sequence[str], why: Finding) -> None:
    blank = OptimizerConfig()
    for key in keys:
        if getattr(optimizer, key) != getattr(blank, key):
            raise ConfigError(f"optimizer.{key}", getattr(optimizer, key), why)


def _check_each(optimizer: OptimizerConfig) -> None:
    keys = [each.key for each in optimizer.each]
    if any(keys) and len(set(keys) - {None, ""}) < len(keys):
        raise ConfigError("optimizer.each.key", next(key for key in keys if key), KEYS_DIFFER())
    for part in optimizer.per_optimizer:
        if not part.name or not part.computes_steps:
            raise ConfigError("optimizer.each.name", part.name, NAME_NEEDED(followed_names()))
        _check_class(part, "optimizer.each")


def _check_class(optimizer: OptimizerConfig, table: str = "optimizer") -> None:
    if optimizer.learning_rate is None:
        raise ConfigError(f"{table}.learning_rate", None, LEARNING_RATE_NEEDED())
    rule = optimizer.rule
    for key in sorted(KEYS - set(rule.keys)) if rule.keys is not None else ():
        for where in (optimizer, *optimizer.groups):
            if value := getattr(where, key):
                right = HAS_NO_SETTING(optimizer=rule.name, setting=key)
                raise ConfigError(f"{table}.{key}", value, right)
    if wrong := rule.wrong_setting(optimizer):
        key, value, why = wrong
        raise ConfigError(f"{table}.{key}", value, why)


def _check_numbers(where: OptimizerConfig | GroupConfig, table: str) -> None:
    for key in CLASS_ARGUMENTS:
        value = getattr(where, key)
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{table}.{key}", value, FINITE())
    for key in NEVER_BELOW_0:
        value = getattr(where, key)
        if value is not None and value < 0:
            raise ConfigError(f"{table}.{key}", value, AT_LEAST(0))
    if where.betas is not None and not all(0 <= beta < 1 for beta in where.betas):
        raise ConfigError(f"{table}.betas", where.betas, BETAS())


def _check_clips(optimizer: OptimizerConfig) -> None:
    for key in ("clip_norm", "clip_value"):
        value = getattr(optimizer, key)
        if value is not None and not value > 0:
            raise ConfigError(f"optimizer.{key}", value, ABOVE(0))
    if math.isnan(optimizer.clip_norm_type):
        raise ConfigError("optimizer.clip_norm_type", "nan", CLIP_NORM_TYPE())
    if optimizer.clip_value_first and None in (optimizer.clip_norm, optimizer.clip_value):
        raise ConfigError("optimizer.clip_value_first", True, CLIP_VALUE_FIRST())
    if not (math.isfinite(optimizer.clip_wait_s) and optimizer.clip_wait_s > 0):
        raise ConfigError("optimizer.clip_wait_s", optimizer.clip_wait_s, CLIP_WAIT())
    if not optimizer.clip_together:
        if optimizer.clip_order:
            raise ConfigError("optimizer.clip_order", optimizer.clip_order, CLIP_ORDER_ALONE())
        return
    others = {
        "clip_alone": optimizer.clip_alone,
        "gradient_divisor": optimizer.gradient_divisor != 1.0,
        "clip_value": optimizer.clip_value is not None,
        "clip_norm_type": optimizer.clip_norm_type != 2.0,
        "scaler": optimizer.scaler is not None,
        "master_dtype": optimizer.master_dtype is not None,
    }
    if any(others.values()):
        other = next(key for key, stated in others.items() if stated)
        raise ConfigError("optimizer.clip_together", True, NOT_WITH(other))


def _check_scaler(scaler: ScalerConfig) -> None:
    """Checks what torch.amp.GradScaler asserts. Raises ConfigError."""
    if not (math.isfinite(scaler.init_scale) and scaler.init_scale > 0):
        right = FINITE_ABOVE(0)
        raise ConfigError("optimizer.scaler.init_scale", scaler.init_scale, right)
    if not (math.isfinite(scaler.growth_factor) and scaler.growth_factor > 1):
        right = ABOVE(1)
        raise ConfigError("optimizer.scaler.growth_factor", scaler.growth_factor, right)
    if not 0 < scaler.backoff_factor < 1:
        right = BACKOFF_FACTOR()
        raise ConfigError("optimizer.scaler.backoff_factor", scaler.backoff_factor, right)
    at_least("optimizer.scaler.growth_interval", scaler.growth_interval, 1)


def _check_average(average: AverageConfig) -> None:
    if average.decay is not None and not 0 <= average.decay <= 1:
        raise ConfigError("optimizer.average.decay", average.decay, FROM_TO(least=0, most=1))
    at_least("optimizer.average.every", average.every, 1)
    at_least("optimizer.average.start", average.start, 1)
