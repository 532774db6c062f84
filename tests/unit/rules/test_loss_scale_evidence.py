"""A stated loss scale against gradients that torch's own GradScaler scaled, with its growths and
its backoffs."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from support.scripted import Script, flat, replica_of

from flowcheck.config import JobConfig, OptimizerConfig, SourceConfig
from flowcheck.config.optimizer_config import ScalerConfig
from flowcheck.findings.catalog.replica_update_notes import (
    LOSS_SCALE_CONTRADICTED,
    LOSS_SCALE_CONTRADICTED_BY,
)
from flowcheck.findings.catalog.step_arithmetic import SCALE_CHANGES
from flowcheck.findings.finding import Finding
from flowcheck.replica.optimizer_step.loss_scale_evidence import ScaleEvidence, ScaleObserver
from flowcheck.stages.replica_update.loss_scale_check import LossScaleCheck
from flowcheck.stages.run_directory.run_dir import RunDir

STEPS, LIMIT = 700, 2.0**20
"""Where scaled gradients overflow, as those of float16 do."""


def scales(stated: ScalerConfig, true: list[bool]) -> list[float]:
    """By torch's own: the scale of each step; true: [step] its gradients are finite."""
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=stated.init_scale, growth_interval=stated.growth_interval
    )
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.0)
    leaf = optimizer.param_groups[0]["params"][0]
    scaler.scale(torch.zeros(()))
    found = []
    for finite in true:
        found.append(scaler.get_scale())
        leaf.grad = torch.tensor([1.0 if finite else math.inf])
        scaler.step(optimizer)
        scaler.update()
    return found


def trained(noise: float, trend: float, seed: int) -> tuple[list[float], list[bool]]:
    """Levels of a trainer's scaled gradients, log2, and which of its steps were finite. Its scale
    grows every 60 steps until it overflows."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=60)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.0)
    leaf = optimizer.param_groups[0]["params"][0]
    scaler.scale(torch.zeros(()))
    random = np.random.default_rng(seed)
    levels, finite = [], []
    for step in range(STEPS):
        own = trend * step / STEPS + random.normal(0.0, noise)
        level = own + math.log2(scaler.get_scale())
        levels.append(level)
        finite.append(level < math.log2(LIMIT) - 1.5)
        leaf.grad = torch.tensor([1.0 if finite[-1] else math.inf])
        scaler.step(optimizer)
        scaler.update()
    return levels, finite


def tally(stated: ScalerConfig, noise: float, trend: float = -1.0, seed: int = 1) -> ScaleEvidence:
    levels, finite = trained(noise, trend, seed)
    seen = ScaleObserver(1.0)
    for level, good, scale in zip(levels, finite, scales(stated, finite), strict=True):
        if good:
            seen.add(level, math.log2(scale))
    return seen.tally


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("noise", [0.05, 0.3, pytest.param(1.0, marks=pytest.mark.nightly)])
def test_the_right_rule_is_never_contradicted_and_shows_where_noise_lets_it(
    noise: float, seed: int
) -> None:
    found = tally(ScalerConfig(init_scale=2.0**12, growth_interval=60), noise, seed=seed)
    assert not found.contradicted and found.missing == found.unpredicted == 0
    assert (found.shown >= 4) == (noise < 0.1), found


@pytest.mark.parametrize("init_scale", [pytest.param(1.0, marks=pytest.mark.nightly), 2.0**16])
def test_another_first_scale_looks_as_well_and_is_not_believed_for_that(init_scale: float) -> None:
    found = tally(ScalerConfig(init_scale=init_scale, growth_interval=60), 0.05)
    assert not found.contradicted and found.shown >= 4


@pytest.mark.parametrize("growth_interval", [45, 90, 2000])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_another_growth_interval_is_contradicted(growth_interval: int, seed: int) -> None:
    stated = ScalerConfig(init_scale=2.0**12, growth_interval=growth_interval)
    assert tally(stated, 0.05, seed=seed).contradicted


def test_what_contradicts_a_scale_is_said_once_and_goes_to_the_checkpoint(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.learned_folder.mkdir()
    stated = ScalerConfig(init_scale=2.0**12, growth_interval=2000)
    optimizer = OptimizerConfig(name="sgd", learning_rate=0.0, scaler=stated)
    config = JobConfig(source=(SourceConfig(file="0"),), optimizer=optimizer)
    script = Script(lambda net: torch.optim.SGD(net.parameters(), lr=0.0))
    replica = replica_of(script, optimizer, tmp_path / "state")
    base = [torch.randn_like(p) for p in script.parameters]
    said: list[Finding] = []
    own = LossScaleCheck(run, config, said.append)
    for step in range(1, 300):
        if step == 150:
            own = LossScaleCheck(run, config, said.append)  # killed, and started again
        scale = 2.0 ** (12 + step // 30)  # the trainer's own interval is 30
        noisy = [scale * g * math.exp(0.03 * math.sin(7 * step)) for g in base]
        wire = np.frombuffer(flat(noisy), np.uint8)
        own.before_step(replica)
        replica.apply(step, wire)
        own.after_step(replica, wire)
    replica.close()
    assert msgspec.json.decode(run.assumed.read_bytes(), type=list[Finding]) == [
        LOSS_SCALE_CONTRADICTED()
    ]
    assert len(said) == 1 and said[0].is_any_of(LOSS_SCALE_CONTRADICTED_BY)
    assert said[0].arguments["evidence"].is_any_of(SCALE_CHANGES)
