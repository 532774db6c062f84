"""A reading as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flowcheck.wire.learn import Collective, FlowReading, Reading

BAR_CELLS = 10
HASH_DIGITS = 12
MOST_RANGES = 3


def print_report(
    frames: Mapping[str, int],
    reading: Reading,
    notes: Sequence[str] = (),
    console: Console | None = None,
) -> None:
    """Frames, flows, collectives, weights; then what is assumed and what is missing."""
    out = console or Console()
    counted = ", ".join(f"{count} {verdict}" for verdict, count in frames.items() if count)
    out.print(f"[bold]{sum(frames.values())} frames[/]: {escape(counted) or 'none'}")
    out.print(_flows(reading.flows))
    out.print(_collectives(reading.collectives))
    out.print(_weights(reading))
    for sentence in [*_assumed(reading), *_lost(reading), *reading.why_not, *notes]:
        out.print(f"- {escape(sentence)}")


def _flows(flows: Sequence[FlowReading]) -> Table:
    table = Table(title="Flows", title_justify="left")
    for heading in ("from", "to", "QP", "peer QP", "role", "protocol"):
        table.add_column(heading)
    for heading in ("messages", "bytes", "lost", "twice", "bad ICRC"):
        table.add_column(heading, justify="right")
    table.add_column("numbered by")
    for flow in flows:
        seen = flow.seen
        table.add_row(
            seen.key.source,
            seen.key.destination,
            f"0x{seen.key.dest_qp:06x}",
            f"0x{flow.peer.dest_qp:06x}" if flow.peer else "?",
            flow.role,
            str(flow.protocol or ""),
            str(flow.messages),
            f"{flow.bytes:,}",
            _loud(seen.psn_missing),
            str(seen.psn_duplicate),
            _loud(seen.icrc_bad),
            escape(", ".join([*flow.numbered_by, *flow.problems])),
        )
    return table


def _loud(count: int) -> str:
    return f"[red]{count}[/]" if count else "0"


def _collectives(collectives: Sequence[Collective]) -> Table:
    table = Table(title="Collectives", title_justify="left")
    table.add_column("#", justify="right")
    for heading in ("kind", "protocol"):
        table.add_column(heading)
    table.add_column("channels", justify="right")
    table.add_column("bytes", justify="right")
    for heading in ("coverage", "sha256", "from", "is"):
        table.add_column(heading)
    for c in collectives:
        table.add_row(
            str(c.index),
            c.kind,
            str(c.protocol),
            str(c.channels),
            f"{c.bytes:,}",
            coverage_bar(c),
            c.sha256[:HASH_DIGITS] if c.sha256 else "-",
            escape(", ".join(c.sources)) or "-",
            escape(c.meaning),
        )
    return table


def coverage_bar(collective: Collective) -> str:
    """`##########  100 %`; rounded down, so that 100 means all of it."""
    cells = int(collective.coverage * BAR_CELLS)
    percent = int(collective.coverage * 10_000) / 100
    colour = "green" if collective.complete else "yellow" if cells else "red"
    return f"[{colour}]{'#' * cells}{'.' * (BAR_CELLS - cells)}[/] {percent:g} %"


def _weights(reading: Reading) -> str:
    weights = reading.weights
    if weights is None:
        return "[bold]Initial weights[/]: not seen"
    shapes = ", ".join("x".join(map(str, shape)) or "scalar" for shape in weights.shapes)
    digest = weights.sha256 or f"incomplete, {len(weights.missing)} ranges missing"
    return f"[bold]Initial weights[/]: {weights.bytes:,} bytes, {digest}, shapes {shapes}"


def _assumed(reading: Reading) -> list[str]:
    told = [(sentence, c.index) for c in reading.collectives for sentence in c.assumed]
    told.sort()
    return [
        f"assumed for {_numbers([index for _, index in group])}: {sentence}"
        for sentence, group in groupby(told, key=lambda pair: pair[0])
    ]


def _numbers(indices: Sequence[int]) -> str:
    return "collective " + ", ".join(f"#{index}" for index in indices)


def _lost(reading: Reading) -> list[str]:
    sentences: list[str] = []
    for c in reading.collectives:
        if c.missing:
            ranges = ", ".join(f"[{a}, {b})" for a, b in c.missing[:MOST_RANGES])
            more = (
                f" and {len(c.missing) - MOST_RANGES} more" if len(c.missing) > MOST_RANGES else ""
            )
            sentences.append(f"#{c.index} {c.kind} lacks bytes {ranges}{more}")
        if c.conflicts:
            sentences.append(f"#{c.index} {c.kind}: {c.conflicts} bytes differ between two copies")
    return sentences
