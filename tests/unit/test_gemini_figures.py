"""Gemini's figures 11 and 14 against the numbers of its artefact's notebook; charts as drawn."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from flowcheck.cli import app
from flowcheck.fleet.copy_placement import Strategy
from flowcheck.fleet.gemini_figures import (
    GEMINI,
    HIGH_FREQUENCY,
    STRAWMAN,
    figure_9,
    figure_11,
    figure_14,
    figure_14b,
)

SYSTEMS = (GEMINI, STRAWMAN, HIGH_FREQUENCY)
EXACT_9 = """
16 0.933333 0.800000 0.866667 0.628571
24 0.956522 0.869565 0.913043 0.750988
32 0.967742 0.903226 0.935484 0.812903
"""
"""N; groups with 2 and 3 lost; rings: by enumeration with another program."""
FIGURE_14A = """
1 0.99375 0.92222 0.83909
2 0.98750 0.84444 0.82103
4 0.97500 0.68889 0.78492
8 0.95000 0.37778 0.71270
"""
FIGURE_14B = """
200 0.98125 0.76667 0.80298
300 0.97188 0.65000 0.77589
500 0.95313 0.41667 0.72173
800 0.92500 0.06667 0.64048
900 0.91563 0.00000 0.61339
1000 0.90625 0.00000 0.58631
"""


def lines(table: str) -> list[list[str]]:
    return [line.split() for line in table.split("\n")[1:-1]]


@pytest.mark.parametrize("line", lines(EXACT_9))
def test_exact_values_of_figure_9(line: list[str]) -> None:
    found = [
        figure_9(strategy, int(line[0]), lost)[1]
        for strategy in (Strategy.GROUP, Strategy.RING)
        for lost in (2, 3)
    ]
    assert [f"{float(one):.6f}" for one in found] == line[1:]


def test_figure_11() -> None:
    rows = {100: [17, 34, 51, 68], 200: [34, 68, 102, 136], 400: [68, 136, 204, 272]}
    for nic, wanted in rows.items():
        assert [figure_11(nic, nodes) for nodes in (4, 8, 12, 16)] == wanted


@pytest.mark.parametrize("line", lines(FIGURE_14A))
def test_figure_14a(line: list[str]) -> None:
    found = [figure_14(system, Fraction(int(line[0]))) for system in SYSTEMS]
    assert [float(one) for one in found] == pytest.approx([float(w) for w in line[1:]], abs=5.1e-6)


@pytest.mark.parametrize("line", lines(FIGURE_14B))
def test_figure_14b(line: list[str]) -> None:
    found = [figure_14b(system, int(line[0])) for system in SYSTEMS]
    assert [float(one) for one in found] == pytest.approx([float(w) for w in line[1:]], abs=5.1e-6)


def curves_of(path: Path) -> list[list[list[float]]]:
    """[curve][point] x and y, as drawn."""
    root = ElementTree.parse(path).getroot()
    drawn = [one.get("points", "") for one in root.iter("{http://www.w3.org/2000/svg}polyline")]
    return [[[float(n) for n in p.split(",")] for p in one.split()] for one in drawn]


def test_figures_are_drawn_with_the_points_that_json_tells(tmp_path: Path) -> None:
    file = tmp_path / "gemini.svg"
    made = CliRunner().invoke(app, ["fleet", "figures", "--svg", str(file), "--json"])
    assert made.exit_code == 0, made.output
    charts = json.loads(made.stdout)["charts"]
    told = [curve for chart in charts for curve in chart["curves"]]
    drawn = curves_of(file)
    assert [len(points) for _, points in told] == [len(one) for one in drawn]
    # Group and ring of figure 9: the bound lies nowhere above what is exact (y grows downward).
    for bound, exact in ((0, 1), (2, 3), (4, 5), (6, 7)):
        pairs = zip(drawn[bound], drawn[exact], strict=True)
        assert all(low[1] >= high[1] for low, high in pairs)


def test_a_plan_is_drawn(tmp_path: Path) -> None:
    file = tmp_path / "plan.svg"
    words = ["fleet", "plan", "--nodes", "16", "--strategy", "ring", "--svg", str(file)]
    assert CliRunner().invoke(app, words).exit_code == 0
    exact, bound = curves_of(file)
    assert exact[:3] == bound[:3] and exact[0][1] == exact[1][1] < exact[2][1], "0, 1, 2 lost"
    assert bound[3][1] > exact[3][1] and len(exact) == len(bound) == 10, "no 9 of 16 are apart"
    words[-2:] = ["--data-blocks", "2", "--parity-blocks", "1", "--svg", str(file)]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert len(curves_of(file)) == 1, "of an erasure code the bound says nothing"


def test_a_picture_is_drawn_anew_by_another_process(tmp_path: Path) -> None:
    """Of each command whose charts draw no ring: nothing else may have named the namespace."""
    for words in (["plan-loss", "--gradient-bytes", "1e6"], ["fleet", "figures"]):
        file = tmp_path / f"{words[0]}.svg"
        command = [sys.executable, "-m", "flowcheck", *words, "--svg", str(file)]
        for _ in range(2):
            subprocess.run(command, check=True, capture_output=True)
        assert file.read_bytes().startswith(b"<svg ")
