"""Parameter groups with settings of their own, by patterns and by the script's own function."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.refused_as import Wanted, like, refused_as
from support.scripted import Mixed, Script, flat, replica_of, same
from torch import nn

from flowcheck.config import GroupConfig, OptimizerConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_optimizers import (
    CLASS_HAS_NO_SETTING,
    IN_TWO_TABLES,
    NAMES_NO_PARAMETER,
    NEEDS_METRIC,
    NOT_AN_ARGUMENT,
)
from flowcheck.findings.catalog.refused_user_code import (
    IN_TWO_OPTIMIZERS,
    OPTIMIZER_RETURNED,
    OTHER_TENSORS,
    RAISED,
)
from flowcheck.findings.catalog.trainer_checkpoints import SEVERAL_GROUPS
from flowcheck.replica.checkpoint import step_snapshot
from flowcheck.replica.checkpoint.trainer_state import trainer_state
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.optimizer.param_groups import ParamGroupSettings, optimizer_numbering
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.preflight.optimizer_preflight import check_optimizer
from flowcheck.vault.audit import bitwise_audit
from flowcheck.vault.trainer_checkpoint.checkpoint_template import read_template

STEPS, BEFORE = 30, 12


def decay_last(net: nn.Module) -> torch.optim.Optimizer:
    """As many scripts do, so that torch's order is not the model's."""
    named = dict(net.named_parameters())
    plain = [p for n, p in named.items() if p.dim() < 2 and n != "big"]
    decayed = [p for p in named.values() if p.dim() >= 2]
    groups = [
        {"params": plain, "weight_decay": 0.0, "lr": 0.003},
        {"params": [named["big"]], "betas": (0.5, 0.9), "amsgrad": True},
        {"params": decayed},
    ]
    return torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1)


GROUPED = OptimizerConfig(
    name="adamw",
    learning_rate=0.01,
    weight_decay=0.1,
    groups=(
        GroupConfig(
            parameters=("*.bias", "norm.weight", "one", "0"), weight_decay=0.0, learning_rate=0.003
        ),
        GroupConfig(parameters=("big",), betas=(0.5, 0.9), amsgrad=True),
        GroupConfig(parameters=("ndim>=2",)),
    ),
)
FACTORY = """
import torch


def optimizer(named, rate):
    groups = [
        {"params": [p for n, p in named if p.dim() < 2 and n != "big"], "weight_decay": 0.0,
         "lr": 0.003},
        {"params": [p for n, p in named if n == "big"], "betas": (0.5, 0.9), "amsgrad": True},
        {"params": [p for n, p in named if p.dim() >= 2]},
    ]
    made = torch.optim.AdamW(groups, lr=rate, weight_decay=0.1)
    return made, torch.optim.lr_scheduler.StepLR(made, 4, gamma=0.5)
"""


def by_factory(folder: Path) -> OptimizerConfig:
    file = folder / "train.py"
    file.write_text(FACTORY)
    return OptimizerConfig(factory=f"{file}:optimizer", factory_arguments={"rate": 0.01})


def test_groups_in_another_order_than_the_models_have_torchs_bits(tmp_path: Path) -> None:
    script = Script(decay_last)
    replica = replica_of(script, GROUPED, tmp_path / "state")
    for step in range(1, STEPS + 1):
        replica.apply(step, script.backward())
        script.step()
        same(replica, script)
    replica.close()


def test_a_scripts_own_function_makes_optimizer_and_schedule(tmp_path: Path) -> None:
    config = by_factory(tmp_path)
    script = Script(decay_last)
    scheduler = torch.optim.lr_scheduler.StepLR(script.optimizer, 4, gamma=0.5)
    script.step_behind = scheduler.step
    replica = replica_of(script, config, tmp_path / "state")
    for step in range(1, STEPS + 1):
        replica.apply(step, script.backward())
        script.step()
        same(replica, script)
        if step == BEFORE:
            replica.close()
            replica = Replica.open(tmp_path / "state", config)
    replica.close()
    found = trainer_state(step_snapshot.copy_snapshot(tmp_path / "state", config))
    assert found.optimizer is not None
    assert found.scheduler == scheduler.state_dict()
    theirs = script.optimizer.state_dict()["param_groups"]
    assert found.optimizer["param_groups"] == theirs


@pytest.mark.parametrize("made_by", ["patterns", "factory"])
def test_torch_goes_on_from_a_given_step_with_each_state_at_its_parameter(
    made_by: str, tmp_path: Path
) -> None:
    """Kernels of one shape in different groups: a number that is off goes unseen by torch."""
    config = GROUPED if made_by == "patterns" else by_factory(tmp_path)
    script = Script(decay_last)
    replica = replica_of(script, config, tmp_path / "state")
    behind = None
    if made_by == "factory":
        behind = torch.optim.lr_scheduler.StepLR(script.optimizer, 4, gamma=0.5)
        script.step_behind = behind.step
    for step in range(1, BEFORE + 1):
        replica.apply(step, script.backward())
        script.step()
    replica.close()
    found = trainer_state(step_snapshot.copy_snapshot(tmp_path / "state", config))
    resumed = Mixed()
    resumed.load_state_dict(found.model, strict=False)
    optimizer = decay_last(resumed)
    assert found.optimizer is not None
    optimizer.load_state_dict(found.optimizer)
    own = dict(resumed.named_parameters())
    theirs = [p for group in optimizer.param_groups for p in group["params"]]
    for name, number in zip(found.model, found.order, strict=True):
        assert own[name] is theirs[number]
    scheduler = None
    if behind is not None:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, gamma=0.5)
        scheduler.load_state_dict(found.scheduler)
        optimizer.load_state_dict(found.optimizer)
    for _ in range(5):
        script.backward()
        for one, other in zip(resumed.parameters(), script.parameters, strict=True):
            one.grad = other.grad.clone() if other.grad is not None else None
        optimizer.step()
        script.step()
        if scheduler is not None:
            scheduler.step()
    assert flat(resumed.parameters()) == flat(script.parameters)


def test_a_checkpoint_with_groups_is_held_against_the_right_parameters(tmp_path: Path) -> None:
    script = Script(decay_last)
    layout = script.layout()
    replica = replica_of(script, GROUPED, tmp_path / "state")
    for step in range(1, 4):
        replica.apply(step, script.backward())
        script.step()
    tree = {"model": script.net.state_dict(), "optimizer": script.optimizer.state_dict()}
    names = tuple(p.name for p in layout.parameters)
    template = read_template(tree, layout, names, "x", order=optimizer_numbering(GROUPED, layout))
    assert bitwise_audit.audit_snapshot(
        template, step_snapshot.copy_snapshot(tmp_path / "state", GROUPED)
    ).passed
    by_digest = bitwise_audit.audit_digests(template, layout, GROUPED, replica.tensor_digests)
    assert by_digest.passed and by_digest.tensors == len(replica.tensor_digests)
    tree["optimizer"]["state"][0]["exp_avg"] += 1
    differ = bitwise_audit.audit_digests(
        template, layout, GROUPED, replica.tensor_digests
    ).differences
    assert [d.name for d in differ] == [f"{numbered(GROUPED, layout)[0]}/exp_avg"]
    with refused_as(SEVERAL_GROUPS, groups=3):
        read_template(tree, layout, names, "x")
    replica.close()


def numbered(config: OptimizerConfig, layout: Layout) -> list[str]:
    order = ParamGroupSettings(config, layout).built.order
    return [layout.parameters[order.index(n)].name for n in range(len(order))]


@pytest.mark.parametrize(
    ("groups", "wanted"),
    [
        (
            [GroupConfig(parameters=("nothing.*",))],
            like(NAMES_NO_PARAMETER, value="'nothing.*'"),
        ),
        (
            [GroupConfig(parameters=("a",)), GroupConfig(parameters=("0-1",))],
            like(IN_TWO_TABLES, value="'0-1'", name="a"),
        ),
        (
            [GroupConfig(parameters=("a",), momentum=0.5)],
            like(
                CLASS_HAS_NO_SETTING,
                key="optimizer.groups.momentum",
                value="0.5",
                optimizer="adamw",
            ),
        ),
        (
            [GroupConfig(parameters=("a",), arguments={"rho": 1})],
            like(NOT_AN_ARGUMENT, value="'rho'"),
        ),
    ],
)
def test_groups_that_do_not_fit_are_refused_with_the_key(
    groups: list[GroupConfig], wanted: Wanted
) -> None:
    config = OptimizerConfig(name="adamw", learning_rate=0.1, groups=tuple(groups))
    layout = Layout.of_shapes([(2, 3), (3,)], names=["a", "b"])
    with refused_as(wanted, kind=ConfigError) as refused:
        check_optimizer(config, layout)
    assert refused.value.key.startswith("optimizer")


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("return 3", like(OPTIMIZER_RETURNED, found="3")),
        (
            "return [torch.optim.SGD(ps), torch.optim.Adam(ps)]",
            IN_TWO_OPTIMIZERS,
        ),
        ("return torch.optim.SGD(ps), 'adam'", OPTIMIZER_RETURNED),
        ("return torch.optim.SGD([torch.zeros(1)])", OTHER_TENSORS),
        ("raise KeyError('x')", like(RAISED, error="KeyError: 'x'")),
        (
            "o = torch.optim.SGD(ps)\n    return o, torch.optim.lr_scheduler.ReduceLROnPlateau(o)",
            NEEDS_METRIC,
        ),
    ],
)
def test_a_factory_that_does_not_work_out_is_refused_with_what_is_wrong(
    body: str, wanted: Wanted, tmp_path: Path
) -> None:
    file = tmp_path / "bad.py"
    file.write_text(f"import torch\ndef make(named):\n    ps = [p for _, p in named]\n    {body}\n")
    config = OptimizerConfig(factory=f"{file}:make")
    with refused_as(wanted, kind=ConfigError, key="optimizer.factory"):
        check_optimizer(config, Layout.of_shapes([(2, 3), (3,)]))
