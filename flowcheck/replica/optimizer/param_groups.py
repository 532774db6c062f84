"""Settings of torch's param_groups before each step: learning rate and everything else that a
schedule changes. The trainer's own scheduler runs over an optimizer of one-element stand-ins with
the same groups, so rates, momenta and betas have the trainer's exact bits."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch.optim import lr_scheduler

from flowcheck.config import OptimizerConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_optimizers import (
    NEEDS_METRIC,
    SCHEDULE_ARGUMENTS,
    SCHEDULE_UNKNOWN,
    SKIPS_OF_SEVERAL,
)
from flowcheck.findings.catalog.refused_user_code import (
    FACTOR_NOT_CALLABLE,
    RATE_NOT_FINITE,
)
from flowcheck.replica.optimizer.lr_schedule_dry_run import (
    ARGUMENTS,
    check_numbers,
    is_user_function,
)
from flowcheck.replica.optimizer.optimizer_builder import (
    FACTORY,
    BuiltOptimizers,
    ParameterNumber,
    build_optimizer,
)
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.user_code import load_callable, user_error_finding, user_error_text
from flowcheck.step_numbers import Step

KEY = "optimizer.schedule"
REFUSED = {"reducelronplateau": NEEDS_METRIC}
"""Lower-case names of torch.optim.lr_scheduler classes that a replica cannot follow, with the
reason."""

GroupSettings = dict[str, Any]
"""Settings of one param_group, without its parameters."""


class ParamGroupSettings:
    """The param_group settings of one job at any step. `events` counts how often the script
    reached its scheduler, once per optimizer step; `schedule_every` events make one
    scheduler.step()."""

    def __init__(self, config: OptimizerConfig, layout: Layout) -> None:
        """Raises ConfigError where torch or the user's code does not work out."""
        self._config, self._layout = config, layout
        self._begin()

    def _begin(self) -> None:
        config = self._config
        self.built = built = _stand_ins(config, self._layout)
        made = list(built.schedulers)
        for number, part in enumerate(config.per_optimizer):
            if part.schedule is not None:
                made[number] = _scheduler_of(part, built.optimizers[number])
        if len(made) > 1 and config.scaler is not None and not config.schedule_when_skipped:
            raise ConfigError("optimizer.schedule_when_skipped", False, SKIPS_OF_SEVERAL())
        for optimizer, scheduler in zip(built.optimizers, made, strict=True):
            if scheduler is not None:
                _check_kind(scheduler, config)
                optimizer._opt_called = True  # type: ignore[attr-defined]
        self._schedulers, self._steps = made, 0
        self._check()

    def settings_at(self, events: int) -> list[GroupSettings]:
        """[group] settings for the optimizer step after `events` events. Raises ConfigError where
        the user's schedule fails or gives a rate that is not a finite number."""
        self._to(events)
        groups = self.built.groups
        return [{k: _own(v) for k, v in group.items() if k != "params"} for group in groups]

    def rate(self, events: int) -> float:
        """Learning rate of the first group after `events` events. Raises as `settings_at`."""
        self._to(events)
        return float(self.built.groups[0]["lr"])

    def schedulers(self, events: int) -> list[dict[str, Any] | None]:
        """[optimizer] state_dict() of its scheduler after `events` events; None: no scheduler.
        Raises as `settings_at`."""
        self._to(events)
        return [None if own is None else own.state_dict() for own in self._schedulers]

    def _to(self, events: int) -> None:
        wanted = events // self._config.schedule_every
        if not any(self._schedulers):
            return
        if wanted < self._steps:
            self._begin()
        moved = wanted > self._steps
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            while self._steps < wanted:
                try:
                    for own in filter(None, self._schedulers):
                        own.step()
                except Exception as error:  # the user's code may raise anything
                    raise ConfigError(*self._named(), user_error_finding(error)) from error
                self._steps += 1
        if moved:
            self._check()

    def _check(self) -> None:
        for group in self.built.groups:
            try:
                good = math.isfinite(group["lr"])
            except TypeError:
                good = False
            if not good:
                right = RATE_NOT_FINITE(value=repr(group["lr"]), at=self._steps)
                raise ConfigError(*self._named(), right)

    def _named(self) -> tuple[str, object]:
        stated = [part.schedule for part in self._config.per_optimizer if part.schedule is not None]
        if stated:
            return KEY, ", ".join(stated)
        return FACTORY, self._config.factory


def scheduler_events(config: OptimizerConfig, step: Step, skipped: int) -> int:
    """Scheduler events in the first `step` steps of the job. skipped: steps that the loss scaler
    skipped."""
    return step if config.schedule_when_skipped else step - skipped


def optimizer_numbering(
    config: OptimizerConfig, layout: Layout
) -> tuple[ParameterNumber, ...] | None:
    """[parameter] its number in torch's state_dict(); None: registration order in a single group.
    Raises ConfigError as `build_optimizer`."""
    if config.factory is None and not config.groups and not config.each:
        return None
    return _stand_ins(config, layout).parameter_numbers


def _stand_ins(config: OptimizerConfig, layout: Layout) -> BuiltOptimizers:
    """An optimizer over tensors of one element: of as many dimensions, which Muon asks for; what a
    factory is given has the parameters' shapes, and no memory either."""
    tensors = []
    for p in layout.parameters:
        one = torch.zeros(1, dtype=getattr(torch, layout.dtype_of(p)))
        shape = p.shape if config.factory is not None else (1,) * len(p.shape)
        tensors.append(one.expand(shape) if shape else one[0].clone())
    built = build_optimizer(config, layout, tensors)
    for own in built.optimizers:
        own.state.clear()  # Adagrad makes its own at once, in the shapes above
    return built


def _scheduler_of(
    config: OptimizerConfig, optimizer: torch.optim.Optimizer
) -> lr_scheduler.LRScheduler:
    assert config.schedule is not None
    where, arguments = config.schedule, dict(config.schedule_arguments)
    if is_user_function(where):
        kind: Any = lr_scheduler.LambdaLR
        arguments = {"lr_lambda": _factor_of(where, arguments)}
    else:
        kind = _torchs(where)
        check_numbers(kind, arguments)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made: lr_scheduler.LRScheduler = kind(optimizer, **arguments)
    except Exception as error:  # wrong arguments, in as many ways as there are classes
        if is_user_function(where):
            raise ConfigError(KEY, where, user_error_finding(error)) from error
        right = SCHEDULE_ARGUMENTS(schedule=where, error=user_error_text(error))
        raise ConfigError(ARGUMENTS, config.schedule_arguments, right) from error
    return made


def _torchs(where: str) -> type[lr_scheduler.LRScheduler]:
    """Raises ConfigError if this torch has no class of the name, or it cannot be followed."""
    if where.lower() in REFUSED:
        raise ConfigError(KEY, where, REFUSED[where.lower()]())
    base = lr_scheduler.LRScheduler
    kinds = {k: v for k, v in vars(lr_scheduler).items() if isinstance(v, type) and k[0] != "_"}
    known = {k: v for k, v in kinds.items() if issubclass(v, base) and v is not base}
    if where in known:
        return known[where]
    named = sorted(name for name in known if name.lower() not in REFUSED)
    raise ConfigError(KEY, where, SCHEDULE_UNKNOWN(torch=str(torch.__version__), known=named))


def _factor_of(where: str, arguments: dict[str, Any]) -> Any:
    """What the factory at "package.module:function" or "file.py:function" returns: LambdaLR's
    function, or one for each group."""
    factory = load_callable(KEY, where)
    try:
        factor: object = factory(**arguments)
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise ConfigError(KEY, where, user_error_finding(error)) from error
    each = factor if isinstance(factor, list | tuple) else [factor]
    for own in each:
        if not callable(own):
            raise ConfigError(KEY, where, FACTOR_NOT_CALLABLE(repr(factor)))
        try:
            first = own(0)
        except Exception as error:
            raise ConfigError(KEY, where, user_error_finding(error)) from error
        if not isinstance(first, int | float) or not math.isfinite(first):
            raise ConfigError(KEY, where, RATE_NOT_FINITE(value=repr(first), at=0))
    return factor


def _check_kind(scheduler: lr_scheduler.LRScheduler, config: OptimizerConfig) -> None:
    """Raises ConfigError for one that steps by a metric, alone or within another."""
    own = (scheduler, *getattr(scheduler, "_schedulers", ()))
    for each in own:
        name = type(each).__name__
        if name.lower() in REFUSED:
            key = KEY if config.factory is None else FACTORY
            raise ConfigError(key, name, REFUSED[name.lower()]())


def _own(value: Any) -> Any:
    """A rate that is a tensor changes in place."""
    return value.clone() if isinstance(value, torch.Tensor) else value
