"""Report of `flowcheck lab cost`: table, JSON, plot and notes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.lab_runs import NO_MATPLOTLIB
from flowcheck.lab.training_cost.cost_statistics import CASES, CaseMeasurement, CostFigures, figures

CASE_NAMES = {case.key: case.words for case in CASES}
CAVEATS = (
    "Trainers share CPU 0; FlowCheck's services, and whatever else the lab runs, are on CPU 1.",
    "async_save's own thread belongs to the trainer's process and cannot be moved off CPU 0.",
    "In this lab the copies of the mirror are made in the sender's softirq, on the trainers' CPU; "
    "a switch makes them in hardware. What that costs is the base against 'no mirror'.",
    "CPU seconds are those of all ranks' processes with torchrun; softirq work is in them only as "
    "far as the kernel charges it to the process it interrupted.",
    "Traffic between hosts and FlowCheck's capture are work of CPUs here that share caches and "
    "memory; a GPU server has a NIC for the one, and another machine does the other.",
)


def figures_json(measured: Sequence[CaseMeasurement]) -> dict[str, Any]:
    """The measurements and figures for JSON."""
    return {
        "figures": [asdict(one) for one in figures(measured)],
        "runs": [asdict(one) for one in measured],
        "notes": notes(measured),
    }


def notes(measured: Sequence[CaseMeasurement]) -> list[str]:
    """Notes on the machine and the runs that a reader needs."""
    loads = [one.load for one in measured]
    found = [*CAVEATS]
    found.append(
        f"Load average of the machine before the cases: {min(loads):.1f} to {max(loads):.1f}, "
        f"median {statistics.median(loads):.1f}; more than 2 means others used these CPUs as well."
    )
    for one in measured:
        if one.followed is None:
            continue
        lag = "an unknown number of" if one.behind is None else str(one.behind)
        said = f"Round {one.round}: when the trainers ended the replica was {lag} steps "
        said += f"behind; it reached step {one.followed} of {one.steps}"
        if one.behind is None or one.behind >= len(one.seconds):
            said += ": IT IS NOT SHOWN TO HAVE TAKEN ITS STEPS WHILE THE TRAINERS RAN, so its row "
            said += "may be of capture and learning alone"
        if one.followed < one.steps:
            said += ": IT DID NOT FOLLOW TO THE END, so its cost here is not that of following"
        found.append(said + ".")
    return found


def table(found: Sequence[CostFigures]) -> Table:
    """A table with one row per case."""
    shown = Table(title="Per iteration: time, CPU of trainers, CPU of services")
    shown.add_column("case", no_wrap=True)
    for column in ("median", "p95", "ratio", "CPU", "ratio", "services"):
        shown.add_column(column, justify="right")
    for one in found:
        shown.add_row(
            CASE_NAMES[one.case],
            f"{1e3 * one.median_s:,.0f} ms",
            f"{1e3 * one.p95_s:,.0f} ms",
            f"{one.time_ratio:.2f}",
            f"{one.cpu_s:.2f} s",
            f"{one.cpu_ratio:.2f}",
            f"{one.services_cpu_s:.2f} s" if one.services_cpu_s else "-",
        )
    return shown


def show(measured: Sequence[CaseMeasurement], console: Console) -> None:
    """Prints table and notes."""
    console.print(table(figures(measured)))
    for note in notes(measured):
        console.print(f"  {note}", soft_wrap=True)


def need_matplotlib() -> None:
    """Raises FlowCheckError if matplotlib is not installed; called before hours of measurement."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise FlowCheckError(NO_MATPLOTLIB()) from error


def plot(measured: Sequence[CaseMeasurement], path: Path) -> None:
    """Plots the iteration times of all cases and rounds: a dot per iteration, a line at the
    median."""
    need_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [case for case in CASES if any(one.case == case.key for one in measured)]
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for row, case in enumerate(shown):
        rounds = [one.seconds for one in measured if one.case == case.key]
        values = [1e3 * seconds for each in rounds for seconds in each]
        spread = [row + 0.3 * (i % 7 - 3) / 3 for i in range(len(values))]
        axes.scatter(values, spread, s=12, alpha=0.6, linewidths=0)
        axes.vlines(statistics.median(values), row - 0.4, row + 0.4, colors="black")
    axes.set_yticks(range(len(shown)), [case.words for case in shown])
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("iteration time, ms (dots: iterations; line: median)")
    figure.savefig(path, format="png", dpi=120)
