"""Loss scales, masters of half-sized parameters and refusals, against scripts of plain
torch that do them by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.refused_as import Wanted, like, refused_as
from support.scripted import Script, flat, replica_of, same
from torch import nn

from flowcheck.config import OptimizerConfig
from flowcheck.config.optimizer_config import ScalerConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_optimizers import HALF_UNSCALED
from flowcheck.findings.catalog.refused_user_code import (
    NAME_MISSING,
    ROUNDED_OTHERWISE,
    TENSOR_SHAPE,
    UNSEEDED_ROUNDING,
)
from flowcheck.findings.catalog.replica_state_errors import TRAINER_ENDS
from flowcheck.findings.catalog.step_arithmetic import LOSS_SCALE
from flowcheck.replica.checkpoint import step_snapshot
from flowcheck.replica.checkpoint.trainer_state import trainer_state
from flowcheck.replica.model_replica import Replica

STEPS = 200
OVERFLOWS = (1, 2, 17, 60, 61, 140)
"""Steps in which a gradient is inf or NaN; from the first on, as scales begin too large."""


def adamw(how: str = "loop") -> Callable[[nn.Module], torch.optim.Optimizer]:
    flags = {"foreach": how == "foreach", "fused": how == "fused"}
    return lambda net: torch.optim.AdamW(net.parameters(), lr=0.01, **flags)


def overflow(script: Script, step: int) -> bytes:
    wire = script.backward()
    if step in OVERFLOWS:
        script.parameters[step % 3].grad.view(-1)[0] = torch.inf if step % 2 else torch.nan
        wire = flat(p.grad for p in script.parameters)
    return wire


SCALED = (
    ("AdamW", "loop", None),
    ("AdamW", "fused", None),
    ("SGD", "foreach", 1.0),
    ("AdamW", "fused", 1.0),
    ("Adagrad", "loop", None),
    ("NAdam", "foreach", None),
)
BY_TURNS = [
    pytest.param(*rule, every, marks=() if at < 4 and at % 2 == every else pytest.mark.nightly)
    for at, rule in enumerate(SCALED)
    for every in (True, False)
]


@pytest.mark.parametrize(("name", "how", "clip", "every_iteration"), BY_TURNS)
def test_a_loss_scale_skips_and_grows_as_torchs_does(
    name: str, how: str, clip: float | None, every_iteration: bool, tmp_path: Path
) -> None:
    flags = {"foreach": how == "foreach"} | ({"fused": True} if how == "fused" else {})
    momentum = {"momentum": 0.9} if name == "SGD" else {}
    kind = getattr(torch.optim, name)
    script = Script(lambda net: kind(net.parameters(), lr=0.01, **flags, **momentum))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(script.optimizer, 50)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=7)
    scaler.scale(torch.zeros(()))
    config = OptimizerConfig(
        name=name,
        implementation=how,  # type: ignore[arg-type]
        learning_rate=0.01,
        clip_norm=clip,
        schedule="CosineAnnealingLR",
        schedule_arguments={"T_max": 50},
        schedule_when_skipped=every_iteration,
        scaler=ScalerConfig(init_scale=1024.0, growth_interval=7),
        **momentum,  # type: ignore[arg-type]
    )
    replica = replica_of(script, config, tmp_path / "state")
    skipped = 0
    for step in range(1, STEPS + 1):
        replica.apply(step, overflow(script, step))
        if clip is not None:
            scaler.unscale_(script.optimizer)
            nn.utils.clip_grad_norm_(script.net.parameters(), clip)
        scaler.step(script.optimizer)
        before = scaler.get_scale()
        scaler.update()
        skipped += scaler.get_scale() < before
        if every_iteration or scaler.get_scale() >= before:
            script.optimizer._opt_called = True  # type: ignore[attr-defined]
            scheduler.step()  # which warns of a first step that was skipped
        if step < 5 or step % 20 == 0 or step in OVERFLOWS:
            same(replica, script)
        if step in (1, 61, 100):
            replica.close()
            found = trainer_state(step_snapshot.copy_snapshot(tmp_path / "state", config))
            assert found.scaler == scaler.state_dict()
            assert (found.step, found.optimizer_steps) == (step, step - skipped)
            assert found.scheduler == scheduler.state_dict()
            assert found.optimizer is not None
            theirs = script.optimizer.state_dict()
            assert found.optimizer["state"].keys() == theirs["state"].keys()
            assert found.optimizer["param_groups"][0]["lr"] == theirs["param_groups"][0]["lr"]
            replica = Replica.open(tmp_path / "state", config)
            assert LOSS_SCALE() in replica.assumptions
    replica.close()
    assert skipped == len(OVERFLOWS)


class ByHand(Script):
    """Masters in float32, as scripts for bfloat16 and float16 keep them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.masters = [p.detach().clone().float() for p in self.parameters]
        self.optimizer = torch.optim.AdamW(self.masters, lr=0.01, foreach=False)

    def hand_over(self) -> None:
        for master, p in zip(self.masters, self.parameters, strict=True):
            master.grad = p.grad.float()

    @torch.no_grad()
    def hand_back(self) -> None:
        for master, p in zip(self.masters, self.parameters, strict=True):
            p.copy_(master)


@pytest.mark.parametrize(
    ("dtype", "scaled"),
    [
        (torch.bfloat16, False),
        (torch.float16, True),
        pytest.param(torch.bfloat16, True, marks=pytest.mark.nightly),
        pytest.param(torch.float16, False, marks=pytest.mark.nightly),
    ],
)
def test_masters_step_in_float32_and_the_model_is_those_rounded(
    dtype: torch.dtype, scaled: bool, tmp_path: Path
) -> None:
    script = ByHand(adamw(), dtype=dtype)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=30, enabled=scaled)
    scaler.scale(torch.zeros(()))
    config = OptimizerConfig(
        name="adamw",
        learning_rate=0.01,
        clip_norm=3.0,
        master_dtype="float32",
        scaler=ScalerConfig(init_scale=8.0, growth_interval=30) if scaled else None,
    )
    replica = replica_of(script, config, tmp_path / "state")
    for step in range(1, STEPS + 1):
        replica.apply(step, overflow(script, step) if scaled else script.backward())
        script.hand_over()
        scaler.unscale_(script.optimizer)
        nn.utils.clip_grad_norm_(script.masters, 3.0)
        scaler.step(script.optimizer)
        scaler.update()
        script.hand_back()
        if step < 4 or step % 25 == 0:
            same(replica, script, script.masters)
    assert replica.sections()["master"].tobytes() == flat(script.masters)
    replica.close()
    found = trainer_state(step_snapshot.copy_snapshot(tmp_path / "state", config))
    assert found.masters is not None and list(found.masters) == list(found.model)
    assert flat(found.masters.values()) == flat(script.masters)


SEEDED = """
import torch, zlib


def rounded(master, step, name):
    generator = torch.Generator().manual_seed(step * 1000003 + zlib.crc32(name.encode()))
    noise = torch.randint(0, 1 << 16, master.shape, generator=generator, dtype=torch.int32)
    return (master.view(torch.int32) + noise >> 16).to(torch.int16).view(torch.bfloat16)


def careless(master, step, name):
    return (master + torch.rand_like(master) * 1e-2).bfloat16()


def wide(master, step, name):
    return master
"""


def test_rounding_by_the_scripts_own_seeded_function_is_followed(tmp_path: Path) -> None:
    (tmp_path / "rounding.py").write_text(SEEDED)
    config = OptimizerConfig(
        name="adamw",
        learning_rate=0.01,
        master_dtype="float32",
        rounding=f"{tmp_path}/rounding.py:rounded",
    )
    script = ByHand(adamw(), dtype=torch.bfloat16)
    names: dict[str, object] = {}
    exec(SEEDED, names)
    replica = replica_of(script, config, tmp_path / "state")
    for step in range(1, 20):
        replica.apply(step, script.backward())
        script.hand_over()
        script.step()
        with torch.no_grad():
            for (name, p), master in zip(
                script.net.named_parameters(), script.masters, strict=True
            ):
                p.copy_(names["rounded"](master, step, name))  # type: ignore[operator]
        same(replica, script, script.masters)
    replica.close()


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        ("careless", UNSEEDED_ROUNDING),
        (
            "wide",
            like(
                ROUNDED_OTHERWISE,
                found=like(TENSOR_SHAPE, dtype="torch.float32"),
            ),
        ),
        ("none", like(NAME_MISSING, name="none")),
    ],
)
def test_rounding_that_cannot_be_followed_is_refused(
    function: str, wanted: Wanted, tmp_path: Path
) -> None:
    (tmp_path / "rounding.py").write_text(SEEDED)
    config = OptimizerConfig(
        name="adamw",
        learning_rate=0.01,
        master_dtype="float32",
        rounding=f"{tmp_path}/rounding.py:{function}",
    )
    script = Script(adamw(), dtype=torch.bfloat16)
    replica = replica_of(script, config, tmp_path / "state")
    with refused_as(wanted, kind=ConfigError):
        replica.apply(1, script.backward())
    assert replica.step == 0
    replica.close()


def test_where_the_trainer_ends_for_a_norm_the_replica_stays_before_it(tmp_path: Path) -> None:
    script = Script(adamw())
    config = OptimizerConfig(
        name="adamw", learning_rate=0.01, clip_norm=1.0, clip_error_if_nonfinite=True
    )
    replica = replica_of(script, config, tmp_path / "state")
    before = replica.parameters().tobytes()
    with refused_as(TRAINER_ENDS, error=re.compile("non-finite")):
        replica.apply(1, overflow(script, 1))
    assert (replica.step, replica.parameters().tobytes()) == (0, before)
    replica.close()


def test_a_scale_over_gradients_of_float16_is_refused_as_torch_does(tmp_path: Path) -> None:
    config = OptimizerConfig(name="adamw", learning_rate=0.01, scaler=ScalerConfig())
    with refused_as(HALF_UNSCALED, kind=ConfigError, key="optimizer.scaler"):
        replica_of(Script(adamw(), dtype=torch.float16), config, tmp_path / "state")
