"""Clipping and schedules, held against a torch training loop that does them as users do."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.refused_as import like, refused_as
from torch import nn

from flowcheck.config import OptimizerConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_optimizers import SCHEDULE_UNKNOWN
from flowcheck.findings.catalog.refused_user_code import (
    ENDED_AT_IMPORT,
    FACTOR_NOT_CALLABLE,
    NAME_MISSING,
    NO_FILE,
    RAISED,
    RATE_NOT_FINITE,
)
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.optimizer.param_groups import ParamGroupSettings
from flowcheck.replica.param_layout import Layout

JOB = Path(__file__).parents[2] / "flowcheck/lab/jobs/gpt.py"
SCHEDULE = {"warmup": 2, "steps": 8, "floor": 0.1}


def rate_of(config: OptimizerConfig) -> Callable[[int], float]:
    return ParamGroupSettings(config, Layout.of_shapes([(2, 2)])).rate


def model() -> nn.Module:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 700))
    return net.to(memory_format=torch.channels_last)


def flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Memory order, as DDP's buckets hold them."""
    return torch.cat([torch.as_strided(t, (t.numel(),), (1,)) for t in tensors])


@pytest.mark.parametrize("name", ["adamw", "sgd"])
@pytest.mark.parametrize("implementation", ["loop", "foreach", "fused"])
@pytest.mark.parametrize("clip", [None, 0.05, 1e9])
def test_every_step_of_a_clipped_and_scheduled_run_has_torchs_bits(
    name: str, implementation: str, clip: float | None, tmp_path: Path
) -> None:
    net = model()
    parameters = list(net.parameters())
    flags = {"foreach": implementation == "foreach", "fused": implementation == "fused"}
    optimizer: torch.optim.Optimizer
    if name == "sgd":
        optimizer = torch.optim.SGD(parameters, lr=0.02, momentum=0.9, nesterov=True, **flags)
    else:
        optimizer = torch.optim.AdamW(parameters, lr=0.02, **flags)
    # The factor's formula is written out here a second time, so that neither tests itself.
    factors = [0.5, 1.0, 1.0, 0.9397114317029974, 0.7750000000000001, 0.55]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factors[step])
    rates: list[float] = []
    config = OptimizerConfig(
        name=name,  # type: ignore[arg-type]
        implementation=implementation,  # type: ignore[arg-type]
        learning_rate=0.02,
        momentum=0.9 if name == "sgd" else 0.0,
        nesterov=name == "sgd",
        clip_norm=clip,
        schedule=f"{JOB}:schedule",
        schedule_arguments=SCHEDULE,
    )
    layout = Layout.of([(p.shape, p.stride()) for p in parameters])
    weights = flat([p.detach() for p in parameters]).clone()
    replica = Replica.create(tmp_path / "replica", layout, config, weights.numpy())
    rate = rate_of(config)
    torch.set_num_threads(1)
    try:
        for step in range(5):
            inputs = torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last)
            net(inputs).square().mean().backward()
            gradient = flat([p.grad for p in parameters if p.grad is not None]).clone()
            before = gradient.clone()
            if clip is not None:
                nn.utils.clip_grad_norm_(parameters, clip)
            rates.append(optimizer.param_groups[0]["lr"])
            assert rate(step) == pytest.approx(rates[-1], rel=1e-12)
            optimizer.param_groups[0]["lr"] = rate(step)  # the same number to the last bit
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            replica.apply(step + 1, gradient.numpy())
            assert torch.equal(gradient, before), "the caller's gradient was written to"
            ours = torch.from_numpy(replica.parameters().copy())
            assert torch.equal(ours, flat([p.detach() for p in parameters])), step
    finally:
        replica.close()
    assert len(set(rates)) > 2


def test_a_schedule_that_cannot_be_had_is_refused_with_what_is_wrong(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("def text():\n    return lambda step: 'x'\ndef number():\n    return 3\n")
    for schedule, reason in (
        ("nowhere", SCHEDULE_UNKNOWN),
        (
            f"{tmp_path}/none.py:f",
            like(NO_FILE, path=re.compile("/.*/none.py")),
        ),
        (
            f"{bad}:missing",
            like(NAME_MISSING, name="missing", names="text, number"),
        ),
        (f"{bad}:number", FACTOR_NOT_CALLABLE),
        (f"{bad}:text", RATE_NOT_FINITE(value="'x'", at=0)),
        (
            "no_such_module:f",
            like(RAISED, error=re.compile("No module named")),
        ),
    ):
        config = OptimizerConfig(name="sgd", learning_rate=0.1, schedule=schedule)
        with refused_as(reason, kind=ConfigError):
            rate_of(config)


def test_a_schedule_beside_a_program_reads_no_arguments_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A training script that parses its arguments as it is imported."""
    script = tmp_path / "train.py"
    script.write_text(
        "import argparse\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--width', type=int, default=3)\n"
        "given = parser.parse_args()\n"
        "def half(): return lambda step: given.width / 6\n"
        "def stop(): raise SystemExit(2)\n"
    )
    monkeypatch.setattr(sys, "argv", ["flowcheck", "up", "job.toml"])
    config = OptimizerConfig(name="sgd", learning_rate=0.1, schedule=f"{script}:half")
    assert rate_of(config)(0) == 0.05
    assert sys.argv == ["flowcheck", "up", "job.toml"]
    assert capsys.readouterr().err == ""
    script.write_text("raise SystemExit(2)\n")
    with refused_as(ENDED_AT_IMPORT, kind=ConfigError, status="2"):
        rate_of(OptimizerConfig(name="sgd", learning_rate=0.1, schedule=f"{script}:half"))
