"""Settings in a trainer's own file against the stated ones: torch writes the files, and goes on
from those that were filled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.formatted import fill
from support.refused_as import Like, like, refused_as
from support.scripted import Mixed, Script, flat, replica_of
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

from flowcheck.config import GroupConfig, OptimizerConfig
from flowcheck.findings.catalog.trainer_settings import (
    KEYS_OF,
    KEYS_WITHOUT,
    OTHER_CLASS,
    SETTING_DIFFERS,
)
from flowcheck.ops.restore.step_lookup import FoundStep
from flowcheck.replica.checkpoint import step_snapshot
from flowcheck.vault.audit.param_group_check import check_settings
from flowcheck.vault.checkpoint_formats.checkpoint_io import load_template

BEFORE, STEPS = 3, 7
ADAMW = OptimizerConfig(name="adamw", learning_rate=0.01)
Make = Callable[[nn.Module], torch.optim.Optimizer]


def adamw(net: nn.Module, **settings: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), **{"lr": 0.01, **settings})


def by_shape(net: nn.Module, *, first: float, second: float) -> torch.optim.Optimizer:
    own = list(net.parameters())
    groups = [
        {"params": [p for p in own if p.dim() >= 2], "weight_decay": first},
        {"params": [p for p in own if p.dim() < 2], "weight_decay": second},
    ]
    return torch.optim.AdamW(groups, lr=0.01)


def saved(net: nn.Module, optimizer: torch.optim.Optimizer, step: int, path: Path) -> Path:
    tree = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(tree, path)
    return path


def of_another(make: Make, path: Path) -> Path:
    """The file of a trainer that took no step yet."""
    net = Mixed()
    return saved(net, make(net), 0, path)


def followed(script: Script, config: OptimizerConfig, folder: Path, steps: int) -> FoundStep:
    """What a replica holds after some more of its steps."""
    replica = replica_of(script, config, folder / "state")
    for step in range(1, steps + 1):
        replica.apply(step, script.backward())
        script.step()
    replica.close()
    taken = step_snapshot.copy_snapshot(folder / "state", config)
    return FoundStep(taken, "the replica")


def differs(group: int = 0, **values: str) -> Like:
    return like(SETTING_DIFFERS, group=group, **values)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda net: torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
            [
                like(
                    OTHER_CLASS,
                    group=0,
                    keys=like(
                        KEYS_OF,
                        values=("momentum = 0.9", "dampening = 0", "nesterov = False"),
                        classes="SGD",
                    ),
                ),
                like(KEYS_WITHOUT, missing=("betas", "eps")),
            ],
        ),
        (
            lambda net: torch.optim.RMSprop(net.parameters()),
            [
                like(
                    KEYS_OF,
                    values=("momentum = 0", "alpha = 0.99", "centered = False"),
                    classes="RMSprop",
                    stated="AdamW",
                )
            ],
        ),
        (
            lambda net: adamw(net, betas=(0.8, 0.9), weight_decay=0.3),
            [
                differs(setting="betas", file="(0.8, 0.9)", stated="(0.9, 0.999)"),
                differs(file="0.3", stated="0.01"),
            ],
        ),
        (lambda net: adamw(net, eps=1e-6), [differs(setting="eps", file="1e-06", stated="1e-08")]),
        (
            lambda net: adamw(net, maximize=True),
            [differs(setting="maximize", file="True", stated="False")],
        ),
        (lambda net: adamw(net, lr=0.02), [differs(setting="lr", file="0.02", stated="0.01")]),
        (
            lambda net: torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=0.01),
            [differs(setting="decoupled_weight_decay", file="False", stated="True")],
        ),
    ],
)
def test_a_template_of_other_settings_is_refused_with_each_key_and_writes_nothing(
    make: Make, told: list[Like], tmp_path: Path
) -> None:
    found = followed(Script(adamw), ADAMW, tmp_path, 2)
    other = of_another(make, tmp_path / "other.pt")
    for one in told:
        with refused_as(one):
            fill(found, other, tmp_path / "out.pt")
    assert not (tmp_path / "out.pt").exists()
    template = load_template(other, found.snapshot.layout, found.names)
    with refused_as(told[0], file=other):  # as a base is taken
        check_settings(template, ADAMW, found.snapshot.layout, str(other))


def test_groups_whose_settings_are_swapped_are_refused_by_their_number(tmp_path: Path) -> None:
    def make(net: nn.Module) -> torch.optim.Optimizer:
        return by_shape(net, first=0.1, second=0.0)

    config = OptimizerConfig(
        name="adamw",
        learning_rate=0.01,
        groups=(
            GroupConfig(parameters=("ndim>=2",), weight_decay=0.1),
            GroupConfig(parameters="rest", weight_decay=0.0),
        ),
    )
    found = followed(Script(make), config, tmp_path, 2)
    right = of_another(make, tmp_path / "right.pt")
    assert fill(found, right, tmp_path / "out.pt").step == 2
    other = of_another(lambda net: by_shape(net, first=0.1, second=0.1), tmp_path / "other.pt")
    with refused_as(SETTING_DIFFERS, group=1, setting="weight_decay", file="0.1", stated="0.0"):
        fill(found, other, tmp_path / "out.pt")


def plain(groups: list[dict[str, Any]]) -> None:
    """Another implementation's and an older torch's, with what a script adds of its own."""
    for group in groups:
        for key in ("decoupled_weight_decay", "maximize", "amsgrad"):
            del group[key]
        group |= {"foreach": True, "capturable": True, "betas": list(group["betas"])}
        group |= {"name": "all", "lr_scale": 0.5, "alpha": 3, "lr": torch.tensor(group["lr"])}
        group["weight_decay"] = 0.1 * 3  # for 0.3: not the same number in binary


@pytest.mark.parametrize("at", [0, BEFORE])
def test_another_implementation_and_a_scripts_own_keys_contradict_nothing(
    at: int, tmp_path: Path
) -> None:
    config = OptimizerConfig(name="adamw", learning_rate=0.01, weight_decay=0.3)
    script = Script(lambda net: adamw(net, weight_decay=0.3))
    replica = replica_of(script, config, tmp_path / "state")
    for step in range(1, STEPS + 1):
        if step == at + 1:
            early = copy.deepcopy(script.optimizer.state_dict())
            plain(early["param_groups"])
            tree = {"model": script.net.state_dict(), "optimizer": early, "step": at}
            torch.save(tree, tmp_path / "early.pt")
        replica.apply(step, script.backward())
        script.step()
    replica.close()
    taken = step_snapshot.copy_snapshot(tmp_path / "state", config)
    found = FoundStep(taken, "the replica")
    fill(found, tmp_path / "early.pt", tmp_path / "out.pt")
    tree = torch.load(tmp_path / "out.pt", weights_only=True)
    (group,) = tree["optimizer"]["param_groups"]
    assert (group["name"], group["lr_scale"], group["alpha"]) == ("all", 0.5, 3)
    assert (group["foreach"], group["lr"]) == (True, torch.tensor(0.01))
    group |= {"foreach": False, "capturable": False, "weight_decay": 0.3, "lr": 0.01}
    goes_on(script, tree)


def goes_on(script: Script, tree: dict[str, Any]) -> None:
    """torch takes more steps from the file, as the trainer itself does."""
    net = Mixed()
    net.load_state_dict(tree["model"])
    optimizer = adamw(net)
    optimizer.load_state_dict(tree["optimizer"])
    for _ in range(3):
        script.backward()
        for one, other in zip(net.parameters(), script.parameters, strict=True):
            one.grad = other.grad.clone() if other.grad is not None else None
        optimizer.step()
        script.step()
    assert flat(net.parameters()) == flat(script.parameters)


ONE_CYCLE: dict[str, Any] = {"max_lr": 0.1, "total_steps": 20}
CYCLING = OptimizerConfig(
    name="adamw", learning_rate=0.01, schedule="OneCycleLR", schedule_arguments=ONE_CYCLE
)


@pytest.mark.parametrize("at", [0, BEFORE])
def test_what_a_schedule_changes_is_no_contradiction_and_its_first_rate_is(
    at: int, tmp_path: Path
) -> None:
    script = Script(adamw)
    bare = of_another(adamw, tmp_path / "bare.pt")  # written before the schedule was made
    scheduler = OneCycleLR(script.optimizer, **ONE_CYCLE)
    script.step_behind = scheduler.step
    replica = replica_of(script, CYCLING, tmp_path / "state")
    for step in range(1, STEPS + 1):
        if step == at + 1:
            early = saved(script.net, script.optimizer, at, tmp_path / "early.pt")
        replica.apply(step, script.backward())
        script.step()
    replica.close()
    taken = step_snapshot.copy_snapshot(tmp_path / "state", CYCLING)
    found = FoundStep(taken, "the replica")
    for template in (early, bare):
        fill(found, template, tmp_path / "out.pt")
        (own,) = torch.load(tmp_path / "out.pt", weights_only=True)["optimizer"]["param_groups"]
        now = script.optimizer.state_dict()["param_groups"][0]
        assert (own["lr"], own["betas"]) == (now["lr"], now["betas"])
    tree = torch.load(early, weights_only=True)
    tree["optimizer"]["param_groups"][0]["initial_lr"] = 0.5
    torch.save(tree, early)
    with refused_as(SETTING_DIFFERS, group=0, setting="initial_lr", file="0.5", stated="0.004"):
        fill(found, early, tmp_path / "out.pt")


def test_a_rate_that_is_warmed_up_or_set_by_hand_is_left_alone(tmp_path: Path) -> None:
    """Where the job states no schedule: the first rate of a file with one tells nothing of it."""

    def warm(net: nn.Module) -> torch.optim.Optimizer:
        made = adamw(net)
        LambdaLR(made, lambda step: step / 10)
        return made

    script = Script(adamw)
    found = followed(script, ADAMW, tmp_path, 2)
    later = saved(script.net, script.optimizer, 2, tmp_path / "later.pt")
    tree = torch.load(later, weights_only=True)
    tree["optimizer"]["param_groups"][0]["lr"] = 0.123
    torch.save(tree, later)
    for template in (later, of_another(warm, tmp_path / "warm.pt")):
        fill(found, template, tmp_path / "out.pt")
        (own,) = torch.load(tmp_path / "out.pt", weights_only=True)["optimizer"]["param_groups"]
        assert own["lr"] == 0.01
