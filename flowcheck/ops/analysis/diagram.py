"""A job's communicators as one SVG: rings, mirrored links, what they carry, what is seen of it.

Black on white, nothing outside the file. Every statement is a word or a line style, none a colour.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from itertools import groupby
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from flowcheck.ops.analysis.communicators import Communicator, Link
from flowcheck.ops.analysis.coverage import Coverage
from flowcheck.ops.analysis.explain import lines_of
from flowcheck.ops.analysis.strokes import LINE, STYLE, SVG, add, at, beside, definitions, text

WIDTH = 1180
RING_WIDTH = 560
MARGIN = 24
COLUMNS = 78
NODE = 24
MOST_NODES = 16
"""Of a longer ring those that no mirrored link touches are drawn as one node."""
MOST_TOLD = 8
"""Nodes between which there is room for words."""
MOST_CELLS = 24
Node = tuple[int | None, str]
"""(ring index, what stands below); None: a stretch of the ring that no mirrored link touches."""


def svg_of(communicators: Sequence[Communicator], title: str) -> str:
    """The whole picture, a panel for each communicator."""
    ElementTree.register_namespace("", SVG)
    panels: list[Element] = []
    top: float = 2 * MARGIN + LINE
    for one in communicators:
        panel, height = _panel(one, top)
        panels.append(panel)
        top += height + MARGIN
    if not panels:
        top += LINE + MARGIN
    attributes = {"viewBox": f"0 0 {WIDTH} {top}", "width": str(WIDTH), "height": str(top)}
    root = Element(f"{{{SVG}}}svg", attributes | {"role": "img"})
    add(root, "title", text=title)
    add(root, "desc", text="\n".join(line for one in communicators for line in lines_of(one)))
    add(root, "style", text=STYLE)
    definitions(root)
    add(root, "rect", width=WIDTH, height=top, fill="#fff")
    text(root, MARGIN, MARGIN + LINE, title, "title")
    if not panels:
        text(root, MARGIN, 2 * MARGIN + 2 * LINE, "No communicator was read.")
    root.extend(panels)
    ElementTree.indent(root, " ")
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _panel(one: Communicator, top: float) -> tuple[Element, float]:
    """(the drawing of one communicator, its height)."""
    group = Element(f"{{{SVG}}}g", {"class": "communicator"})
    title, *lines = lines_of(one)
    words = [part for line in lines for part in _wrapped(line)]
    add(group, "line", x1=MARGIN, y1=top, x2=WIDTH - MARGIN, y2=top, **{"class": "rule"})
    text(group, MARGIN, top + 1.5 * LINE, title, "title")
    below = top + 2.5 * LINE
    if one.ring:
        left = _ring(group, one, below)
        if one.coverage is not None:
            left += _chunks(group, one.coverage, below + left)
    else:
        left = _pairs(group, one, below)
    for number, line in enumerate(words):
        text(group, RING_WIDTH + MARGIN, below + LINE * (number + 1), line, "mono")
    return group, max(left, LINE * (len(words) + 1)) + 2.5 * LINE


def _wrapped(line: str) -> list[str]:
    indent = " " * 10
    return textwrap.wrap(line, COLUMNS, subsequent_indent=indent, drop_whitespace=True) or [""]


def nodes_of(one: Communicator) -> list[Node]:
    """Ring indices in order; of a long ring, those a mirrored link touches and the gaps between."""
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


def _ring(group: Element, one: Communicator, top: float) -> float:
    """Clockwise, ring index 0 on top; the height it takes."""
    nodes = nodes_of(one)
    radius = max(95.0, len(nodes) * 2.6 * NODE / (2 * math.pi) + NODE)
    height = 2 * radius + 5.5 * LINE + NODE
    centre = (RING_WIDTH / 2, top + height / 2)
    links = {link.sender: link for link in one.links if not link.tree}
    for place, (index, _) in enumerate(nodes):
        link = links.get(index) if index is not None else None
        _arc(group, centre, radius, place, len(nodes), link)
    for place, (index, below) in enumerate(nodes):
        x, y = at(centre, radius, place / len(nodes))
        known = " known" if below and index is not None else ""
        add(group, "circle", cx=x, cy=y, r=NODE, **{"class": f"box{known}"})
        text(group, x, y + 5, "..." if index is None else str(index), anchor="middle")
        beside(group, centre, radius + NODE + 6, place / len(nodes), below or "not seen")
    by = f"node, {one.gpus} GPUs each" if one.gpus > 1 else "ring index"
    legend = f"thick: mirrored; dotted: not; data go round clockwise, by {by}"
    text(group, MARGIN, top + height, legend, "small")
    return height + LINE


def _arc(
    group: Element,
    centre: tuple[float, float],
    radius: float,
    place: int,
    count: int,
    link: Link | None,
) -> None:
    """From one node to the next, with what a mirrored link carries written beside it."""
    gap = (NODE + 5) / (2 * math.pi * radius)
    x1, y1 = at(centre, radius, place / count + gap)
    x2, y2 = at(centre, radius, (place + 1) / count - gap - 0.006)
    path = f"M {x1:.1f} {y1:.1f} A {radius:.1f} {radius:.1f} 0 0 1 {x2:.1f} {y2:.1f}"
    kind = "unseen" if link is None else "seen"
    arrow = {"class": f"link {kind}", "marker-end": f"url(#{kind}-end)"}
    add(group, "path", d=path, **arrow)
    if link is not None and count <= MOST_TOLD:
        told = _told(link)
        # Inside the ring: beside the nodes stand their addresses.
        x, y = at(centre, radius - 2.2 * LINE, (place + 0.5) / count)
        for number, words in enumerate(told):
            shift = (number - (len(told) - 1) / 2) * (LINE - 3)
            text(group, x, y + shift + 4, words, "small", anchor="middle")


def _told(link: Link) -> list[str]:
    """`mirrored`, its channels, its protocols."""
    channels = sorted({one.channel for one in link.connections if one.channel is not None})
    runs = [list(run) for _, run in groupby(channels, key=lambda c: c - channels.index(c))]
    named = ", ".join(f"{run[0]}-{run[-1]}" if run[1:] else str(run[0]) for run in runs) or "?"
    protocols = dict.fromkeys(name for one in link.connections for name in one.protocols)
    return ["mirrored", f"ch {named}", "/".join(protocols) or "idle"]


def _chunks(group: Element, coverage: Coverage, top: float) -> float:
    """A cell for each chunk of a loop: how many mirrored links carry its sum; the height."""
    cells = coverage.chunk_links[:MOST_CELLS]
    size = min(34.0, (RING_WIDTH - 2 * MARGIN) / max(1, len(cells)))
    text(group, MARGIN, top + LINE, "Chunks of a sum, and on how many mirrored links each passes:")
    for number, times in enumerate(cells):
        x, y = MARGIN + number * size, top + 1.6 * LINE
        kind = "once" if times == 1 else "twice" if times else ""
        box = {"class": f"box chunk {kind}".strip()}
        add(group, "rect", x=x, y=y, width=size - 2, height=size - 2, **box)
        middle = x + size / 2 - 1
        add(group, "rect", x=middle - 9, y=y + size / 2 - 10, width=18, height=17, fill="#fff")
        text(group, middle, y + size / 2 + 3, "-" if not times else f"{times}x", "small", "middle")
        text(group, middle, y + size + 11, str(number), "small", "middle")
    more = len(coverage.chunk_links) - len(cells)
    legend = "- never, 1x once (hatched), 2x twice or more (grey)"
    legend += f"; {more} more chunks are not drawn" if more else ""
    text(group, MARGIN, top + 1.6 * LINE + size + 30, legend, "small")
    return 1.6 * LINE + size + 40


def _pairs(group: Element, one: Communicator, top: float) -> float:
    """Point-to-point connections, one a line; the height."""
    for number, link in enumerate(one.links):
        y = top + 2 * LINE * (number + 1)
        text(group, MARGIN, y, ", ".join(link.sources), "mono")
        arrow = {"class": "link seen", "marker-end": "url(#seen-end)"}
        middle = RING_WIDTH / 2
        add(group, "path", d=f"M {middle - 40:g} {y - 4:g} L {middle + 10:g} {y - 4:g}", **arrow)
        text(group, middle + 30, y, ", ".join(link.destinations), "mono")
    return 2 * LINE * (len(one.links) + 1)
