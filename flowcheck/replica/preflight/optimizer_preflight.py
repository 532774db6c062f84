"""Checks the [optimizer] table against torch and the user's code before anything starts."""

from __future__ import annotations

import msgspec

from flowcheck.config import OptimizerConfig
from flowcheck.errors import ConfigError
from flowcheck.replica.optimizer.param_group_patterns import REST
from flowcheck.replica.param_layout import Layout


def check_optimizer_name(key: str, config: OptimizerConfig) -> None:
    """Raises ConfigError for a name of no class that can be followed; key: what it was given as."""
    if config.rule.known_without_torch:
        return
    from flowcheck.replica.optimizer.optimizer_class import class_of

    try:
        class_of(config)
    except ConfigError as error:
        raise ConfigError(key, config.name, error.right) from error


def check_optimizer(config: OptimizerConfig, layout: Layout | None = None) -> None:
    """layout: of the job's parameters, where a stated model tells them; else what depends on them
    is checked once the job is learned. Raises ConfigError with the key."""
    plain = config.rule.known_without_torch and not (config.arguments or config.groups)
    parts = config.parts
    if not config.computes_steps or (plain and config.schedule is None and layout is None):
        return  # checked without torch, which takes seconds to load
    from flowcheck.replica.optimizer.lr_schedule_dry_run import try_schedule
    from flowcheck.replica.optimizer.master_weights import stepped_layout
    from flowcheck.replica.optimizer.optimizer_class import (
        check_keys,
        constructor_arguments,
        group_arguments,
    )
    from flowcheck.replica.optimizer.optimizer_state_shapes import optimizer_state_shapes
    from flowcheck.replica.optimizer.param_groups import ParamGroupSettings
    from flowcheck.replica.preflight.custom_optimizer_trial import check_determinism

    if config.factory is None:
        for part in parts:
            check_keys(part)
            constructor_arguments(part)
            for group in part.groups:
                group_arguments(part, group)
    if layout is not None:
        optimizer_state_shapes(config, stepped_layout(config, layout))
        check_determinism(config, stepped_layout(config, layout))
        try_schedule(config, ParamGroupSettings(config, layout))
    elif config.factory is None:
        for part in parts:
            alone = msgspec.structs.replace(part, groups=(), master_dtype=None, scaler=None)
            optimizer_state_shapes(alone, Layout.of_shapes([(2, 2)]))
            _check_schedule(part)


def _check_schedule(part: OptimizerConfig) -> None:
    """Held against stand-ins, a parameter of each group that is stated: schedules may have a value
    for each. Whether parameters are left for one more group shows with the model alone."""
    from flowcheck.replica.optimizer.lr_schedule_dry_run import try_schedule
    from flowcheck.replica.optimizer.param_groups import ParamGroupSettings

    stated = [
        msgspec.structs.replace(group, parameters=(str(number),))
        for number, group in enumerate(part.groups)
    ]
    alone = msgspec.structs.replace(part, groups=tuple(stated), master_dtype=None, scaler=None)
    counts = [len(stated)] if stated else []
    if not any(group.parameters == REST for group in part.groups):
        counts.append(len(stated) + 1)
    refused: list[ConfigError] = []
    for count in counts:
        try:
            try_schedule(alone, ParamGroupSettings(alone, Layout.of_shapes([(2, 2)] * count)))
            return
        except ConfigError as error:
            refused.append(error)
    raise refused[0]
