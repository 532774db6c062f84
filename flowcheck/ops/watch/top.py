"""`flowcheck top`: a chain's state in a terminal, drawn anew every second until Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from flowcheck.ops.say import plain
from flowcheck.ops.watch.reading import Reader
from flowcheck.ops.watch.state import Job, Ring, State, Step, Word, encode_state
from flowcheck.stages.service import Signals

EVERY_S = 1.0
LAST_STEPS = 8
LAST_EVENTS = 5
STYLES = {
    Word.EXACT: "bold green",
    Word.BEHIND: "bold yellow",
    Word.TAINTED: "bold magenta",
    Word.STALE: "bold red",
}
"""Beside the word itself, which says the same to who sees no colours."""


def run(root: Path, *, as_json: bool) -> int:
    """One frame where stdout is no terminal; else until a signal. The chain may begin, end, be
    killed and begin again meanwhile."""
    console, reader = Console(highlight=False), Reader(root)
    if as_json:
        print(encode_state(reader.state()).decode())
        return 0
    if not console.is_terminal:
        reader.state()
        Event().wait(EVERY_S)  # rates are of two looks
        console.print(frame(reader.state()), soft_wrap=True)
        return 0
    with Signals() as signals, Live(console=console, screen=True, auto_refresh=False) as live:
        while not signals.received:
            live.update(frame(reader.state()), refresh=True)
            Event().wait(EVERY_S)
    return 0


def frame(state: State) -> RenderableType:
    """All of it, the most important first: what does not fit into a terminal is cut off below."""
    return Group(*_parts(state))


def _parts(state: State) -> Iterator[RenderableType]:
    word = state.health.word
    head = Text.assemble((word.upper(), STYLES[word]), " ", plain(state.health.reason))
    yield head
    since = ""
    if state.started_ns is not None:
        since = f", for {_span((state.time_ns - state.started_ns) / 1e9)}"
    ending = ", ending" if state.ending else ""
    yield Text(plain(f"{state.run}{since}{ending}"), style="dim")
    if state.jobs:
        yield _jobs(state)
    if state.stages:
        yield _stages(state)
    if state.rings:
        yield _rings(state)
    for job in state.jobs:
        if job.timeline:
            yield _steps(job, state.time_ns)
        for one in (*job.why_not, *job.tainted):
            yield Text(plain(f"{job.name}: {one}"))
    if state.events:
        yield _events(state)
    for problem in state.problems:
        yield Text(plain(problem), style="yellow")


def _jobs(state: State) -> Table:
    table = _table("job", "health", "step", "steps/s", "lag", "update", "lost", "taint", "durable")
    for job in state.jobs:
        table.add_row(
            Text(plain(job.name)),
            Text(job.health.word, style=STYLES[job.health.word]),
            _number(job.step),
            _rate(job.step_rate),
            f"{_counted(job.lag_steps, 'step')}, {job.lag_ms:,.0f} ms",
            "-" if job.update_seconds is None else f"{job.update_seconds * 1e3:,.1f} ms",
            _lost(job),
            f"{len(job.tainted)}" + (f", {len(job.assumed)} assumed" if job.assumed else ""),
            Text(plain(_durable(job))),
        )
    return table


def _lost(job: Job) -> str:
    waits = f", waits at {job.lost_step}" if job.lost_step is not None else ""
    return f"{_counted(job.steps_lost, 'step')}{waits}" if job.steps_lost or waits else "0"


def _durable(job: Job) -> str:
    own = job.durable
    if own is None:
        return "none while it runs" if job.kept_at is None else f"at its end, in {job.kept_at}"
    there = "none yet" if own.step is None else f"step {own.step}, {_span(own.age_s or 0.0)} ago"
    share = f" {own.done_share:.0%}" if own.done_share is not None else ""
    phase = f"; {own.phase}{share}" if own.phase else ""
    return f"{there}{phase}" + (f"; fails ({own.attempts}): {own.error}" if own.attempts else "")


def _stages(state: State) -> Table:
    table = _table("stage", "pid", "restarts", "done", "a second", "bytes/s")
    for one in state.stages:
        lives = "not yet" if not one.started else "gone"
        named = one.name if one.job == 1 else f"{one.name} (job {one.job})"
        table.add_row(
            named,
            Text(str(one.pid)) if one.pid is not None else Text(lives, style="bold red"),
            _number(one.restarts),
            f"{_number(one.done)} {one.unit}".rstrip(),
            _rate(one.rate),
            _rate(one.bytes_s),
        )
    return table


def _rings(state: State) -> Table:
    table = _table("ring", "source", "fill", "last frame", "dropped here", "missing", "verdicts")
    for ring in state.rings:
        table.add_row(
            str(ring.number),
            Text(plain(ring.source)),
            f"{_bar(ring.fill)} {ring.fill:4.0%}",
            "none" if ring.frame_age_s is None else f"{_span(ring.frame_age_s)} ago",
            _dropped(ring),
            _counted(ring.missing_packets, "packet"),
            ", ".join(f"{name} {count:,}" for name, count in ring.verdicts.items()),
        )
    return table


def _dropped(ring: Ring) -> str:
    named = [f"{name.removesuffix('_frames')} {n:,}" for name, n in ring.lost.items() if n]
    return ", ".join(named) or "0"


def _bar(fill: float) -> str:
    full = round(max(0.0, min(1.0, fill)) * 10)
    return "#" * full + "." * (10 - full)


def _steps(job: Job, now_ns: int) -> Table:
    table = _table("step", "whole", "taken", "durable", "what became of it", title=job.name)
    for one in reversed(job.timeline[-LAST_STEPS:]):
        marks = [_ago(at, now_ns) for at in (one.arrived_ns, one.applied_ns, one.durable_ns)]
        table.add_row(str(one.step), *marks, Text(plain(_became(one))))
    return table


def _became(step: Step) -> str:
    """In words: the same for who sees no colours."""
    said = [f"LOST: {step.lost}"] if step.lost else []
    if step.logged:
        said.append("logged, waits for a base")
    if step.missing:
        came = f", {step.healed} came after all" if step.healed else ""
        said.append(f"{_counted(step.missing, 'packet')} missing{came}")
    if step.lost and step.healed:
        said.append("the replica goes on behind it")
    if step.tainted:
        said.append("tainted")
    if step.audited is not None:
        said.append("audit passed" if step.audited else "AUDIT FAILED")
    if step.anchored:
        said.append("taken from the trainer's file")
    return "; ".join(said)


def _events(state: State) -> Table:
    table = _table("when", "event", "stage", "step", "why")
    for one in reversed(state.events[-LAST_EVENTS:]):
        counted = f"{_counted(one.count, one.what.rstrip('s'))}. " if one.count and one.what else ""
        table.add_row(
            _ago(one.time_ns, state.time_ns),
            one.kind.replace("_", " "),
            Text(plain(one.stage)),
            _number(one.step),
            Text(plain(counted + one.why)),
        )
    return table


def _table(*columns: str, title: str = "") -> Table:
    named = Text(plain(title)) if title else None
    return Table(*columns, title=named, title_justify="left", box=None, pad_edge=False)


def _counted(count: int, unit: str) -> str:
    return f"{count:,} {unit}" if count == 1 else f"{count:,} {unit}s"


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


def _ago(time_ns: int | None, now_ns: int) -> str:
    return "-" if not time_ns else f"{_span(max(0, now_ns - time_ns) / 1e9)} ago"


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
