"""SVG drawing of a plan of packet loss: how much of a day a replica is exact, against the loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from flowcheck.ops.packet_loss.loss_plan import LossPlan, MirrorOdds, coverages, plan_with
from flowcheck.ops.packet_loss.loss_report import coverage_words
from flowcheck.ops.svg_drawing import (
    LINE_HEIGHT,
    STYLE,
    SVG_NAMESPACE,
    add_element,
    add_text,
)

WIDTH, HEIGHT = 900, 560
LEFT, RIGHT, TOP, BOTTOM = 70, 870, 90, 400
"""Edges of the diagram, in units of the viewBox (pixels at full size), as all sizes here."""
FROM, TO = -12, -2
"""Powers of ten of the loss of a copy that the diagram shows."""
LOSSES = [10 ** (FROM + (TO - FROM) * n / 120) for n in range(121)]
WIDTHS = ("1.5", "3.5", "6")
"""Strokes of one copy, two links, two copies."""
HEALED = "9 5"
GOES_ON = "goes on with the trainer's next checkpoint"
CURVES = ".curve{stroke:#000;fill:none}.axis{stroke:#000;stroke-width:1}.grid{stroke:#ccc}"


def loss_svg_of(plan: LossPlan) -> str:
    """The picture as text. Curves differ in their strokes, not in colour."""
    size = {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "width": f"{WIDTH}", "height": f"{HEIGHT}"}
    root = Element(f"{{{SVG_NAMESPACE}}}svg", size | {"role": "img"})
    add_element(root, "style", STYLE + CURVES)
    title = "Probability that a step picked at random from a day is exact in the replica"
    add_text(root, LEFT, 30, title, "title")
    add_text(root, LEFT, 30 + LINE_HEIGHT, _job(plan), "small")
    _axes(root)
    shown = [one for one in coverages(plan.wire.ranks) if one.links != 3]
    y = float(BOTTOM + 62)
    for coverage, width in zip(shown, WIDTHS, strict=True):
        planned = [plan_with(plan.packets, plan.settings, coverage, loss) for loss in LOSSES]
        name = coverage_words(coverage)
        _curve(root, [one.whole_rule.exact_share for one in planned], width, "none")
        _legend(root, y, f"{name}; stops before the first lost step", width, "none")
        y += LINE_HEIGHT
        if healed := _with_checkpoints(planned):
            _curve(root, healed, width, HEALED)
            told = "goes on tainted until healed" if plan.settings.taints else GOES_ON
            _legend(root, y, f"{name}; {told}", width, HEALED)
            y += LINE_HEIGHT
    return ElementTree.tostring(root, encoding="unicode")


def _with_checkpoints(planned: Sequence[MirrorOdds]) -> list[float]:
    """[loss] share of exact steps with the trainer's checkpoints, where it writes any."""
    tainted = [one.taint.exact_share for one in planned if one.taint is not None]
    kept = [one.whole_rule.kept_share for one in planned]
    return tainted or [share for share in kept if share is not None]


def _job(plan: LossPlan) -> str:
    told = (
        f"{plan.packets.packets:,} packets a step, {plan.wire.ranks} ranks, "
        f"{plan.steps_day:,} steps a day"
    )
    healing = plan.settings.healing
    if healing is None:
        return told
    if healing.checkpoint_every is not None:
        told += f", a checkpoint every {healing.checkpoint_every:,} steps"
    return told if healing.hook_delay is None else f"{told}, a hook in {healing.hook_delay:,}"


def _x(loss: float) -> float:
    return LEFT + (RIGHT - LEFT) * (math.log10(loss) - FROM) / (TO - FROM)


def _y(probability: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * probability


def _axes(root: Element) -> None:
    for power in range(FROM, TO + 1):
        x = _x(10.0**power)
        add_element(root, "line", x1=x, y1=TOP, x2=x, y2=BOTTOM, **{"class": "grid"})
        add_text(root, x, BOTTOM + LINE_HEIGHT, f"1e{power}", "small", "middle")
    for tenth in range(0, 11, 2):
        y = _y(tenth / 10)
        add_element(root, "line", x1=LEFT, y1=y, x2=RIGHT, y2=y, **{"class": "grid"})
        add_text(root, LEFT - 8, y + 4, f"{tenth / 10:g}", "small", "end")
    width, height = RIGHT - LEFT, BOTTOM - TOP
    look = {"class": "axis", "fill": "none"}
    add_element(root, "rect", None, x=LEFT, y=TOP, width=width, height=height, **look)
    middle = (LEFT + RIGHT) / 2
    add_text(root, middle, BOTTOM + 2 * LINE_HEIGHT, "loss of one copy of a packet", "", "middle")


def _curve(root: Element, values: Sequence[float], width: str, dashes: str) -> None:
    """values: [loss of LOSSES]."""
    points = " ".join(
        f"{_x(loss):.1f},{_y(value):.1f}" for loss, value in zip(LOSSES, values, strict=True)
    )
    look = {"class": "curve", "stroke-width": width, "stroke-dasharray": dashes}
    add_element(root, "polyline", None, points=points, **look)


def _legend(root: Element, y: float, words: str, width: str, dashes: str) -> None:
    look = {"class": "curve", "stroke-width": width, "stroke-dasharray": dashes}
    add_element(root, "line", None, x1=LEFT, y1=y - 4, x2=LEFT + 60, y2=y - 4, **look)
    add_text(root, LEFT + 70, y, words, "small")
