"""Optimizers that a script writes itself: Lion, which torch has not, and rounding by chance."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from support.refused_as import refused_as
from support.scripted import Script, replica_of, same

from flowcheck.config import OptimizerConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_user_code import HIDDEN_STATE, UNSEEDED_STEP
from flowcheck.findings.finding import Entry
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.preflight.optimizer_preflight import check_optimizer

STEPS, REOPENED = 200, 77
SCRIPT = '''
import torch


class Lion(torch.optim.Optimizer):
    """Chen et al., Symbolic Discovery of Optimization Algorithms, algorithm 2."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            one, two = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                average = state["exp_avg"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(average.mul(one).add(p.grad, alpha=1 - one).sign_(), alpha=-group["lr"])
                average.mul_(two).add_(p.grad, alpha=1 - two)


class Chance(torch.optim.Optimizer):
    """SGD over bfloat16, rounded up or down by chance."""

    def __init__(self, params, lr=0.05, seeded="state"):
        super().__init__(params, dict(lr=lr))
        self.seeded, self.own = seeded, torch.Generator().manual_seed(5)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for place, p in enumerate(group["params"]):
                if p.grad is None:
                    continue
                state = self.state[p]
                state["step"] = state.get("step", 0) + 1
                generator = None if self.seeded == "nothing" else self.own
                if self.seeded == "state":
                    generator = torch.Generator().manual_seed(state["step"] * 1000 + place)
                wide = p.float() - group["lr"] * p.grad.float()
                noise = torch.randint(0, 1 << 16, wide.shape, generator=generator)
                bits = wide.view(torch.int32) + noise.int() & -65536
                p.copy_(bits.view(torch.float32))


def lion(named, foreach=None):
    made = Lion([p for _, p in named], lr=0.003)
    return made, torch.optim.lr_scheduler.CosineAnnealingLR(made, 120)


def chance(named, seeded="state"):
    return Chance([p for _, p in named], seeded=seeded)
'''


@pytest.fixture
def script_file(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(SCRIPT)
    return tmp_path / "own.py"


def imported(file: Path) -> ModuleType:
    """As the trainer runs it."""
    spec = importlib.util.spec_from_file_location("own_script", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float32, marks=pytest.mark.nightly), torch.bfloat16]
)
def test_lion_has_the_scripts_bits_for_two_hundred_steps(
    dtype: torch.dtype, script_file: Path, tmp_path: Path
) -> None:
    module = imported(script_file)
    schedulers = []

    def make(net: torch.nn.Module) -> torch.optim.Optimizer:
        optimizer, scheduler = module.lion(list(net.named_parameters()))
        schedulers.append(scheduler)
        return optimizer  # type: ignore[no-any-return]

    script = Script(make, dtype=dtype)
    script.step_behind = schedulers[0].step
    config = OptimizerConfig(factory=f"{script_file}:lion")
    replica = replica_of(script, config, tmp_path / "state")
    for step in range(1, STEPS + 1):
        replica.apply(step, script.backward())
        script.step()
        if step < 4 or step % 20 == 0:
            same(replica, script)
        if step == REOPENED:
            replica.close()
            replica = Replica.open(tmp_path / "state", config)
    replica.close()


def test_chance_that_is_seeded_from_the_state_is_followed(
    script_file: Path, tmp_path: Path
) -> None:
    module = imported(script_file)
    script = Script(
        lambda net: module.chance(list(net.named_parameters())),  # type: ignore[no-any-return]
        dtype=torch.bfloat16,
    )
    config = OptimizerConfig(factory=f"{script_file}:chance")
    replica = replica_of(script, config, tmp_path / "state")
    for step in range(1, 30):
        replica.apply(step, script.backward())
        script.step()
        same(replica, script)
        if step == 11:
            replica.close()
            replica = Replica.open(tmp_path / "state", config)
    replica.close()


@pytest.mark.parametrize(
    ("seeded", "wanted"),
    [
        ("nothing", UNSEEDED_STEP),
        ("itself", HIDDEN_STATE),
    ],
)
def test_chance_that_is_seeded_otherwise_is_refused(
    seeded: str, wanted: Entry, script_file: Path, tmp_path: Path
) -> None:
    arguments = {"seeded": seeded}
    config = OptimizerConfig(factory=f"{script_file}:chance", factory_arguments=arguments)
    layout = Layout.of_shapes([(40, 30), (7,)], dtype="bfloat16")
    with refused_as(wanted, kind=ConfigError):
        check_optimizer(config, layout)
    script = Script(lambda net: torch.optim.SGD(net.parameters()), dtype=torch.bfloat16)
    with refused_as(wanted, kind=ConfigError):
        replica_of(script, config, tmp_path / "state")
