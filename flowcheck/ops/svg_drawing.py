"""SVG drawings: shapes, text and style shared by all diagrams, and writing an SVG to a file
that the user named."""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from flowcheck.errors import ConfigError, naming_file
from flowcheck.findings.catalog.refused_commands import NOT_A_PICTURE
from flowcheck.stages.privilege.output_delivery import is_picture

LINE_HEIGHT = 17
"""Height of a line of words."""
SVG_NAMESPACE = "http://www.w3.org/2000/svg"
ElementTree.register_namespace("", SVG_NAMESPACE)  # a picture begins with <svg (is_picture)
STYLE = (
    "text{font-family:sans-serif;font-size:13px;fill:#000}"
    ".mono{font-family:monospace;font-size:12px}.title{font-size:16px;font-weight:bold}"
    ".small{font-size:11px}.seen{stroke:#000;stroke-width:4;fill:none}"
    ".unseen{stroke:#666;stroke-width:1.5;stroke-dasharray:3 5;fill:none}"
    ".box{stroke:#000;stroke-width:1.5;fill:#fff}.known{stroke-width:3}"
    ".rule{stroke:#000;stroke-width:1}.once{fill:url(#hatch)}.twice{fill:#ccc}"
)


def text_outside_ring(
    group: Element, centre: tuple[float, float], radius: float, turn: float, words: str
) -> None:
    """Words outside the ring, on the side where there is room."""
    x, y = point_on_circle(centre, radius, turn)
    side = round(math.sin(2 * math.pi * turn), 3)
    anchor = "start" if side > 0.2 else "end" if side < -0.2 else "middle"
    over = -1 if y < centre[1] else 1
    add_text(
        group,
        x,
        y + (5 if anchor != "middle" else over * LINE_HEIGHT / 2 + 4),
        words,
        "small",
        anchor,
    )


def point_on_circle(centre: tuple[float, float], radius: float, turn: float) -> tuple[float, float]:
    """The point after so many turns, clockwise from the top."""
    angle = 2 * math.pi * turn
    return centre[0] + radius * math.sin(angle), centre[1] - radius * math.cos(angle)


def definitions(root: Element) -> None:
    """Arrow heads, and the hatching of what is seen once."""
    defs = add_element(root, "defs")
    for kind, width in (("seen", 3), ("unseen", 6)):
        box = {"markerWidth": f"{width}", "markerHeight": f"{width}", "orient": "auto"}
        marker = add_element(
            defs, "marker", id=f"{kind}-end", viewBox="0 0 10 10", refX=7, refY=5, **box
        )
        add_element(
            marker, "path", d="M 0 0 L 10 5 L 0 10 z", fill="#000" if kind == "seen" else "#666"
        )
    hatch = add_element(
        defs, "pattern", id="hatch", width=6, height=6, patternUnits="userSpaceOnUse"
    )
    add_element(hatch, "path", d="M 0 6 L 6 0", stroke="#000", fill="none")


def add_element(
    parent: Element, tag: str, text: str | None = None, **attributes: str | float
) -> Element:
    """A child element, its text escaped as it is written."""
    values = {
        name: value if isinstance(value, str) else f"{value:g}"
        for name, value in attributes.items()
    }
    child = ElementTree.SubElement(parent, f"{{{SVG_NAMESPACE}}}{tag}", values)
    child.text = text
    return child


def add_text(
    parent: Element, x: float, y: float, words: str, kind: str = "", anchor: str = "start"
) -> None:
    """Words at a point; kind: a class of STYLE."""
    attributes = {"class": kind} if kind else {}
    spaces = {"xml:space": "preserve"} if words.startswith(" ") else {}
    placed = {"text-anchor": anchor, **attributes, **spaces}
    add_element(parent, "text", text=words, x=round(x, 1), y=round(y, 1), **placed)


def write_picture(path: Path, svg: str) -> None:
    """Raises ConfigError if the file exists and is not a picture: a capture named by mistake is
    not written over."""
    with naming_file(path):
        if path.is_file() and not is_picture(path):
            raise ConfigError("--svg", str(path), NOT_A_PICTURE())
        path.write_text(svg)  # in place: it may be /dev/stdout
