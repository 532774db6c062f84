"""The report of `analyze`: frames, flows, collectives, weights and jobs, as tables and
sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flowcheck.findings.finding import Finding
from flowcheck.ops.analysis.communicator_summary import summarize_communicators
from flowcheck.ops.analysis.communicator_text import communicator_lines
from flowcheck.ops.analysis.packet_loss_consequences import is_end_unknown, known_missing
from flowcheck.ops.console_output import SentenceConsole
from flowcheck.stages.job_learning.job_file_match import addresses_of
from flowcheck.wire.algorithms.algorithm_registry import spec_of
from flowcheck.wire.learn import Collective, FlowReading, Part, Reading
from flowcheck.wire.learn.verdict.collect import short

BAR_CELLS = 8
"""Characters of a coverage bar. A choice of layout."""
HASH_DIGITS = 8
"""Hexadecimal digits of a digest that are shown: 32 bits distinguish the collectives of one
capture. A choice of layout."""
MOST_RANGES = 3
"""Missing ranges that a line lists; the JSON has all. A choice of layout."""


def print_report(
    frames: Mapping[str, int],
    reading: Reading,
    notes: Sequence[Finding] = (),
    console: Console | None = None,
) -> None:
    """Prints frames, flows, collectives and weights, then assumptions and missing data.

    frames: number of frames by verdict.
    notes: findings about the files.
    console: None: stdout.
    """
    out = console or SentenceConsole()
    counted = ", ".join(f"{count} {verdict}" for verdict, count in frames.items() if count)
    out.print(f"[bold]{sum(frames.values())} frames[/]{escape(counted and f': {counted}')}")
    out.print(_flows(reading.flows))
    out.print(escape(_addresses(reading.flows)))
    out.print(_collectives(reading.collectives))
    for line in communicator_lines(summarize_communicators(reading)):
        shown = escape(line) if line.startswith(" ") else f"[bold]{escape(line)}[/]"
        out.print(shown, highlight=False, soft_wrap=True)
    out.print(_weights(reading))
    told: list[str | Finding] = [*job_sentences(reading), *reading.formats]
    told += _numbered(reading.flows)
    remedies: set[str] = set()
    for one in [*told, *_assumed(reading), *_lost(reading), *reading.why_not, *notes]:
        out.print(f"- {escape(str(one))}")
        if isinstance(one, Finding) and one.remedy and one.remedy not in remedies:
            remedies.add(one.remedy)
            out.print(f"  [dim]{escape(one.remedy)}[/]", highlight=False)


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )


def _flows(flows: Sequence[FlowReading]) -> Table:
    table = _table("Flows")
    for heading in ("flow", "QP/peer", "role"):
        table.add_column(heading, no_wrap=True)
    for heading in ("messages", "bytes", "lost", "twice", "bad ICRC"):
        table.add_column(heading, justify="right", no_wrap=True)
    for flow in flows:
        seen = flow.seen
        peer = f"{flow.peer.dest_qp:x}" if flow.peer else "?"
        table.add_row(
            f"{short(seen.key.source)}->{short(seen.key.destination)}",
            f"{seen.key.dest_qp:x}/{peer}",
            " ".join([flow.role, *([str(flow.protocol)] if flow.protocol else [])]),
            str(flow.messages),
            f"{flow.bytes:,}",
            _loud(seen.psn_missing),
            str(seen.psn_duplicate),
            _loud(seen.icrc_bad),
        )
    return table


def _numbered(flows: Sequence[FlowReading]) -> list[str]:
    """What the message numbers of the data flows rest on, and what contradicts them."""
    told = sorted(
        (", ".join(map(str, (*f.numbered_by, *f.problems))), f"{f.seen.key.dest_qp:x}")
        for f in flows
        if f.role == "data"
    )
    return [
        f"QP {', '.join(name for _, name in group)}: message positions known by {evidence}"
        for evidence, group in groupby(told, key=lambda entry: entry[0])
    ]


def _addresses(flows: Sequence[FlowReading]) -> str:
    """What the short names in the tables stand for."""
    found = dict.fromkeys(a for f in flows for a in (f.seen.key.source, f.seen.key.destination))
    return ", ".join(f"{short(address)} = {address}" for address in found)


def _loud(count: int) -> str:
    return f"[red]{count}[/]" if count else "0"


def _collectives(collectives: Sequence[Collective]) -> Table:
    table = _table("Collectives")
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("what")
    for heading in ("ch", "bytes"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("coverage", "sha256"):
        table.add_column(heading, no_wrap=True)
    table.add_column("from")
    for c in collectives:
        table.add_row(
            str(c.index),
            c.kind + spec_of(c.algorithm).by_words + (f": {c.meaning}" if c.meaning else ""),
            str(c.channels),
            f"{c.bytes:,}",
            coverage_bar(c),
            c.sha256[:HASH_DIGITS] if c.sha256 else "-",
            escape("\n".join(c.sources)) or "-",
        )
    return table


def coverage_bar(collective: Collective) -> str:
    """Coverage of a collective's result as `########## 100 %`; rounded down, so that 100 means
    complete."""
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
    rests = "".join(f"; assumed: {escape(str(one))}" for one in weights.assumed)
    return f"[bold]Initial weights[/]: {weights.bytes:,} bytes, {digest}, shapes {shapes}{rests}"


def _assumed(reading: Reading) -> list[str]:
    told = sorted((str(one), c.index) for c in reading.collectives for one in c.assumed)
    return [
        f"assumed for {_numbers([index for _, index in group])}: {sentence}"
        for sentence, group in groupby(told, key=lambda pair: pair[0])
    ]


def _numbers(indices: Sequence[int]) -> str:
    return "collective " + ", ".join(f"#{index}" for index in indices)


def _lost(reading: Reading) -> list[str]:
    sentences: list[str] = []
    for c in reading.collectives:
        missing = known_missing(c)
        if is_end_unknown(c):
            start, stop = c.missing[-1]
            sentences.append(
                f"#{c.index} {c.kind} ends somewhere in bytes [{start}, {stop}), its last line; "
                "the exact end is unknown, so these bytes are not shown"
            )
        if missing:
            ranges = ", ".join(f"[{a}, {b})" for a, b in missing[:MOST_RANGES])
            more = f" and {len(missing) - MOST_RANGES} more" if len(missing) > MOST_RANGES else ""
            sentences.append(f"#{c.index} {c.kind}: bytes {ranges}{more} are missing")
        if c.conflicts:
            sentences.append(f"#{c.index} {c.kind}: {c.conflicts} bytes differ between two copies")
    return sentences


def as_dicts(reading: Reading) -> list[dict[str, Any]]:
    """All data-parallel jobs whose start was captured, in that order, as JSON values."""
    return [_as_dict(part, reading) for part in reading.parts]


def _as_dict(part: Part, reading: Reading) -> dict[str, Any]:
    job, weights = part.job, part.weights
    own = [c for c in reading.collectives if c.communicator == part.communicator]
    flows = {placed.flow for c in own for placed in c.placements}
    seen = sorted({address for key in flows for address in (key.source, key.destination)})
    # Of a job that is not learned too the start-up tells what it is of.
    shapes = None if weights is None else len(weights.shapes)
    return {
        "communicator": part.communicator,
        "learned": job is not None,
        "ranks": job.communicators[0].ranks if job is not None else own[0].ranks if own else None,
        "addresses": addresses_of(job) if job is not None else seen,
        "parameters": len(job.parameters) if job is not None else shapes,
        "buckets": [list(bucket) for bucket in job.buckets] if job is not None else [],
        "weights_sha256": weights.sha256 if weights is not None else None,
        "assumed": list(job.assumed) if job is not None else [],
        "why_not": list(part.why_not),
    }


def job_sentences(reading: Reading) -> list[str]:
    """One sentence per job if the capture has several, else []."""
    if len(reading.parts) < 2:
        return []
    return [_sentence(number, part) for number, part in enumerate(reading.parts, 1)]


def _sentence(number: int, part: Part) -> str:
    named = f"data-parallel job {number} is communicator {part.communicator}"
    if part.job is None:
        return f"{named}: not followed, {'; '.join(map(str, part.why_not))}"
    digest = part.weights.sha256 if part.weights is not None else None
    told = f"initial weights {digest[:8]}" if digest else "initial weights not seen whole"
    return (
        f"{named}: {part.job.communicators[0].ranks} ranks, {len(part.job.parameters)} parameters "
        f"in {len(part.job.buckets)} buckets, {told}, on {', '.join(addresses_of(part.job))}"
    )
