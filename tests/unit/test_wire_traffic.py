"""What a checkpoint costs: the arithmetic, and what is refused."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support.refused_as import refused_as

from flowcheck.errors import ConfigError, FlowCheckError
from flowcheck.findings.catalog.lab_runs import NO_MATPLOTLIB, ROUND_WITHOUT_BASE, TOO_FEW_STEPS
from flowcheck.lab.cluster import Cluster
from flowcheck.lab.job_run.run_display import Display
from flowcheck.lab.job_run.run_plan import LabPlan
from flowcheck.lab.training_cost import cost_measurement, cost_report
from flowcheck.lab.training_cost import cost_statistics as sums
from flowcheck.lab.training_cost.cost_statistics import CaseMeasurement, CpuSample


def run(round_: int, case: str, seconds: list[float], cpu: float = 1.0) -> CaseMeasurement:
    return CaseMeasurement(round_, case, tuple(seconds), cpu, 0.0, load=1.0, steps=5, copies=9)


def test_a_ratio_is_of_one_round_before_rounds_are_joined() -> None:
    """A neighbour slows the machine threefold in round 2: cases keep their ratio."""
    found = sums.figures(
        [
            run(1, "none", [1.0, 1.0, 4.0], cpu=1.0),
            run(1, "torch.save", [2.0, 2.0, 2.0], cpu=1.5),
            run(2, "none", [3.0, 3.0, 3.0], cpu=3.0),
            run(2, "torch.save", [6.0, 1.0, 9.0], cpu=4.5),
        ]
    )
    assert [one.case for one in found] == ["none", "torch.save"]
    assert (found[0].time_ratio, found[0].cpu_ratio) == (1.0, 1.0)
    assert (found[1].time_ratio, found[1].cpu_ratio) == (2.0, 1.5)
    assert (found[0].median_s, found[1].median_s) == (2.0, 4.0)


def test_a_round_without_its_base_is_refused() -> None:
    with refused_as(ROUND_WITHOUT_BASE, kind=FlowCheckError):
        sums.figures([run(1, "none", [1.0]), run(2, "torch.save", [1.0])])


@pytest.mark.parametrize("count", [2, 3, 10, 41])
def test_p95_is_numpys(count: int) -> None:
    values = np.random.default_rng(count).random(count)
    assert sums.p95(values.tolist()) == pytest.approx(np.percentile(values, 95))


def test_p95_of_one_value_is_that_value() -> None:
    assert sums.p95([0.25]) == 0.25


def test_cpu_time_counts_from_the_end_of_the_warm_up() -> None:
    samples = [
        CpuSample(1, 50.0, 1.0),
        CpuSample(3, 60.0, 2.0),
        CpuSample(4, 62.0, 2.5),
        CpuSample(7, 68, 3.0),
    ]
    assert sums.cpu_per_step(samples, 2) == (2.0, 0.25)


def test_cpu_time_of_too_few_steps_is_refused() -> None:
    with refused_as(TOO_FEW_STEPS, kind=FlowCheckError):
        sums.cpu_per_step([CpuSample(1, 1.0, 0.0), CpuSample(5, 2.0, 0.0)], 2)


def test_cpu_time_of_this_process_is_the_kernels() -> None:
    """Judged by getrusage; the name may hold blanks and parentheses."""
    end_s = time.process_time() + 0.1
    while time.process_time() < end_s:
        pass
    text = Path("/proc/self/stat").read_text()
    assert sums.cpu_of_stat(text) == pytest.approx(sum(os.times()[:2]), abs=0.05)
    named = text[: text.index("(")] + "(a) b (" + text[text.rindex(")") :]
    assert sums.cpu_of_stat(named) == sums.cpu_of_stat(text)


def test_old_checkpoints_go_and_others_stay(tmp_path: Path) -> None:
    for name in ("step-1.pt", "step-9.pt", "step-x.pt", "text.txt"):
        (tmp_path / name).touch()
    (tmp_path / "step-2").mkdir()
    cost_measurement._forget(tmp_path, 7)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [
        "step-9.pt",
        "step-x.pt",
        "text.txt",
    ]


@pytest.mark.parametrize(
    ("steps", "rounds", "warm_up", "switch"),
    [(5, 1, 4, "bridge"), (5, 0, 1, "bridge"), (5, 1, 0, "bridge"), (5, 1, 1, "ovs")],
)
def test_what_cannot_be_measured_is_refused(
    tmp_path: Path, steps: int, rounds: int, warm_up: int, switch: str
) -> None:
    made = Cluster(switch=switch)  # type: ignore[arg-type]
    plan = LabPlan(cluster=made, folder=tmp_path, steps=steps, kill_at=None, arguments=())
    with pytest.raises(ConfigError):
        cost_measurement.measure(
            plan, rounds=rounds, warm_up=warm_up, display=Display(steps, quiet=True)
        )


def test_a_replica_that_fell_behind_is_said_aloud() -> None:
    times = (1.0,) * 5
    whole = CaseMeasurement(1, "flowcheck", times, 1.0, 1.0, 1.0, 9, 9, followed=9, behind=3)
    short = CaseMeasurement(2, "flowcheck", times, 1.0, 1.0, 1.0, 9, 9, followed=4, behind=4)
    late = CaseMeasurement(3, "flowcheck", times, 1.0, 1.0, 1.0, 9, 9, followed=9, behind=9)
    unread = CaseMeasurement(4, "flowcheck", times, 1.0, 1.0, 1.0, 9, 9, followed=9, behind=None)
    said = cost_report.notes([whole, short, late, unread])
    assert [one[:7] for one in said if "NOT SHOWN" in one] == ["Round 3", "Round 4"]
    assert any("3 steps behind; it reached step 9 of 9." in one for one in said)
    assert any("step 4 of 9: IT DID NOT FOLLOW" in one for one in said)
    assert any("softirq" in one for one in said)
    assert any("async_save's own thread" in one for one in said)


def test_a_plot_without_matplotlib_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with refused_as(NO_MATPLOTLIB, kind=FlowCheckError):
        cost_report.plot([run(1, "none", [1.0])], tmp_path / "a.png")


def test_a_plot_is_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    cost_report.plot([run(1, "none", [1.0, 2.0]), run(1, "torch.save", [3.0])], tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
