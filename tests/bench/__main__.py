"""Runs every stage's bench and prints the table: python -m bench [--quick] [--json FILE]."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.measure import Figure, Scale, last_level_cache_bytes, scale
from flowcheck.errors import FlowCheckError

LOAD_MAX = 0.5
"""Above it others shared caches and memory bandwidth with what was measured."""
STAGES = (
    "capturing",
    "parsing",
    "extracting",
    "updating",
    "saving",
    "stripes",
    "copying",
    "chaining",
    "starting",
    "learning",
    "rate",
    "where",
)


def stage_figures(name: str, how_much: Scale, before: list[Figure]) -> Iterator[Figure]:
    """A stage's figures; one line that says so where it cannot be measured here."""
    try:
        yield from importlib.import_module(f"bench.{name}").figures(how_much, before)
    except (ImportError, AttributeError, FlowCheckError) as error:
        yield Figure(name, "cannot be measured", 0, "absent", note=str(error)[:100])


def render(figures: list[Figure], title: str) -> Table:
    table = Table(title=title)
    for column in ("stage", "what", "measured", "ratio", "target", "", "note"):
        table.add_column(column, justify="right" if column in ("measured", "target") else "left")
    before = ""
    for figure in figures:
        if before and figure.stage != before:
            table.add_section()
        ratio = f"{figure.ratio:.2f} x {figure.against}" if figure.ratio is not None else ""
        target = "" if figure.target is None else f">= {figure.target:g}"
        style = {"ok": "green", "below": "yellow"}.get(figure.verdict, "")
        value = "absent" if figure.unit == "absent" else f"{figure.value:.2f} {figure.unit}"
        table.add_row(
            "" if figure.stage == before else figure.stage,
            figure.what,
            value,
            ratio,
            target,
            f"[{style}]{figure.verdict}[/]" if style else "",
            figure.note,
        )
        before = figure.stage
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under a minute; small working sets")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.add_argument("--stage", action="append", choices=STAGES, help="only this; may repeat")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    how_much = scale(options.quick)
    figures: list[Figure] = []
    load = os.getloadavg()[0]
    console = Console(width=None if os.isatty(1) else 180)
    for name in options.stage or STAGES:
        console.print(f"[dim]measuring: {name}[/]")
        figures += stage_figures(name, how_much, list(figures))
    title = (
        f"{os.cpu_count()} CPUs, {last_level_cache_bytes() >> 20} MiB last-level cache, "
        f"{how_much.bytes >> 20} MiB working set, median of {how_much.repeats}, "
        f"load average {load:.1f}" + (", QUICK: partly in cache" if how_much.quick else "")
    )
    console.print(render(figures, title))
    if load > LOAD_MAX:
        console.print(f"[yellow]The machine was busy (load average {load:.1f}): measure again[/]")
    if options.json:
        rows = [{**asdict(figure), "verdict": figure.verdict} for figure in figures]
        tree = {"machine": platform.machine(), "title": title, "figures": rows}
        options.json.write_text(json.dumps(tree, indent=1) + "\n")


if __name__ == "__main__":
    main()
