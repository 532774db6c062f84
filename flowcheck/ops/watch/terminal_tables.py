"""Tables of jobs, stages, rings, steps and events for `flowcheck top`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Column, Table
from rich.text import Text

from flowcheck.ops.console_output import printable
from flowcheck.ops.watch.state.chain_state import (
    ChainState,
    HealthWord,
    JobState,
    RingState,
    StageState,
    StepState,
)
from flowcheck.ops.watch.state.stage_processes import RATE_SPAN_S
from flowcheck.stages.chain_events.event_log import CountedThing, Event

PIPED_CELLS = 500
"""Columns if another program reads the output, so that no table row is broken. A choice: wider
than any table."""
STYLES = {
    HealthWord.EXACT: "bold green",
    HealthWord.BEHIND: "bold yellow",
    HealthWord.TAINTED: "bold magenta",
    HealthWord.STALE: "bold red",
    HealthWord.ENDED: "bold cyan",
}
"""Colours of the health words; the word itself is always shown too."""
UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
RATE_CELLS, AGE_CELLS, NAME_CELLS = 8, 10, 24
"""Minimal widths in characters, so that columns stay in place while figures change. A choice of
layout."""


def jobs_table(state: ChainState) -> Table:
    """A table with one row per job; `notes_below` has what does not fit."""
    table = _table(
        "job", "health", "step", "steps/s", "behind", "update", "lost", "taint", "durable"
    )
    name, _, _, steps_s, behind, update, _, _, durable = table.columns
    name.overflow = "fold"
    steps_s.justify, steps_s.min_width = "right", len("steps/s")
    behind.min_width, update.min_width, durable.min_width = 7, 6, 9
    for job in state.jobs:
        table.add_row(
            Text(_named(job)),
            Text(job.health.word, style=STYLES[job.health.word]),
            _number(job.step),
            _rate(job.step_rate),
            _behind(job),
            "-" if job.update_seconds is None else f"{job.update_seconds * 1e3:,.1f} ms",
            _lost(job),
            str(len(job.tainted)),
            _durable(job),
        )
    return table


def notes_below(job: JobState) -> Sequence[str]:
    """Sentences below the tables: where checkpoints are written, and why one failed."""
    own = job.durable
    said = []
    if own is not None and own.doubt is not None:
        said.append(str(own.doubt))
    if own is not None and own.attempts:
        said.append(f"saving fails ({_counted(own.attempts, 'attempt')}): {own.error}")
    if own is None and job.kept_at is not None:
        said.append(f"written when the chain stops, to {job.kept_at}")
    return [f"{job.name}: {one}" for one in (*job.why_not, *job.tainted, *said)]


def _named(job: JobState) -> str:
    named = printable(job.name)
    return named if len(named) <= NAME_CELLS else f"{named[: NAME_CELLS - 3]}..."


def _behind(job: JobState) -> str:
    steps = _counted(job.lag_steps, "step")
    ago = f"{job.lag_ms:.0f} ms" if job.lag_ms < 1000 else duration_text(job.lag_ms / 1e3)
    return f"{steps}, {ago}" if job.step is not None or job.lag_steps else "-"


def _lost(job: JobState) -> str:
    waits = f", waits at {job.lost_step}" if job.lost_step is not None else ""
    return f"{_counted(job.steps_lost, 'step')}{waits}" if job.steps_lost or waits else "0"


def _durable(job: JobState) -> str:
    own = job.durable
    if own is None:
        return "none" if job.kept_at is None else "at its end"
    if own.step is None:
        there = "none yet"
    elif own.doubt is None:
        there = f"step {own.step}, {duration_text(own.age_s or 0.0)} ago"
    elif own.exact_step is None:
        there = f"none exact (step {own.step})"
    else:
        age = duration_text(own.exact_age_s or 0.0)
        there = f"step {own.exact_step}, {age} ago ({own.step} in doubt)"
    share = f" {own.done_share:.0%}" if own.done_share is not None else ""
    phase = f"; {own.phase}{share}" if own.phase else ""
    return f"{there}{phase}" + (f"; fails ({own.attempts})" if own.attempts else "")


def stages_table(stages: Sequence[StageState]) -> Table:
    """A table of processes: those that are down first, the others in their order."""
    rates = (
        _right(f"last {RATE_SPAN_S:.0f} s", RATE_CELLS + 7),
        _right("off the wire", RATE_CELLS + 3),
    )
    table = _table("stage", "pid", "restarts", "done", *rates)
    for one in sorted(stages, key=lambda one: not is_down(one)):
        lives = "not yet" if not one.started else "gone"
        named = one.name if one.job == 1 else f"{one.name} (job {one.job})"
        table.add_row(
            named,
            Text(str(one.pid)) if one.pid is not None else Text(lives, style="bold red"),
            _number(one.restarts),
            f"{_number(one.done)} {one.unit}".rstrip(),
            _stage_rate(one),
            "" if one.bytes_s is None else f"{_short(one.bytes_s)}B/s",
        )
    return table


def is_down(one: StageState) -> bool:
    """Whether a stage was started and is not alive."""
    return one.pid is None and one.started


def _stage_rate(one: StageState) -> str:
    """The rate of a stage; empty where the stage counts nothing, a dash where it is unknown."""
    if not one.unit:
        return ""
    return "-" if one.rate is None else f"{_rate(one.rate)} {one.unit}/s"


def rings_table(state: ChainState) -> Table:
    """A table of the rings with fill level, rates and losses."""
    table = _table("ring", "source", "fill", "last frame", "dropped here", "missing", "verdicts")
    table.columns[1].overflow = "fold"
    table.columns[2].min_width = len("########## 100%")
    table.columns[3].min_width = AGE_CELLS
    for ring in state.rings:
        table.add_row(
            str(ring.number),
            Text(printable(ring.source)),
            f"{_bar(ring.fill)} {ring.fill:4.0%}",
            last_frame(state, ring),
            _dropped(ring),
            _counted(ring.missing_packets, "packet"),
            ", ".join(f"{name} {count:,}" for name, count in ring.verdicts.items()),
        )
    return table


def last_frame(state: ChainState, ring: RingState) -> str:
    """Age of a ring's last frame as text; "none" or "-" if no frame came or its time is unknown."""
    if ring.frame_age_s is None:
        return "-" if ring.head else "none"
    over = state.ended is not None and not state.stages  # as it was then
    return f"{duration_text(ring.frame_age_s)} {'before the end' if over else 'ago'}"


def _dropped(ring: RingState) -> str:
    named = [f"{name.removesuffix('_frames')} {n:,}" for name, n in ring.lost.items() if n]
    return ", ".join(named) or "0"


def _bar(fill: float) -> str:
    full = round(max(0.0, min(1.0, fill)) * 10)
    return "#" * full + "." * (10 - full)


def steps_table(job: JobState, now_ns: int, last: int) -> Table:
    """A table of the newest `last` steps, newest first."""
    table = _table("step", "arrived", "applied", "durable", "what became of it")
    table.columns[0].header = Text(f"step of {_named(job)}")
    for column in table.columns[1:4]:
        column.min_width = AGE_CELLS
    for one in reversed(job.timeline[-last:]):
        marks = [_ago(at, now_ns) for at in (one.arrived_ns, one.applied_ns, one.durable_ns)]
        table.add_row(str(one.step), *marks, Text(printable(_became(one))))
    return table


def _became(step: StepState) -> str:
    """What became of a step, in words that say the same without colours."""
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


def events_table(events: Sequence[Event], now_ns: int) -> Table:
    """A table of events, newest first."""
    table = _table("when", "event", "stage", "step", "why")
    table.columns[0].min_width = AGE_CELLS
    for one in reversed(events):
        counted = f"{_things(one.count, one.what)}. " if one.count and one.what else ""
        table.add_row(
            _ago(one.time_ns, now_ns),
            one.kind.replace("_", " "),
            Text(printable(one.stage)),
            _number(one.step),
            Text(printable(counted + one.detail)),
        )
    return table


def _table(*columns: str | Column) -> Table:
    return Table(*columns, box=None, pad_edge=False)


def _right(header: str, least: int) -> Column:
    return Column(header, justify="right", min_width=least)


ONE_OF: dict[str, str] = {
    CountedThing.FRAMES: "frame",
    CountedThing.PACKETS: "packet",
    CountedThing.BYTES: "byte",
    CountedThing.STEP: "step",
    CountedThing.ELEMENTS: "element",
    CountedThing.DIFFERING_BYTES: "differing byte",
    CountedThing.DOUBTFUL_BYTES: "doubtful byte",
    CountedThing.LINES: "line",
}
"""Singular of the words for what an event counts."""


def _things(count: int, what: str) -> str:
    """What another release counts is called as it says."""
    return _counted(count, ONE_OF[what]) if what in ONE_OF else f"{count:,} {what}"


def _counted(count: int, unit: str) -> str:
    return f"{count:,} {unit}" if count == 1 else f"{count:,} {unit}s"


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _rate(value: float | None) -> str:
    """A rate as text: 0 where nothing was done, a dash where it is unknown."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:,.2f}"


def _short(value: float) -> str:
    for size, unit in UNITS:
        if value >= size:
            return (
                f"{value / size:.3g} {unit}"
                if value < 999.5 * size
                else f"{value / size:.0f} {unit}"
            )
    return f"{value:.0f} "


def _ago(time_ns: int | None, now_ns: int) -> str:
    return "-" if not time_ns else f"{duration_text(max(0, now_ns - time_ns) / 1e9)} ago"


def duration_text(seconds: float) -> str:
    """A duration as text, to about two digits."""
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes = seconds / 60
    if minutes < 120:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.1f} h" if minutes < 48 * 60 else f"{minutes / 1440:.1f} d"
