"""A step as the trainer's own torch objects would hold it (state_dicts): what every format
writes.

A replica keeps flat arrays; trainers load state dictionaries. Nothing that writes files looks at
the former, and nothing that takes steps at the latter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from flowcheck.config import OptimizerConfig
from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint.frozen_and_buffers import NO_FROZEN_OR_BUFFERS, FrozenAndBuffers
from flowcheck.replica.checkpoint.step_snapshot import Snapshot
from flowcheck.replica.optimizer.master_weights import stepped_layout
from flowcheck.replica.optimizer.optimizer_class import IMPLEMENTATION_FLAGS
from flowcheck.replica.optimizer.param_groups import ParamGroupSettings, scheduler_events
from flowcheck.replica.taint import TaintedRanges
from flowcheck.step_numbers import Step


@dataclass(frozen=True, slots=True)
class SeveralOptimizers:
    """How a script keeps what belongs to each of its optimizers."""

    groups: tuple[int, ...]
    """[optimizer] how many parameter groups it has."""
    keys: tuple[str, ...] = ()
    """[optimizer] of its state in a dictionary; (): a list."""

    def split_by_optimizer(self, optimizer: dict[str, Any]) -> Any:
        """[optimizer] the state_dict() of each, in a list or by its key. optimizer: of all, whose
        numbers count on from one to the next, and whose groups follow each other."""
        found, group, first = [], 0, 0
        for count in self.groups:
            own = optimizer["param_groups"][group : group + count]
            size = sum(len(each["params"]) for each in own)
            groups = [{**each, "params": [n - first for n in each["params"]]} for each in own]
            state = {
                n - first: kept
                for n, kept in optimizer["state"].items()
                if first <= n < first + size
            }
            found.append({"state": state, "param_groups": groups})
            group, first = group + count, first + size
        return self.in_file_shape(found)

    def in_file_shape(self, parts: Sequence[Any]) -> Any:
        """[optimizer] of any kind, likewise."""
        return dict(zip(self.keys, parts, strict=True)) if self.keys else list(parts)


@dataclass(frozen=True, slots=True)
class TrainerState:
    """One step. Tensors have the trainer's strides and may share memory with the snapshot: they are
    not to be written."""

    step: Step
    """Steps of the stream: the optimizer's, and those that a loss scale skipped."""
    digest: str
    """Of the replica's state at this step (replica/state_digest.py)."""
    optimizer_config: OptimizerConfig
    """What applied the steps."""
    model: dict[str, torch.Tensor]
    """Parameters that take steps by the trainer's names, registration order, as the module holds
    them."""
    optimizer: dict[str, Any] | None
    """torch.optim.Optimizer.state_dict(): {"state": {number: {name: tensor}}, "param_groups"}, in
    torch's own order of groups; None where the wire carries no optimizer state. Of several all
    groups, numbers counted on from one to the next."""
    order: tuple[int, ...] = ()
    """[parameter] the optimizer's number of it; -1: in no group. (): as they are registered."""
    several_optimizers: SeveralOptimizers | None = None
    """Which groups are of which of several optimizers; None: there is one."""
    scheduler: Any = None
    """The scheduler's own state_dict(); None without one. Of several optimizers as
    `several_optimizers` keeps those of each."""
    scaler: dict[str, Any] | None = None
    """torch.amp.GradScaler.state_dict()."""
    masters: dict[str, torch.Tensor] | None = None
    """What the optimizer steps in place of the parameters, by the names of `model`."""
    averages: dict[str, torch.Tensor] | None = None
    """Moving averages of the parameters, by the names of `model`."""
    average_updates: int = 0
    """How often those were updated: AveragedModel's n_averaged."""
    optimizer_steps: int = 0
    """Steps of the optimizer alone: what its own counters show."""
    older: dict[str, int] = field(default_factory=dict)
    """Parameters that are of another step, and which."""
    tainted: TaintedRanges = field(default_factory=dict)
    """Elements of parameters and of their optimizer state that rest on bytes which never came."""
    frozen_and_buffers: FrozenAndBuffers = NO_FROZEN_OR_BUFFERS
    """The rest of the module, where it is stated."""
    evidence: tuple[Finding, ...] = ()
    assumed: tuple[Finding, ...] = ()
    """What no observation could have contradicted."""

    @property
    def optimizers(self) -> Any:
        """`optimizer` as the trainer's own file has it: of several a list or a dictionary."""
        if self.optimizer is None or self.several_optimizers is None:
            return self.optimizer
        return self.several_optimizers.split_by_optimizer(self.optimizer)


def trainer_state(
    snapshot: Snapshot, *, evidence: tuple[Finding, ...] = (), assumed: tuple[Finding, ...] = ()
) -> TrainerState:
    """The step that a snapshot holds. Raises ConfigError where the user's schedule or factory
    cannot be had."""
    config, more = snapshot.optimizer, snapshot.optional_state
    optimizer, scheduler, order, among = None, None, tuple[int, ...](), None
    if not snapshot.parameters_only:
        settings = ParamGroupSettings(config, stepped_layout(config, snapshot.layout))
        optimizer, order = _optimizer(snapshot, settings), settings.built.order
        if config.takes_frozen and snapshot.frozen_and_buffers.frozen:
            optimizer, order = _with_frozen(snapshot, optimizer)
        among = _among(settings)
        schedulers = settings.schedulers(scheduler_events(config, snapshot.step, more.skipped))
        scheduler = schedulers[0]
        if among is not None:
            scheduler = among.in_file_shape(schedulers) if any(schedulers) else None
    return TrainerState(
        step=snapshot.step,
        digest=snapshot.digest,
        optimizer_config=config,
        model=dict(snapshot.parameters),
        optimizer=optimizer,
        order=order,
        several_optimizers=among,
        scheduler=scheduler,
        scaler=_scaler(snapshot),
        masters=more.masters,
        averages=more.averages,
        average_updates=more.average_updates,
        optimizer_steps=snapshot.step - more.skipped,
        older=snapshot.older,
        tainted=snapshot.tainted,
        frozen_and_buffers=snapshot.frozen_and_buffers,
        evidence=evidence,
        assumed=assumed,
    )


def _among(settings: ParamGroupSettings) -> SeveralOptimizers | None:
    built = settings.built
    if len(built.optimizers) == 1:
        return None
    return SeveralOptimizers(tuple(len(own.param_groups) for own in built.optimizers), built.keys)


def _optimizer(snapshot: Snapshot, settings: ParamGroupSettings) -> dict[str, Any]:
    """State and groups as they stand before the next step."""
    built = settings.built
    at = sorted((number, i) for i, number in enumerate(built.order) if number >= 0)
    state = {number: dict(snapshot.states[i]) for number, i in at if snapshot.states[i]}
    events = scheduler_events(snapshot.optimizer, snapshot.step, snapshot.optional_state.skipped)
    groups = settings.settings_at(events)
    for place, group in enumerate(groups):
        group["params"] = [number for number, i in at if built.group_of[i] == place]
    if snapshot.optimizer.factory is None:
        parts = snapshot.optimizer.per_optimizer
        made = zip(parts, built.optimizers, strict=True)
        of_group = [part for part, own in made for _ in own.param_groups]
        for part, group in zip(of_group, groups, strict=True):
            group.update(_kernels(part, group))
    return {"state": state, "param_groups": groups}


def _kernels(part: OptimizerConfig, group: dict[str, Any]) -> dict[str, bool | None]:
    """What torch's group says of its kernels where the script says no more than is stated: None is
    torch's own choice on the device where the file is loaded, which nothing here is to pin."""
    stated = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
    told = stated.get(part.implementation or "", {})
    return {key: told.get(key) for key in IMPLEMENTATION_FLAGS if key in group}


def _with_frozen(
    snapshot: Snapshot, optimizer: dict[str, Any]
) -> tuple[dict[str, Any], tuple[int, ...]]:
    """The same state where the trainer's optimizer was given frozen parameters as well: torch
    numbers all that it was given, and keeps no state of those without a gradient."""
    at = {name: number for number, name in enumerate(snapshot.frozen_and_buffers.registered)}
    order = tuple(at[name] for name in snapshot.parameters)
    state = {order[number]: own for number, own in optimizer["state"].items()}
    (group,) = optimizer["param_groups"]
    whole = {"state": state, "param_groups": [{**group, "params": list(range(len(at)))}]}
    return whole, order


def _scaler(snapshot: Snapshot) -> dict[str, Any] | None:
    stated, held = snapshot.optimizer.scaler, snapshot.optional_state.scaler
    if stated is None:
        return None
    return {
        "scale": held["scale"],
        "growth_factor": stated.growth_factor,
        "backoff_factor": stated.backoff_factor,
        "growth_interval": stated.growth_interval,
        "_growth_tracker": int(held["growth_tracker"]),
    }
