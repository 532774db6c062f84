"""SVG drawing of the rings with the mirrored ports; shapes and words carry the meaning, not
colour.

A thick link is mirrored; a square at its start is `rx` of the sender, a diamond at its end `tx` of
the receiver; a dotted link is not mirrored.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import msgspec

from flowcheck.ops.console_output import printable
from flowcheck.ops.mirror_ports.cluster_layout.channel_rings import ChannelRing, RingLink
from flowcheck.ops.mirror_ports.mirror_plan import MirrorPlan
from flowcheck.ops.mirror_ports.ports_report import plan_sentences
from flowcheck.ops.mirror_ports.search.chunk_coverage import MirroredDirection
from flowcheck.ops.svg_drawing import (
    LINE_HEIGHT,
    STYLE,
    SVG_NAMESPACE,
    add_element,
    add_text,
    definitions,
    point_on_circle,
)
from flowcheck.ops.switch.mirror_session import MirrorDirection

WIDTH = 1180
RING_WIDTH = 440
"""Smallest widths of the picture and of its column of rings, in units of its viewBox (pixels at
full size), as MARGIN and NODE; both grow with the largest ring. A choice of layout, as all sizes
here."""
MARGIN = 24
COLUMNS = 92
"""Characters of a line beside a ring."""
NODE = 20
"""Radius of a node."""
MOST_NODES = 16
"""Most nodes of a ring that are all drawn. In a longer ring, nodes that no mirrored link touches
are drawn as one."""
MOST_PANELS = 16
"""Most data-parallel groups that are drawn; a line says how many more the table has."""
LEGEND = (
    "thick: mirrored; dotted: not; square: rx, what a node sends; diamond: tx, what one receives; "
    "dashed node: its place in the ring is assumed"
)
ARROW_STYLE = (
    ".rx{fill:#000;stroke:#000}.tx{fill:#fff;stroke:#000;stroke-width:2.5}"
    ".assumed{stroke-dasharray:4 3}"
)


class RingPanel(msgspec.Struct, frozen=True, kw_only=True):
    """Channels of one group whose rings and mirrored ports are the same."""

    title: str
    ring: ChannelRing
    pairs: tuple[MirroredDirection, ...]
    lines: tuple[str, ...]


def svg_of(chosen: MirrorPlan) -> str:
    """The drawing as an SVG document. Names are escaped."""
    ElementTree.register_namespace("", SVG_NAMESPACE)
    panels = list(_panels(chosen))
    heads = [
        part for told in plan_sentences(chosen) for part in textwrap.wrap(printable(told), 150)
    ]
    heads += [
        part
        for told in chosen.assumed
        for part in textwrap.wrap(printable(f"assumed: {told}"), 150)
    ]
    drawn: list[Element] = []
    top: float = 2 * MARGIN + LINE_HEIGHT * (len(heads) + 3)
    radii = [_radius(len(_stops(panel))) for panel in panels[:MOST_PANELS]]
    rings = max([RING_WIDTH, *(2 * (radius + NODE + MARGIN) for radius in radii)])
    wide = WIDTH - RING_WIDTH + rings
    for panel in panels[:MOST_PANELS]:
        element, height = _drawn(panel, (top, rings, wide), chosen)
        drawn.append(element)
        top += height + MARGIN
    title = "Ports to mirror"
    size = {"viewBox": f"0 0 {wide:g} {top:g}", "width": f"{wide:g}", "height": f"{top:g}"}
    root = Element(f"{{{SVG_NAMESPACE}}}svg", size | {"role": "img"})
    add_element(root, "title", text=title)
    add_element(
        root, "desc", text="\n".join([*heads, *(line for panel in panels for line in panel.lines)])
    )
    add_element(root, "style", text=STYLE + ARROW_STYLE)
    definitions(root)
    add_element(root, "rect", width=wide, height=top, fill="#fff")
    add_text(root, MARGIN, MARGIN + LINE_HEIGHT, title, "title")
    for number, line in enumerate([*heads, LEGEND]):
        add_text(root, MARGIN, MARGIN + LINE_HEIGHT * (number + 2.5), line)
    if len(panels) > MOST_PANELS:
        told = f"{len(panels) - MOST_PANELS} more groups are in the table, not drawn"
        add_text(root, rings, MARGIN + LINE_HEIGHT, told, "small")
    root.extend(drawn)
    ElementTree.indent(root, " ")
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _panels(chosen: MirrorPlan) -> Iterable[RingPanel]:
    alike: dict[tuple[object, ...], list[ChannelRing]] = {}
    for ring in chosen.rings:
        pairs = tuple(chosen.pairs_on(ring))
        key = (ring.group.number, ring.links, pairs)
        alike.setdefault(key, []).append(ring)
    for same in alike.values():
        ring, pairs = same[0], tuple(chosen.pairs_on(same[0]))
        channels = ", ".join(str(one.channel) for one in same)
        title = f"Group {ring.group.name}, channel {channels}: {ring.ranks} ranks"
        lines = [title, *(_mirrored_port_text(chosen, ring, pair) for pair in pairs)]
        yield RingPanel(title=title, ring=ring, pairs=pairs, lines=tuple(map(printable, lines)))


def _mirrored_port_text(chosen: MirrorPlan, ring: ChannelRing, pair: MirroredDirection) -> str:
    where = next(number for one, number in chosen.choice.placed if one == pair)
    spot = chosen.monitors.monitor_ports[where]
    links = [
        f"{link.out_of} -> {link.into} lacks chunk {(link.sender + 1) % ring.ranks}"
        for link in ring.links
        if _ends(link, pair)
    ]
    told = (
        f"{pair.switch} {pair.port}:{pair.direction} ({pair.description}), to {spot.monitor.label}"
    )
    return f"{told} of {spot.monitor.machine}; {'; '.join(links)}"


def _ends(link: RingLink, pair: MirroredDirection) -> bool:
    """Whether a link passes a pair."""
    if pair.direction is MirrorDirection.RX:
        return (link.out_of, link.nic_out) == (pair.node, pair.nic)
    return (link.into, link.nic_in) == (pair.node, pair.nic)


def _drawn(
    panel: RingPanel, place: tuple[float, float, float], chosen: MirrorPlan
) -> tuple[Element, float]:
    """(the drawing of one panel, its height); place: its top, the rings' width, the picture's."""
    top, rings, wide = place
    group = Element(f"{{{SVG_NAMESPACE}}}g", {"class": "group"})
    add_element(group, "line", x1=MARGIN, y1=top, x2=wide - MARGIN, y2=top, **{"class": "rule"})
    add_text(group, MARGIN, top + 1.5 * LINE_HEIGHT, printable(panel.title), "title")
    height = _ring(group, panel, (rings / 2, top + 2 * LINE_HEIGHT), chosen.order_assumed)
    words = [part for line in panel.lines[1:] for part in textwrap.wrap(line, COLUMNS) or [""]]
    for number, line in enumerate(words):
        add_text(group, rings + MARGIN, top + LINE_HEIGHT * (number + 3), line, "mono")
    return group, max(height, LINE_HEIGHT * (len(words) + 2)) + 2 * LINE_HEIGHT


def _stops(panel: RingPanel) -> list[tuple[int | None, RingLink | None]]:
    """(node, the link out of it) in order; None: a stretch that nothing mirrored touches."""
    links = panel.ring.links
    watched = [link for link in links if any(_ends(link, pair) for pair in panel.pairs)]
    touched = {node for link in watched for node in (link.out_of, link.into)}
    stops: list[tuple[int | None, RingLink | None]] = []
    for link in links:
        if len(links) <= MOST_NODES or link.out_of in touched:
            stops.append((link.out_of, link))
        elif not stops or stops[-1][0] is not None:
            stops.append((None, None))
    return stops


def _radius(stops: int) -> float:
    """Of a ring with so many stops, room for an arrow between any two."""
    return max(80.0, stops * 3.6 * NODE / (2 * math.pi) + NODE)


def _ring(group: Element, panel: RingPanel, at_top: tuple[float, float], assumed: bool) -> float:
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
        x, y = point_on_circle(centre, radius, place / len(stops))
        add_element(group, "circle", cx=x, cy=y, r=NODE, **{"class": f"box node{dashed}"})
        add_text(group, x, y + 5, "..." if node is None else str(node), anchor="middle")
    return height + LINE_HEIGHT


def _arc(
    group: Element,
    centre: tuple[float, float],
    radius: float,
    place: tuple[int, int],
    pairs: Sequence[MirroredDirection],
) -> None:
    """From one node to the next, with the marks of the ports that are mirrored there."""
    number, count = place
    gap = (NODE + 4) / (2 * math.pi * radius)
    begin, end = number / count + gap, (number + 1) / count - gap - 0.006
    (x1, y1), (x2, y2) = (
        point_on_circle(centre, radius, begin),
        point_on_circle(centre, radius, end),
    )
    path = f"M {x1:.1f} {y1:.1f} A {radius:.1f} {radius:.1f} 0 0 1 {x2:.1f} {y2:.1f}"
    kind = "seen" if pairs else "unseen"
    arrow = {"class": f"link {kind}", "marker-end": f"url(#{kind}-end)"}
    add_element(group, "path", d=path, **arrow)
    for pair in pairs:
        first = pair.direction is MirrorDirection.RX
        x, y = point_on_circle(centre, radius, begin + 0.008 if first else end - 0.012)
        shape = "0 0 12 0 12 12 0 12" if first else "6 -2 14 6 6 14 -2 6"
        points = [float(n) for n in shape.split()]
        moved = " ".join(
            f"{px + x - 6:.1f},{py + y - 6:.1f}"
            for px, py in zip(points[::2], points[1::2], strict=True)
        )
        add_element(group, "polygon", points=moved, **{"class": f"port {pair.direction}"})
        x, y = point_on_circle(centre, radius - 24, begin + 0.01 if first else end - 0.01)
        add_text(group, x, y + 4, str(pair.direction), "small", anchor="middle")
