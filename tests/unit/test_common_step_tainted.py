"""The common step of several rings: one that is exact in all of them, before one that is newer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from support.refused_as import refused_as
from support.steps import ADAMW, layout_of, made

from flowcheck.config import JobConfig
from flowcheck.findings.catalog.refused_restores import ALL_TAINTED
from flowcheck.ops.lifecycle.common_step_of_jobs import common_step_to_keep
from flowcheck.ops.restore import multi_job_restore
from flowcheck.ops.restore.step_lookup import FoundStep
from flowcheck.replica.checkpoint.step_snapshot import copy_snapshot
from flowcheck.replica.model_replica import Replica
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step

STEPS = 4
KEEP_BYTES = 1 << 20
"""More than all steps of the small model take."""
LOST = (8, 72)
"""Bytes of a gradient."""
TOGETHER = cast(JobConfig, SimpleNamespace(together=True))


def gradients(step: int) -> list[torch.Tensor]:
    torch.manual_seed(step)
    return [torch.randn_like(p) for p in made()[0].parameters()]


def torchs(steps: int) -> dict[str, torch.Tensor]:
    """The parameters after so many steps of torch's own optimizer."""
    net, optimizer = made()
    for step in range(1, steps + 1):
        for p, gradient in zip(net.parameters(), gradients(step), strict=True):
            p.grad = gradient
        optimizer.step()
    return {name: p.detach() for name, p in net.named_parameters()}


@contextmanager
def ring(folder: Path, lossy: int | None, keep_bytes: int = KEEP_BYTES) -> Iterator[RunDir]:
    """A ring's replica at STEPS with all steps whole. lossy: the step that lacked bytes."""
    folder.mkdir()
    net, _ = made()
    layout, path = layout_of(net), folder / "replica"
    weights = torch.cat([p.detach().reshape(-1) for p in net.parameters()]).numpy()
    replica = Replica.create(path, layout, ADAMW, weights, keep_bytes=keep_bytes)
    for step in range(1, STEPS + 1):
        flat = torch.cat([g.reshape(-1) for g in gradients(step)]).numpy()
        replica.apply(Step(step), flat, missing=[LOST] if step == lossy else [])
    settings = SimpleNamespace(settings=lambda: TOGETHER, root=folder)
    run = SimpleNamespace(replica=path, port=settings, **vars(settings))
    try:
        yield cast(RunDir, run)
    finally:
        replica.close()


def found(runs: list[RunDir], *, allow_tainted: bool) -> list[FoundStep]:
    return multi_job_restore._found(runs, allow_tainted=allow_tainted)


@pytest.fixture
def newest_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a ring gives by itself: the first all steps, the second only an older one."""

    def newest(run: RunDir, *, settle: bool, allow_tainted: bool) -> FoundStep:
        step = None if run.root.name == "a" else Step(1)
        return FoundStep(copy_snapshot(run.replica, ADAMW, step), str(run.root))

    monkeypatch.setattr(multi_job_restore, "newest_step", newest)
    monkeypatch.setattr(multi_job_restore, "optimizer_of_run", lambda run: ADAMW)


@pytest.mark.parametrize(
    ("lossy", "exact"), [((4, 3), 2), ((None, 4), 3), ((2, None), 1), ((None, None), 4)]
)
def test_the_newest_step_without_a_loss_in_any_ring_is_given_and_kept(
    lossy: tuple[int | None, int | None], exact: int, tmp_path: Path, newest_alone: None
) -> None:
    with ExitStack() as rings:
        runs = [
            rings.enter_context(ring(tmp_path / name, at))
            for name, at in zip("ab", lossy, strict=True)
        ]
        for one in found(runs, allow_tainted=False):
            assert one.snapshot.step == exact
            assert not one.snapshot.tainted
            assert one.newer_tainted == tuple(range(exact + 1, STEPS + 1))
            held = one.snapshot.parameters
            assert all(torch.equal(held[name], value) for name, value in torchs(exact).items())
        assert {one.snapshot.step for one in found(runs, allow_tainted=True)} == {STEPS}
        assert common_step_to_keep(TOGETHER, runs) == (exact, None)


def test_where_every_step_is_tainted_in_a_ring_the_newest_is_kept_and_given_if_allowed(
    tmp_path: Path, newest_alone: None
) -> None:
    with ring(tmp_path / "a", 1, keep_bytes=0) as one, ring(tmp_path / "b", None) as other:
        runs = [one, other]
        assert common_step_to_keep(TOGETHER, runs) == (STEPS, None)
        with refused_as(ALL_TAINTED, steps=(STEPS - 1, STEPS)):
            found(runs, allow_tainted=False)
        assert [one.snapshot.step for one in found(runs, allow_tainted=True)] == [STEPS] * 2
