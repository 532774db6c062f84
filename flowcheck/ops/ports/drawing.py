"""Rings with the ports that are mirrored, as one SVG: shapes and words, no statement by colour.

A thick link is mirrored; a square at its begin is `rx` of who sends, a diamond at its end `tx` of
who receives; a dotted one is not mirrored.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import msgspec

from flowcheck.ops.analysis.strokes import LINE, STYLE, SVG, add, at, definitions, text
from flowcheck.ops.ports.chosen import Chosen
from flowcheck.ops.ports.rings import Link, Ring
from flowcheck.ops.ports.table import sentences
from flowcheck.ops.ports.taps import Pair
from flowcheck.ops.say import plain
from flowcheck.ops.switch.session import Direction

WIDTH = 1180
RING_WIDTH = 440
"""Of the picture and of its rings at least; both grow with the largest ring."""
MARGIN = 24
COLUMNS = 92
NODE = 20
MOST_NODES = 16
"""Of a longer ring, nodes that no mirrored link touches are drawn as one."""
MOST_PANELS = 16
LEGEND = (
    "thick: mirrored; dotted: not; square: rx, what a node sends; diamond: tx, what one receives; "
    "dashed node: its place in the ring is assumed"
)
OWN = (
    ".rx{fill:#000;stroke:#000}.tx{fill:#fff;stroke:#000;stroke-width:2.5}"
    ".assumed{stroke-dasharray:4 3}"
)


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """Channels of one group whose rings and mirrored ports are the same."""

    title: str
    ring: Ring
    pairs: tuple[Pair, ...]
    lines: tuple[str, ...]


def svg_of(chosen: Chosen) -> str:
    """The whole picture, well-formed, whatever names are in it."""
    ElementTree.register_namespace("", SVG)
    panels = list(_panels(chosen))
    heads = [part for told in sentences(chosen) for part in textwrap.wrap(plain(told), 150)]
    heads += [
        part for told in chosen.assumed for part in textwrap.wrap(plain(f"assumed: {told}"), 150)
    ]
    drawn: list[Element] = []
    top: float = 2 * MARGIN + LINE * (len(heads) + 3)
    radii = [_radius(len(_stops(panel))) for panel in panels[:MOST_PANELS]]
    rings = max([RING_WIDTH, *(2 * (radius + NODE + MARGIN) for radius in radii)])
    wide = WIDTH - RING_WIDTH + rings
    for panel in panels[:MOST_PANELS]:
        element, height = _drawn(panel, (top, rings, wide), chosen)
        drawn.append(element)
        top += height + MARGIN
    title = "Ports to mirror"
    size = {"viewBox": f"0 0 {wide:g} {top:g}", "width": f"{wide:g}", "height": f"{top:g}"}
    root = Element(f"{{{SVG}}}svg", size | {"role": "img"})
    add(root, "title", text=title)
    add(root, "desc", text="\n".join([*heads, *(line for panel in panels for line in panel.lines)]))
    add(root, "style", text=STYLE + OWN)
    definitions(root)
    add(root, "rect", width=wide, height=top, fill="#fff")
    text(root, MARGIN, MARGIN + LINE, title, "title")
    for number, line in enumerate([*heads, LEGEND]):
        text(root, MARGIN, MARGIN + LINE * (number + 2.5), line)
    if len(panels) > MOST_PANELS:
        told = f"{len(panels) - MOST_PANELS} more groups are in the table, not drawn"
        text(root, rings, MARGIN + LINE, told, "small")
    root.extend(drawn)
    ElementTree.indent(root, " ")
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _panels(chosen: Chosen) -> Iterable[Panel]:
    alike: dict[tuple[object, ...], list[Ring]] = {}
    for ring in chosen.rings:
        pairs = tuple(chosen.pairs_on(ring))
        key = (ring.group.number, ring.links, pairs)
        alike.setdefault(key, []).append(ring)
    for same in alike.values():
        ring, pairs = same[0], tuple(chosen.pairs_on(same[0]))
        channels = ", ".join(str(one.channel) for one in same)
        title = f"Group {ring.group.name}, channel {channels}: {ring.ranks} ranks"
        lines = [title, *(_told(chosen, ring, pair) for pair in pairs)]
        yield Panel(title=title, ring=ring, pairs=pairs, lines=tuple(map(plain, lines)))


def _told(chosen: Chosen, ring: Ring, pair: Pair) -> str:
    where = next(number for one, number in chosen.choice.placed if one == pair)
    spot = chosen.monitors.spots[where]
    links = [
        f"{link.out_of} -> {link.into} lacks chunk {(link.sender + 1) % ring.ranks}"
        for link in ring.links
        if _ends(link, pair)
    ]
    told = f"{pair.switch} {pair.port}:{pair.direction} ({pair.told}), to {spot.monitor.called}"
    return f"{told} of {spot.monitor.machine}; {'; '.join(links)}"


def _ends(link: Link, pair: Pair) -> bool:
    """Whether a link passes a pair."""
    if pair.direction is Direction.RX:
        return (link.out_of, link.nic_out) == (pair.node, pair.nic)
    return (link.into, link.nic_in) == (pair.node, pair.nic)


def _drawn(
    panel: Panel, place: tuple[float, float, float], chosen: Chosen
) -> tuple[Element, float]:
    """(the drawing of one panel, its height); place: its top, the rings' width, the picture's."""
    top, rings, wide = place
    group = Element(f"{{{SVG}}}g", {"class": "group"})
    add(group, "line", x1=MARGIN, y1=top, x2=wide - MARGIN, y2=top, **{"class": "rule"})
    text(group, MARGIN, top + 1.5 * LINE, plain(panel.title), "title")
    height = _ring(group, panel, (rings / 2, top + 2 * LINE), chosen.order_assumed)
    words = [part for line in panel.lines[1:] for part in textwrap.wrap(line, COLUMNS) or [""]]
    for number, line in enumerate(words):
        text(group, rings + MARGIN, top + LINE * (number + 3), line, "mono")
    return group, max(height, LINE * (len(words) + 2)) + 2 * LINE


def _stops(panel: Panel) -> list[tuple[int | None, Link | None]]:
    """(node, the link out of it) in order; None: a stretch that nothing mirrored touches."""
    links = panel.ring.links
    watched = [link for link in links if any(_ends(link, pair) for pair in panel.pairs)]
    touched = {node for link in watched for node in (link.out_of, link.into)}
    stops: list[tuple[int | None, Link | None]] = []
    for link in links:
        if len(links) <= MOST_NODES or link.out_of in touched:
            stops.append((link.out_of, link))
        elif not stops or stops[-1][0] is not None:
            stops.append((None, None))
    return stops


def _radius(stops: int) -> float:
    """Of a ring with so many stops, room for an arrow between any two."""
    return max(80.0, stops * 3.6 * NODE / (2 * math.pi) + NODE)


def _ring(group: Element, panel: Panel, at_top: tuple[float, float], assumed: bool) -> float:
    """Clockwise, the ring's first node on top; the height it takes. at_top: its middle, its top."""
    middle, top = at_top
    stops = _stops(panel)
    radius = _radius(len(stops))
    height = 2 * radius + 3 * NODE
    centre = (middle, top + height / 2)
    for place, (_, link) in enumerate(stops):
        pairs = [p for p in panel.pairs if link is not None and _ends(link, p)]
        _arc(group, centre, radius, (place, len(stops)), pairs)
    dashed = " assumed" if assumed else ""
    for place, (node, _) in enumerate(stops):
        x, y = at(centre, radius, place / len(stops))
        add(group, "circle", cx=x, cy=y, r=NODE, **{"class": f"box node{dashed}"})
        text(group, x, y + 5, "..." if node is None else str(node), anchor="middle")
    return height + LINE


def _arc(
    group: Element,
    centre: tuple[float, float],
    radius: float,
    place: tuple[int, int],
    pairs: Sequence[Pair],
) -> None:
    """From one node to the next, with the marks of the ports that are mirrored there."""
    number, count = place
    gap = (NODE + 4) / (2 * math.pi * radius)
    begin, end = number / count + gap, (number + 1) / count - gap - 0.006
    (x1, y1), (x2, y2) = at(centre, radius, begin), at(centre, radius, end)
    path = f"M {x1:.1f} {y1:.1f} A {radius:.1f} {radius:.1f} 0 0 1 {x2:.1f} {y2:.1f}"
    kind = "seen" if pairs else "unseen"
    arrow = {"class": f"link {kind}", "marker-end": f"url(#{kind}-end)"}
    add(group, "path", d=path, **arrow)
    for pair in pairs:
        first = pair.direction is Direction.RX
        x, y = at(centre, radius, begin + 0.008 if first else end - 0.012)
        shape = "0 0 12 0 12 12 0 12" if first else "6 -2 14 6 6 14 -2 6"
        points = [float(n) for n in shape.split()]
        moved = " ".join(
            f"{px + x - 6:.1f},{py + y - 6:.1f}"
            for px, py in zip(points[::2], points[1::2], strict=True)
        )
        add(group, "polygon", points=moved, **{"class": f"port {pair.direction}"})
        x, y = at(centre, radius - 24, begin + 0.01 if first else end - 0.01)
        text(group, x, y + 4, str(pair.direction), "small", anchor="middle")
