"""Line charts as SVG; curves differ in their strokes, not in colour."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import msgspec

from flowcheck.ops.svg_drawing import (
    LINE_HEIGHT,
    STYLE,
    SVG_NAMESPACE,
    add_element,
    add_text,
)

WIDTH, HEIGHT = 560, 400
"""Of a chart, in units of the viewBox (pixels at full size), as all sizes here."""
LEFT, RIGHT, TOP, BOTTOM = 60, 540, 40, 290
LOOKS = (("2", "none"), ("2", "7 4"), ("1", "none"), ("1", "2 3"), ("4", "none"), ("4", "9 5"))
"""(stroke, dashes) of each curve in turn."""
MOST_TICKS = 10
"""Of the x axis. A choice: what stands side by side."""
CURVES = ".curve{stroke:#000;fill:none}.axis{stroke:#000;stroke-width:1}.grid{stroke:#ccc}"


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """Curves over one axis."""

    title: str
    axis: str
    """What x is."""
    curves: tuple[tuple[str, tuple[tuple[float, float], ...]], ...]
    """(name, points) of each, six at most."""
    top: float = 1.0
    """Of the y axis, which begins at 0."""


def svg_of_charts(charts: Sequence[Chart]) -> str:
    """The charts, one below another, as the text of a picture."""
    height = HEIGHT * len(charts)
    size = {"viewBox": f"0 0 {WIDTH} {height}", "width": f"{WIDTH}", "height": f"{height}"}
    root = Element(f"{{{SVG_NAMESPACE}}}svg", size | {"role": "img"})
    add_element(root, "style", STYLE + CURVES)
    for number, chart in enumerate(charts):
        _draw(add_element(root, "g", transform=f"translate(0 {number * HEIGHT})"), chart)
    return ElementTree.tostring(root, encoding="unicode")


def _draw(group: Element, chart: Chart) -> None:
    xs = [x for _, points in chart.curves for x, _ in points]
    first, wide = min(xs), (max(xs) - min(xs)) or 1

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + (RIGHT - LEFT) * (x - first) / wide,
            BOTTOM - (BOTTOM - TOP) * y / chart.top,
        )

    add_text(group, LEFT, 24, chart.title, "")
    for fifth in range(6):
        value = chart.top * fifth / 5
        _, y = place(first, value)
        add_element(group, "line", x1=LEFT, y1=y, x2=RIGHT, y2=y, **{"class": "grid"})
        add_text(group, LEFT - 8, y + 4, f"{value:g}", "small", "end")
    ticks: set[float] = set(xs)
    if len(ticks) > MOST_TICKS:
        ticks = {round(first + wide * step / 6) for step in range(7)}
    for value in sorted(ticks):
        x, _ = place(value, 0)
        add_text(group, x, BOTTOM + LINE_HEIGHT, f"{value:g}", "small", "middle")
    add_text(group, (LEFT + RIGHT) / 2, BOTTOM + 2 * LINE_HEIGHT, chart.axis, "small", "middle")
    for number, (name, points) in enumerate(chart.curves):
        width, dashes = LOOKS[number]
        look = {"class": "curve", "stroke-width": width, "stroke-dasharray": dashes}
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*one) for one in points))
        add_element(group, "polyline", None, points=drawn, **look)
        x, y = LEFT + (number % 2) * 240, BOTTOM + (3 + number // 2) * LINE_HEIGHT + 4
        add_element(group, "line", None, x1=x, y1=y - 4, x2=x + 40, y2=y - 4, **look)
        add_text(group, x + 48, y, name, "small")
