"""`flowcheck top`: a chain's state in a terminal, redrawn every second until Ctrl-C."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from flowcheck.ops.console_output import SentenceConsole, printable
from flowcheck.ops.watch.state.chain_state import ChainState, encode_state
from flowcheck.ops.watch.state.shutdown_record import end_sentences
from flowcheck.ops.watch.state.state_reader import StateReader
from flowcheck.ops.watch.state.step_history import RATE_STEPS
from flowcheck.ops.watch.taint_table import sentence_of, taint_table
from flowcheck.ops.watch.terminal_tables import (
    PIPED_CELLS,
    STYLES,
    duration_text,
    events_table,
    jobs_table,
    notes_below,
    rings_table,
    stages_table,
    steps_table,
)
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.service_loop import Signals

REDRAW_EVERY_S = 1.0
"""Seconds between two redraws. A choice: a shorter time costs CPU time."""
LAST_STEPS, LAST_EVENTS = 8, 10
FEW_STEPS, FEW_EVENTS = 3, 3
"""Steps and events shown at least. A choice of layout."""
FEW_LINES = 12
"""Lines below the tables of stages and rings under which fewer steps are shown, so that events fit
as well. A choice of layout."""


def run(root: Path, *, as_json: bool) -> int:
    """Prints one frame if stdout is not a terminal; else redraws until a signal. The chain may
    start, end and start again meanwhile. Returns the exit code. Raises ConfigError if one frame
    was to be printed and no chain was started in `root`."""
    console, reader = SentenceConsole(highlight=False), StateReader(root)
    if as_json or not console.is_terminal:
        RunDir(root).settings()  # first: an error leaves stdout empty
        if as_json:
            print(encode_state(reader.state()).decode(), flush=True)
        else:
            reader.state()
            Event().wait(REDRAW_EVERY_S)  # rates are of two looks
            print(frame_as_text(reader.state()), flush=True)
        return 0
    with Signals() as signals, Live(console=console, screen=True, auto_refresh=False) as live:
        while not signals.received:
            live.update(FittedFrame(reader.state()), refresh=True)
            Event().wait(REDRAW_EVERY_S)
    return 0


def frame_as_text(state: ChainState) -> str:
    """One frame as text, without trailing blanks."""
    console = SentenceConsole(highlight=False, width=PIPED_CELLS, color_system=None)
    with console.capture() as kept:
        console.print(screen_parts(state))
    return "\n".join(line.rstrip() for line in kept.get().rstrip().splitlines())


@dataclass(frozen=True)
class FittedFrame:
    """A frame that is cut to the terminal's height: it shows as many of the newest events as fit,
    and says how many lines are missing where even the rest does not fit."""

    state: ChainState

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        tall, state = options.height or console.height, self.state
        free = options.update(height=None)

        def drawn(*parts: RenderableType) -> list[list[Segment]]:
            return console.render_lines(Group(*parts), free, pad=False)

        lines = drawn(*_standing(state))
        if len(lines) > tall - FEW_EVENTS:
            lines = drawn(*_standing(state, few=True))
        last = LAST_STEPS if tall - len(lines) >= LAST_STEPS + FEW_LINES else FEW_STEPS
        lines += drawn(*_steps(state, last))

        def draw_events(newest: int) -> list[list[Segment]]:
            return drawn(*_events(state, newest))

        every = range(len(state.events) + 1)
        fit = (
            bisect_right(every, tall - len(lines), key=lambda newest: len(draw_events(newest))) - 1
        )
        if fit >= min(FEW_EVENTS, len(state.events)):
            lines += draw_events(fit)
        else:
            lines += draw_events(LAST_EVENTS)
            more = f"... {len(lines) - tall + 1} lines more: a taller terminal has room for them"
            lines[tall - 1 :] = drawn(Text(more, style="dim", no_wrap=True, overflow="crop"))
        for number, line in enumerate(lines):
            yield from line
            if number < len(lines) - 1:
                yield Segment.line()


def screen_parts(state: ChainState) -> RenderableType:
    """All parts of the frame, the most important first."""
    return Group(*_standing(state), *_steps(state, LAST_STEPS), *_events(state, LAST_EVENTS))


def _standing(state: ChainState, *, few: bool = False) -> Iterator[RenderableType]:
    """The lines and tables about health, jobs, stages and rings. few: only stages that are not
    alive."""
    word = state.health.word
    yield Text.assemble((word.upper(), STYLES[word]), " ", printable(str(state.health.reason)))
    began = ""
    if state.started_ns is not None:
        began = f", began {duration_text((state.time_ns - state.started_ns) / 1e9)} ago"
    ending = ", told to end" if state.ending and state.stages else ""
    rates = f"; steps/s: of {RATE_STEPS} steps" if state.jobs else ""
    yield Text(printable(f"{state.run}{began}{ending}{rates}"), style="dim")
    yield from (Text(printable(sentence)) for sentence, _ in end_sentences(state))
    if state.jobs:
        yield jobs_table(state)
    stages = [one for one in state.stages if one.pid is None or not few]
    if stages:
        yield stages_table(stages)
    if len(stages) < len(state.stages):
        yield Text(f"{len(state.stages) - len(stages)} stages are up")
    if state.rings:
        yield rings_table(state)
    for one in (sentence for job in state.jobs for sentence in notes_below(job)):
        yield Text(printable(one))
    for model in state.models:
        if (told := sentence_of(model)) is not None:
            yield Text(printable(str(told)))
            if not few:
                yield taint_table(model)
    for problem in state.problems:
        yield Text(printable(str(problem)), style="yellow")


def _steps(state: ChainState, last: int) -> Iterator[RenderableType]:
    each = last if len(state.jobs) == 1 else FEW_STEPS
    for job in state.jobs:
        if job.timeline:
            yield steps_table(job, state.time_ns, each)


def _events(state: ChainState, newest: int) -> Iterator[RenderableType]:
    if state.events and newest:
        yield events_table(state.events[-newest:], state.time_ns)
