"""Every schedule of torch's, by class or by the script's function: rates, momenta, betas."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from support.refused_as import Wanted, like, refused_as
from support.scripted import Script, replica_of, same
from torch.optim import lr_scheduler

from flowcheck.config import GroupConfig, OptimizerConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_optimizers import (
    CANNOT_STEP,
    CLASS_HAS_NO_SETTING,
    EVALUATES_AGAIN,
    NEEDS_METRIC,
    NO_IMPLEMENTATION,
    NOT_AN_ARGUMENT,
    SAID_BY_IMPLEMENTATION,
    SCHEDULE_ARGUMENTS,
    SCHEDULE_UNKNOWN,
    SPARSE_GRADIENTS,
    STATED_ALREADY,
    TAKES_A_NUMBER,
    TORCH_REFUSES,
    UNKNOWN_CLASS,
)
from flowcheck.findings.catalog.refused_user_code import RAISED
from flowcheck.findings.finding import Entry
from flowcheck.replica.checkpoint import step_snapshot
from flowcheck.replica.checkpoint.trainer_state import trainer_state
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.optimizer.param_groups import ParamGroupSettings
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.preflight.optimizer_preflight import check_optimizer

STEPS = 40
CLASSES: dict[str, dict[str, Any]] = {
    "StepLR": {"step_size": 7, "gamma": 0.5},
    "MultiStepLR": {"milestones": [3, 9, 30], "gamma": 0.3},
    "ConstantLR": {"factor": 0.25, "total_iters": 9},
    "LinearLR": {"start_factor": 0.1, "total_iters": 11},
    "ExponentialLR": {"gamma": 0.97},
    "PolynomialLR": {"total_iters": 40, "power": 1.5},
    "CosineAnnealingLR": {"T_max": 13, "eta_min": 1e-4},
    "CosineAnnealingWarmRestarts": {"T_0": 5, "T_mult": 2},
    "CyclicLR": {"base_lr": 1e-3, "max_lr": 0.1, "step_size_up": 8, "mode": "exp_range"},
    "OneCycleLR": {"max_lr": 0.1, "total_steps": 70},
}
FUNCTIONS = """
from torch.optim.lr_scheduler import ChainedScheduler, CosineAnnealingLR, LinearLR, SequentialLR
import torch


def each():
    return [lambda step: 0.9 ** step, lambda step: 1 / (step + 1)]


def sequential(named):
    made = torch.optim.SGD([p for _, p in named], lr=0.1, momentum=0.9)
    parts = [LinearLR(made, 0.1, total_iters=5), CosineAnnealingLR(made, 30)]
    return made, SequentialLR(made, parts, [5])


def chained(named):
    made = torch.optim.SGD([p for _, p in named], lr=0.1, momentum=0.9)
    return made, ChainedScheduler([LinearLR(made, 0.1, total_iters=5), CosineAnnealingLR(made, 30)])
"""


def two_groups(kind: type[torch.optim.Optimizer], more: dict[str, Any]) -> Any:
    def make(net: torch.nn.Module) -> torch.optim.Optimizer:
        own = list(net.parameters())
        groups = [{"params": own[3:]}, {"params": own[:3], "lr": 0.01}]
        return kind(groups, lr=0.05, **more)

    return make


# Each class once by day, with one rule or the other by turns.
BY_TURNS = [
    pytest.param(name, rule, marks=() if (at + turn) % 2 else pytest.mark.nightly)
    for at, name in enumerate(CLASSES)
    for turn, rule in enumerate(("SGD", "AdamW"))
]


@pytest.mark.parametrize(("name", "rule"), BY_TURNS)
def test_a_schedule_by_its_class_steps_as_torchs_does(name: str, rule: str, tmp_path: Path) -> None:
    more = {"momentum": 0.8} if rule == "SGD" else {}
    script = Script(two_groups(getattr(torch.optim, rule), more))
    scheduler = getattr(lr_scheduler, name)(script.optimizer, **CLASSES[name])
    config = OptimizerConfig(
        name=rule,
        learning_rate=0.05,
        groups=(
            GroupConfig(parameters="rest"),
            GroupConfig(parameters=("0-2",), learning_rate=0.01),
        ),
        schedule=name,
        schedule_arguments=CLASSES[name],
        schedule_every=2,
        **more,  # type: ignore[arg-type]
    )
    replica = replica_of(script, config, tmp_path / "state")
    for step in range(1, STEPS + 1):
        replica.apply(step, script.backward())
        script.optimizer.step()
        if step % 2 == 0:
            scheduler.step()
        same(replica, script)
        if step == 25:
            replica.close()
            replica = Replica.open(tmp_path / "state", config)
    replica.close()
    found = trainer_state(step_snapshot.copy_snapshot(tmp_path / "state", config))
    assert found.optimizer is not None and found.scheduler is not None
    theirs = script.optimizer.state_dict()["param_groups"]
    unlike = ("foreach", "fused")
    for mine, own in zip(found.optimizer["param_groups"], theirs, strict=True):
        assert {k: v for k, v in mine.items() if k not in unlike} == {
            k: v for k, v in own.items() if k not in unlike
        }
    plain = {k: v for k, v in scheduler.state_dict().items() if "fn" not in k}
    assert {k: v for k, v in found.scheduler.items() if "fn" not in k} == plain


@pytest.mark.parametrize("kind", ["sequential", "chained"])
def test_schedules_of_schedules_come_from_the_scripts_function(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(FUNCTIONS)
    space: dict[str, Any] = {}
    exec(FUNCTIONS, space)
    made: list[Any] = []

    def make(net: torch.nn.Module) -> torch.optim.Optimizer:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made.extend(space[kind](list(net.named_parameters())))
        optimizer: torch.optim.Optimizer = made[0]
        return optimizer

    script = Script(make)
    config = OptimizerConfig(factory=f"{file}:{kind}")
    replica = replica_of(script, config, tmp_path / "state")
    for step in range(1, STEPS + 1):
        replica.apply(step, script.backward())
        script.step()
        made[1].step()
        same(replica, script)
    replica.close()


def test_lambda_may_be_one_for_each_group(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(FUNCTIONS)
    script = Script(two_groups(torch.optim.SGD, {}))
    functions = [lambda step: 0.9**step, lambda step: 1 / (step + 1)]
    script.step_behind = lr_scheduler.LambdaLR(script.optimizer, functions).step
    config = OptimizerConfig(
        name="sgd",
        learning_rate=0.05,
        groups=(
            GroupConfig(parameters="rest"),
            GroupConfig(parameters=("0-2",), learning_rate=0.01),
        ),
        schedule=f"{file}:each",
    )
    replica = replica_of(script, config, tmp_path / "state")
    for step in range(1, 20):
        replica.apply(step, script.backward())
        script.step()
        same(replica, script)
    replica.close()


def test_settings_of_an_earlier_step_are_those_it_had() -> None:
    layout = Layout.of_shapes([(2, 2), (2,)])
    stated = {"max_lr": 0.1, "total_steps": 70}
    config = OptimizerConfig(
        name="adam", learning_rate=0.1, schedule="OneCycleLR", schedule_arguments=stated
    )
    settings = ParamGroupSettings(config, layout)
    forward = [settings.settings_at(events) for events in range(60)]
    assert len({(group["lr"], group["betas"]) for (group,) in forward}) > 50
    assert [settings.settings_at(events) for events in (59, 3, 40, 0)] == [
        forward[events] for events in (59, 3, 40, 0)
    ]
    assert settings.settings_at(69) != settings.settings_at(68)
    with refused_as(
        RAISED,
        kind=ConfigError,
        key="optimizer.schedule",
        error=re.compile("Tried to step 71 times"),
    ):
        settings.settings_at(71)


SCHEDULERS = re.compile("ChainedScheduler', 'ConstantLR', 'Cosine")
"""How those that torch has begin."""


@pytest.mark.parametrize(
    ("schedule", "arguments", "wanted"),
    [
        ("ReduceLROnPlateau", {}, NEEDS_METRIC),
        ("OneCycleLR", {"max_lr": 0.1}, SCHEDULE_ARGUMENTS),
        ("StepLR", {"step": 3}, SCHEDULE_ARGUMENTS),
        ("StepLr", {"step_size": 3}, SCHEDULE_UNKNOWN),
        ("LRScheduler", {}, SCHEDULE_UNKNOWN),
        ("Tensor", {}, like(SCHEDULE_UNKNOWN, known=SCHEDULERS)),
        ("NoSuchLR", {}, like(SCHEDULE_UNKNOWN, known=SCHEDULERS)),
        (
            "StepLR",
            {"step_size": "a"},
            like(
                TAKES_A_NUMBER,
                key="optimizer.schedule_arguments.step_size",
                value="'a'",
                schedule="StepLR",
            ),
        ),
        (
            "StepLR",
            {"step_size": 1 << 40, "gamma": "a"},
            like(TAKES_A_NUMBER, argument="gamma"),
        ),
        (
            "CosineAnnealingLR",
            {"T_max": 0},
            like(
                CANNOT_STEP,
                key="optimizer.schedule_arguments",
                value="{'T_max': 0}",
                schedules=("CosineAnnealingLR",),
            ),
        ),
        (
            "ExponentialLR",
            {"gamma": 1e300},
            like(CANNOT_STEP, step=2),
        ),
        (
            "CyclicLR",
            {"base_lr": 0.1, "max_lr": 1.0, "step_size_up": 0},
            SCHEDULE_ARGUMENTS,
        ),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_before_anything_starts(
    schedule: str, arguments: dict[str, Any], wanted: Wanted
) -> None:
    config = OptimizerConfig(
        name="sgd", learning_rate=0.1, schedule=schedule, schedule_arguments=arguments
    )
    with refused_as(wanted, kind=ConfigError) as refused:
        check_optimizer(config)
    assert refused.value.key.startswith("optimizer.schedule")


def test_a_schedule_that_ends_with_its_training_is_none_that_cannot_be_stepped(
    tmp_path: Path,
) -> None:
    (tmp_path / "own.py").write_text("def make():\n    return [1.0, 0.5].__getitem__\n")
    for schedule, arguments in (
        ("OneCycleLR", {"max_lr": 0.1, "total_steps": 2}),
        (f"{tmp_path}/own.py:make", {}),
    ):
        stated = {"schedule": schedule, "schedule_arguments": arguments}
        check_optimizer(OptimizerConfig(name="sgd", learning_rate=0.1, momentum=0.9, **stated))


@pytest.mark.parametrize(
    ("stated", "key", "entry"),
    [
        ({"name": "lion"}, "optimizer.name", UNKNOWN_CLASS),
        ({"name": "LBFGS"}, "optimizer.name", EVALUATES_AGAIN),
        ({"name": "SparseAdam"}, "optimizer.name", SPARSE_GRADIENTS),
        (
            {"name": "rmsprop", "implementation": "fused"},
            "optimizer.implementation",
            NO_IMPLEMENTATION,
        ),
        (
            {"name": "muon", "implementation": "foreach"},
            "optimizer.implementation",
            NO_IMPLEMENTATION,
        ),
        (
            {"name": "rmsprop", "nesterov": True},
            "optimizer.nesterov",
            CLASS_HAS_NO_SETTING,
        ),
        (
            {"name": "adagrad", "arguments": {"rho": 0.1}},
            "optimizer.arguments",
            NOT_AN_ARGUMENT,
        ),
        (
            {"name": "adagrad", "arguments": {"fused": True}},
            "optimizer.arguments",
            SAID_BY_IMPLEMENTATION,
        ),
        (
            {"name": "sgd", "momentum": 0.1, "arguments": {"momentum": 1}},
            "optimizer.arguments",
            STATED_ALREADY,
        ),
        (
            {"name": "rmsprop", "arguments": {"alpha": -1.0}},
            "optimizer",
            TORCH_REFUSES,
        ),
        (
            {"name": "adamw", "arguments": {"capturable": True}},
            "optimizer",
            TORCH_REFUSES,
        ),
    ],
)
def test_a_rule_that_cannot_be_is_refused_before_anything_starts(
    stated: dict[str, Any], key: str, entry: Entry
) -> None:
    with refused_as(entry, kind=ConfigError, key=key):
        check_optimizer(OptimizerConfig(learning_rate=0.1, **stated))


@pytest.mark.parametrize(
    ("groups", "rates"),
    [
        ([["*.weight"], "rest"], [6e-3, 2e-3]),
        ([["*.weight"], ["*.bias"]], [6e-3, 2e-3]),
        ([["*.weight"], ["*.bias"]], [6e-3, 2e-3, 1e-3]),  # and one of those that are left
    ],
)
def test_a_schedule_may_have_a_value_for_each_group_before_the_model_is_known(
    groups: list[Any], rates: list[float]
) -> None:
    config = OptimizerConfig(
        name="adamw",
        learning_rate=1e-3,
        groups=tuple(GroupConfig(parameters=own) for own in groups),
        schedule="OneCycleLR",
        schedule_arguments={"max_lr": rates, "total_steps": 60},
    )
    check_optimizer(config)
    wrong = {"max_lr": [*rates, 1e-3, 1e-3], "total_steps": 60}
    with refused_as(SCHEDULE_ARGUMENTS, kind=ConfigError, error=re.compile("param_groups has 2")):
        check_optimizer(msgspec.structs.replace(config, schedule_arguments=wrong))
