"""Figures of measured iterations: medians, percentiles, ratios, CPU seconds."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.lab_runs import ROUND_WITHOUT_BASE, TOO_FEW_STEPS
from flowcheck.step_numbers import Step

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class CostCase:
    """One way to run the job."""

    key: str
    words: str
    arguments: tuple[str, ...] = ()
    mirror: bool = True
    follow: bool = False
    """True: FlowCheck follows the job."""


CASES = (
    CostCase("none", "no checkpoint"),
    CostCase("flowcheck", "FlowCheck follows every step", follow=True),
    CostCase("torch.save", "torch.save every step", ("--save-every", "1")),
    CostCase("async_save", "async_save every step", ("--save-every", "1", "--save-with", "dcp")),
    CostCase("no mirror", "no checkpoint, no mirror", mirror=False),
)
BASE = CASES[0].key
"""Key of the case that all others are divided by."""


@dataclass(frozen=True, slots=True)
class CpuSample:
    """CPU seconds so far, read soon after the trainer reported `step`."""

    step: Step
    trainers_s: float
    services_s: float


@dataclass(frozen=True, slots=True)
class CaseMeasurement:
    """Result of one case in one round; times are of iterations after the warm-up."""

    round: int
    case: str
    seconds: tuple[float, ...]
    """Seconds of each iteration by rank 0's clock, saving included."""
    trainers_cpu_s: float
    """CPU seconds per iteration, all ranks together."""
    services_cpu_s: float
    """CPU seconds per iteration of FlowCheck's processes; 0: there are none."""
    load: float
    """Load average of the machine in the minute before the case began."""
    steps: int
    copies: int
    """Frames that the mirror sent to the checkpoint node."""
    followed: Step | None = None
    """Last step of the replica after it had time to catch up; None: the case has no replica."""
    behind: int | None = None
    """Steps by which the replica was behind when the trainers ended; None: it could not be read."""


@dataclass(frozen=True, slots=True)
class CostFigures:
    """One case over all rounds: medians of the rounds."""

    case: str
    median_s: float
    p95_s: float
    cpu_s: float
    services_cpu_s: float
    time_ratio: float
    """Median iteration time divided by that of BASE in the same round."""
    cpu_ratio: float


def p95(values: Sequence[float]) -> float:
    """The 95th percentile, linearly interpolated."""
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=20, method="inclusive")[-1]


def cpu_per_step(samples: Sequence[CpuSample], warm_up: int) -> tuple[float, float]:
    """(trainers, services): CPU seconds per iteration after the warm-up.

    Raises FlowCheckError if there are fewer than two samples.
    """
    used = [sample for sample in samples if sample.step >= warm_up]
    if len(used) < 2:
        raise FlowCheckError(TOO_FEW_STEPS())
    first, last = used[0], used[-1]
    steps = last.step - first.step
    return (
        (last.trainers_s - first.trainers_s) / steps,
        (last.services_s - first.services_s) / steps,
    )


def cpu_of_stat(text: str) -> float:
    """CPU seconds (user and system) of a process from its /proc/PID/stat (proc(5), fields 14 and
    15)."""
    behind_name = text[text.rindex(")") + 1 :].split()
    return (int(behind_name[11]) + int(behind_name[12])) * TICK_S


def figures(measured: Sequence[CaseMeasurement]) -> list[CostFigures]:
    """One entry per case, in the order of CASES. Raises FlowCheckError for a round without BASE."""
    base = {one.round: one for one in measured if one.case == BASE}
    found = []
    for case in CASES:
        rounds = [one for one in measured if one.case == case.key]
        if not rounds:
            continue
        if any(one.round not in base for one in rounds):
            raise FlowCheckError(ROUND_WITHOUT_BASE(case.key))
        ratios = [
            (
                statistics.median(one.seconds) / statistics.median(base[one.round].seconds),
                one.trainers_cpu_s / base[one.round].trainers_cpu_s,
            )
            for one in rounds
        ]
        found.append(
            CostFigures(
                case.key,
                median_s=statistics.median(statistics.median(one.seconds) for one in rounds),
                p95_s=statistics.median(p95(one.seconds) for one in rounds),
                cpu_s=statistics.median(one.trainers_cpu_s for one in rounds),
                services_cpu_s=statistics.median(one.services_cpu_s for one in rounds),
                time_ratio=statistics.median(time for time, _ in ratios),
                cpu_ratio=statistics.median(cpu for _, cpu in ratios),
            )
        )
    return found
