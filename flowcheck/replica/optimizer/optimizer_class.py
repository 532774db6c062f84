"""The trainer's class of torch.optim, by name, and the arguments it is made with."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

import torch

from flowcheck.config import CLASS_ARGUMENTS, GroupConfig, OptimizerConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_optimizers import (
    CLASS_HAS_NO_SETTING,
    NEAREST_CLASS,
    NO_IMPLEMENTATION,
    NOT_AN_ARGUMENT,
    SAID_BY_IMPLEMENTATION,
    STATED_ALREADY,
    UNKNOWN_CLASS,
)
from flowcheck.optimizer_rules.optimizer_rule import OptimizerRule
from flowcheck.optimizer_rules.torch_optimizers import UNLISTED, rule_named
from flowcheck.replica.torch_without_compiler import skip_compiler_import

skip_compiler_import()

TORCH_NAMES = {"learning_rate": "lr"}
"""Keys of [optimizer] -> names of torch's arguments, where they differ."""
IMPLEMENTATION_FLAGS = ("foreach", "fused")
"""torch's arguments that the key `implementation` sets."""


def class_of(config: OptimizerConfig) -> type[torch.optim.Optimizer]:
    """The torch.optim class of the job's optimizer. Raises ConfigError if this torch version does
    not have it, or if it cannot be followed."""
    name = config.name
    if refused := rule_named(name).refused:
        raise ConfigError("optimizer.name", config.name, refused)
    made = torch_optimizer_classes()
    if name not in made:
        known = sorted(key for key in made if not rule_named(key).refused)
        near = difflib.get_close_matches(name.lower(), known, n=1)
        right = UNKNOWN_CLASS(
            torch=str(torch.__version__),
            name=name,
            nearest=NEAREST_CLASS(near[0]) if near else None,
            known=known,
        )
        raise ConfigError("optimizer.name", config.name, right)
    return made[name]


def torch_optimizer_classes() -> dict[str, type[torch.optim.Optimizer]]:
    """All optimizer classes of torch.optim by lower-case name."""
    base = torch.optim.Optimizer
    return {
        key.lower(): kind
        for key, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, base) and kind is not base
    }


def rule_of_class(kind: type) -> OptimizerRule:
    """The rule of torch's own class `kind`. For a subclass from a training script the rule of an
    unknown optimizer, because its step may differ."""
    name = kind.__name__.lower()
    return rule_named(name) if torch_optimizer_classes().get(name) is kind else UNLISTED


def constructor_arguments(config: OptimizerConfig) -> dict[str, Any]:
    """Keyword arguments for the optimizer class, without those of groups. Raises ConfigError for
    an argument that it does not have."""
    takes = _takes(config)
    chosen = {key: config.kernels == key for key in IMPLEMENTATION_FLAGS}
    for key, wanted in chosen.items():
        if wanted and key not in takes:
            right = NO_IMPLEMENTATION(config.name)
            raise ConfigError("optimizer.implementation", config.kernels, right)
    made = {key: wanted for key, wanted in chosen.items() if key in takes}
    return made | _stated(config, takes, "optimizer")


def group_arguments(config: OptimizerConfig, group: GroupConfig) -> dict[str, Any]:
    """Settings of one param_group. Raises ConfigError as `constructor_arguments`."""
    return _stated(group, _takes(config), "optimizer.groups")


def _takes(config: OptimizerConfig) -> frozenset[str]:
    """torch's names of the arguments that the class has, without the parameters."""
    signature = inspect.signature(class_of(config).__init__).parameters
    return frozenset(list(signature)[2:])


def _stated(
    where: OptimizerConfig | GroupConfig, takes: frozenset[str], table: str
) -> dict[str, Any]:
    own = {key: getattr(where, key) for key in CLASS_ARGUMENTS}
    # A manifest of old states what the class does not have: torch's defaults then.
    made = {
        TORCH_NAMES.get(key, key): value
        for key, value in own.items()
        if value is not None and TORCH_NAMES.get(key, key) in takes
    }
    for key, value in where.arguments.items():
        if key in IMPLEMENTATION_FLAGS:
            raise ConfigError(f"{table}.arguments", key, SAID_BY_IMPLEMENTATION())
        if key not in takes:
            raise ConfigError(f"{table}.arguments", key, NOT_AN_ARGUMENT(sorted(takes)))
        if key in made:
            ours = next(mine for mine in CLASS_ARGUMENTS if TORCH_NAMES.get(mine, mine) == key)
            raise ConfigError(f"{table}.arguments", key, STATED_ALREADY(f"{table}.{ours}"))
        made[key] = tuple(value) if isinstance(value, list) else value
    return made


def check_keys(config: OptimizerConfig) -> None:
    """Raises ConfigError for a key of [optimizer] that the class does not have; a manifest of an
    old checkpoint may contain one."""
    takes = _takes(config)
    for where, table in ((config, "optimizer"), *((g, "optimizer.groups") for g in config.groups)):
        for key in CLASS_ARGUMENTS:
            value = getattr(where, key)
            if value and TORCH_NAMES.get(key, key) not in takes:
                right = CLASS_HAS_NO_SETTING(optimizer=config.name, setting=key)
                raise ConfigError(f"{table}.{key}", value, right)
