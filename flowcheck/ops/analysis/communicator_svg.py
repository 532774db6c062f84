"""Draws the communicators as one SVG: rings, mirrored links, and what they carry. Black on white
without external files; text and line styles carry the meaning, never colour."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from itertools import groupby
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from flowcheck.ops.analysis.communicator_summary import CommunicatorSummary, MirroredLink
from flowcheck.ops.analysis.communicator_text import lines_of
from flowcheck.ops.analysis.mirror_coverage import MirrorCoverage
from flowcheck.ops.svg_drawing import (
    LINE_HEIGHT,
    STYLE,
    SVG_NAMESPACE,
    add_element,
    add_text,
    definitions,
    point_on_circle,
    text_outside_ring,
)
from flowcheck.wire.algorithms.algorithm_names import Algorithm

WIDTH = 1180
RING_WIDTH = 560
"""Widths of the picture and of its column of rings, in units of its viewBox (pixels at full size),
as MARGIN and NODE. A choice of layout, as all sizes here."""
MARGIN = 24
COLUMNS = 78
"""Characters of a line beside a ring."""
NODE = 24
"""Radius of a node."""
MOST_NODES = 16
"""Most nodes of a ring that are all drawn. In a longer ring, nodes that no mirrored link touches
are drawn as one."""
LABELLED_NODES_MAX = 8
"""Most nodes of a ring for which labels fit between them."""
MOST_CELLS = 24
"""Most chunks whose links are drawn as cells of a row."""
Node = tuple[int | None, str]
"""(ring index, label below it); None: a part of the ring without mirrored links."""


def communicators_svg(communicators: Sequence[CommunicatorSummary], title: str) -> str:
    """The SVG document, one panel per communicator."""
    ElementTree.register_namespace("", SVG_NAMESPACE)
    panels: list[Element] = []
    top: float = 2 * MARGIN + LINE_HEIGHT
    for one in communicators:
        panel, height = _panel(one, top)
        panels.append(panel)
        top += height + MARGIN
    if not panels:
        top += LINE_HEIGHT + MARGIN
    attributes = {"viewBox": f"0 0 {WIDTH} {top}", "width": str(WIDTH), "height": str(top)}
    root = Element(f"{{{SVG_NAMESPACE}}}svg", attributes | {"role": "img"})
    add_element(root, "title", text=title)
    add_element(
        root, "desc", text="\n".join(line for one in communicators for line in lines_of(one))
    )
    add_element(root, "style", text=STYLE)
    definitions(root)
    add_element(root, "rect", width=WIDTH, height=top, fill="#fff")
    add_text(root, MARGIN, MARGIN + LINE_HEIGHT, title, "title")
    if not panels:
        add_text(root, MARGIN, 2 * MARGIN + 2 * LINE_HEIGHT, "No communicator was read.")
    root.extend(panels)
    ElementTree.indent(root, " ")
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _panel(one: CommunicatorSummary, top: float) -> tuple[Element, float]:
    """(the drawing of one communicator, its height)."""
    group = Element(f"{{{SVG_NAMESPACE}}}g", {"class": "communicator"})
    title, *lines = lines_of(one)
    words = [part for line in lines for part in _wrapped(line)]
    add_element(group, "line", x1=MARGIN, y1=top, x2=WIDTH - MARGIN, y2=top, **{"class": "rule"})
    add_text(group, MARGIN, top + 1.5 * LINE_HEIGHT, title, "title")
    below = top + 2.5 * LINE_HEIGHT
    if one.ring:
        left = _ring(group, one, below)
        if one.coverage is not None:
            left += _chunks(group, one.coverage, below + left)
    else:
        left = _pairs(group, one, below)
    for number, line in enumerate(words):
        add_text(group, RING_WIDTH + MARGIN, below + LINE_HEIGHT * (number + 1), line, "mono")
    return group, max(left, LINE_HEIGHT * (len(words) + 1)) + 2.5 * LINE_HEIGHT


def _wrapped(line: str) -> list[str]:
    indent = " " * 10
    return textwrap.wrap(line, COLUMNS, subsequent_indent=indent, drop_whitespace=True) or [""]


def nodes_of(one: CommunicatorSummary) -> list[Node]:
    """Nodes to draw, in ring order; in a long ring those with mirrored links, and the gaps between
    them."""
    touched = {index for link in one.links for index in (link.sender, link.receiver)}
    nodes: list[Node] = []
    unit = "node" if one.gpus > 1 else "rank"
    for index in range(one.nodes):
        if one.nodes <= MOST_NODES or index in touched:
            nodes.append((index, one.host(index)))
        elif nodes and nodes[-1][0] is None:
            count = int(nodes[-1][1].split()[0]) + 1
            nodes[-1] = (None, f"{count} {unit}s")
        else:
            nodes.append((None, f"1 {unit}"))
    if len(nodes) > 1 and nodes[0][0] is None and nodes[-1][0] is None:
        count = int(nodes.pop()[1].split()[0]) + int(nodes[0][1].split()[0])
        nodes[0] = (None, f"{count} {unit}s")
    return nodes


def _ring(group: Element, one: CommunicatorSummary, top: float) -> float:
    """Clockwise, ring index 0 on top; the height it takes."""
    nodes = nodes_of(one)
    radius = max(95.0, len(nodes) * 2.6 * NODE / (2 * math.pi) + NODE)
    height = 2 * radius + 5.5 * LINE_HEIGHT + NODE
    centre = (RING_WIDTH / 2, top + height / 2)
    links = {link.sender: link for link in one.links if link.algorithm is Algorithm.RING}
    for place, (index, _) in enumerate(nodes):
        link = links.get(index) if index is not None else None
        _arc(group, centre, radius, place, len(nodes), link)
    for place, (index, below) in enumerate(nodes):
        x, y = point_on_circle(centre, radius, place / len(nodes))
        known = " known" if below and index is not None else ""
        add_element(group, "circle", cx=x, cy=y, r=NODE, **{"class": f"box{known}"})
        add_text(group, x, y + 5, "..." if index is None else str(index), anchor="middle")
        text_outside_ring(group, centre, radius + NODE + 6, place / len(nodes), below or "not seen")
    by = f"node, {one.gpus} GPUs each" if one.gpus > 1 else "ring index"
    legend = f"thick: mirrored; dotted: not; data go round clockwise, by {by}"
    add_text(group, MARGIN, top + height, legend, "small")
    return height + LINE_HEIGHT


def _arc(
    group: Element,
    centre: tuple[float, float],
    radius: float,
    place: int,
    count: int,
    link: MirroredLink | None,
) -> None:
    """From one node to the next, with what a mirrored link carries written beside it."""
    gap = (NODE + 5) / (2 * math.pi * radius)
    x1, y1 = point_on_circle(centre, radius, place / count + gap)
    x2, y2 = point_on_circle(centre, radius, (place + 1) / count - gap - 0.006)
    path = f"M {x1:.1f} {y1:.1f} A {radius:.1f} {radius:.1f} 0 0 1 {x2:.1f} {y2:.1f}"
    kind = "unseen" if link is None else "seen"
    arrow = {"class": f"link {kind}", "marker-end": f"url(#{kind}-end)"}
    add_element(group, "path", d=path, **arrow)
    if link is not None and count <= LABELLED_NODES_MAX:
        told = _link_labels(link)
        # Inside the ring: beside the nodes stand their addresses.
        x, y = point_on_circle(centre, radius - 2.2 * LINE_HEIGHT, (place + 0.5) / count)
        for number, words in enumerate(told):
            shift = (number - (len(told) - 1) / 2) * (LINE_HEIGHT - 3)
            add_text(group, x, y + shift + 4, words, "small", anchor="middle")


def _link_labels(link: MirroredLink) -> list[str]:
    """`mirrored`, its channels, its protocols."""
    channels = sorted({one.channel for one in link.connections if one.channel is not None})
    runs = [list(run) for _, run in groupby(channels, key=lambda c: c - channels.index(c))]
    named = ", ".join(f"{run[0]}-{run[-1]}" if run[1:] else str(run[0]) for run in runs) or "?"
    protocols = dict.fromkeys(name for one in link.connections for name in one.protocols)
    return ["mirrored", f"ch {named}", "/".join(protocols) or "idle"]


def _chunks(group: Element, coverage: MirrorCoverage, top: float) -> float:
    """A cell for each chunk of a loop: how many mirrored links carry its sum; the height."""
    cells = coverage.chunk_links[:MOST_CELLS]
    size = min(34.0, (RING_WIDTH - 2 * MARGIN) / max(1, len(cells)))
    add_text(
        group,
        MARGIN,
        top + LINE_HEIGHT,
        "Chunks of a sum, and on how many mirrored links each passes:",
    )
    for number, times in enumerate(cells):
        x, y = MARGIN + number * size, top + 1.6 * LINE_HEIGHT
        kind = "once" if times == 1 else "twice" if times else ""
        box = {"class": f"box chunk {kind}".strip()}
        add_element(group, "rect", x=x, y=y, width=size - 2, height=size - 2, **box)
        middle = x + size / 2 - 1
        add_element(
            group, "rect", x=middle - 9, y=y + size / 2 - 10, width=18, height=17, fill="#fff"
        )
        add_text(
            group, middle, y + size / 2 + 3, "-" if not times else f"{times}x", "small", "middle"
        )
        add_text(group, middle, y + size + 11, str(number), "small", "middle")
    more = len(coverage.chunk_links) - len(cells)
    legend = "- never, 1x once (hatched), 2x twice or more (grey)"
    legend += f"; {more} more chunks are not drawn" if more else ""
    add_text(group, MARGIN, top + 1.6 * LINE_HEIGHT + size + 30, legend, "small")
    return 1.6 * LINE_HEIGHT + size + 40


def _pairs(group: Element, one: CommunicatorSummary, top: float) -> float:
    """Point-to-point connections, one a line; the height."""
    for number, link in enumerate(one.links):
        y = top + 2 * LINE_HEIGHT * (number + 1)
        add_text(group, MARGIN, y, ", ".join(link.sources), "mono")
        arrow = {"class": "link seen", "marker-end": "url(#seen-end)"}
        middle = RING_WIDTH / 2
        add_element(
            group, "path", d=f"M {middle - 40:g} {y - 4:g} L {middle + 10:g} {y - 4:g}", **arrow
        )
        add_text(group, middle + 30, y, ", ".join(link.destinations), "mono")
    return 2 * LINE_HEIGHT * (len(one.links) + 1)
