"""What `flowcheck status` prints of a chain's state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flowcheck.ops.giving import anchored
from flowcheck.ops.say import plain
from flowcheck.ops.watch import durable, ended
from flowcheck.ops.watch.awaited import awaited
from flowcheck.ops.watch.parts.job import Job
from flowcheck.ops.watch.state import State
from flowcheck.ops.watch.tables import last_frame
from flowcheck.plane.counters import UNFOLLOWED, unfollowed
from flowcheck.stages.rundir import RunDir
from flowcheck.wire.job import Follows

COLOURS = {"exact": "green", "behind": "yellow", "tainted": "magenta", "stale": "red"}


def shown(state: State, leftovers: Sequence[str]) -> None:
    """leftovers: sentences about what other chains left."""
    console = Console(highlight=False)

    def say(sentence: str) -> None:
        console.print(plain(sentence), soft_wrap=True)

    word = state.health.word
    say(f"[bold {COLOURS[word]}]{word.upper()}[/] {escape(state.health.reason)}")
    for sentence in ended.sentences(state):
        say(escape(sentence))
    if state.stages:
        console.print(_stages(state))
    if state.rings:
        console.print(_rings(state))
    verdicts: Counter[str] = Counter()
    for ring in state.rings:
        verdicts.update(ring.verdicts)
    seen = ", ".join(f"{name} {frames:,}" for name, frames in verdicts.items() if frames)
    say(f"frames by verdict: {seen or 'none'}")
    if packets := sum(ring.parse.get(UNFOLLOWED, 0) for ring in state.rings):
        say(f"[red]{escape(unfollowed(packets))}[/]")
    for job in state.jobs:
        if state.jobs[1:]:
            say(f"[bold]Job {escape(job.name)}[/]: {escape(job.health.reason)}")
        for sentence in _of_job(job, over=state.ended is not None):
            say(sentence)
    if state.watched and state.ended is None:
        say(f"watched at {escape(state.watched)}")
    for problem in state.problems:
        say(f"[yellow]{escape(problem)}[/]")
    if state.stages and state.ended is None and not _supervised(state):
        say(_killed(state))
    if RunDir(Path(state.run)).previous.exists():
        say(f"the run before: flowcheck status --previous --run {escape(state.run)}")
    for sentence in leftovers:
        say(escape(sentence))


def _supervised(state: State) -> bool:
    return any(one.name == "supervisor" and one.pid is not None for one in state.stages)


def _stages(state: State) -> Table:
    table = Table("stage", "pid", "restarts", title=escape(plain(state.run)))
    for one in state.stages:
        named = one.name if one.job == 1 else f"{one.name} (job {one.job})"
        lives = "gone" if one.started else "not yet"
        pid = str(one.pid) if one.pid is not None else f"[red]{lives}[/]"
        table.add_row(named, pid, str(one.restarts))
    return table


def _rings(state: State) -> Table:
    names = ("ring", "frames", "parse lag", "extract lag", "dropped", "missing", "last frame")
    table = Table(*names, "memory")
    for ring in state.rings:
        dropped = sum(ring.lost.values())
        table.add_row(
            str(ring.number),
            f"{ring.head:,}",
            f"{ring.head - ring.parsed:,}",
            f"{ring.parsed - ring.tail:,}",
            f"[red]{dropped:,}[/]" if dropped else "0",
            f"[red]{ring.missing_packets:,}[/]" if ring.missing_packets else "0",
            last_frame(state, ring),
            "2 MiB pages" if ring.huge_pages else "/dev/shm",
        )
    return table


def _of_job(job: Job, *, over: bool) -> Iterator[str]:
    """Lines of markup. over: nothing can be given to it any more."""
    if job.lost_step is not None:
        yield f"[red]step {job.lost_step} was lost[/]: the replica stops there"
    if job.awaits_base and not over:
        yield awaited(job.logged)
    if job.addresses:
        yield f"job on {', '.join(job.addresses)}"
    if job.step is not None:
        yield f"replica at step {job.step}, digest {escape(job.digest)}"
        if job.follows == Follows.PARAMETERS:
            yield "  of kind: parameters as they are gathered, no optimizer state"
        for one in job.tainted:
            yield f"  {escape(one)}"
        yield _audited(job)
    else:
        yield "no step taken yet" if job.learned else "the job is not learned yet"
    yield from anchored.sentences(job.anchors, job.anchors_before)
    yield from durable.sentences(job.durable, job.step or 0)
    if job.served:
        yield f"steps are served at {escape(job.served)}"
    for reason in job.why_not:
        yield f"  {escape(reason)}"


def _killed(state: State) -> str:
    """What to do about a chain whose supervisor is gone."""
    run = escape(state.run)
    waits = next((job.logged for job in state.jobs if job.logged and job.logged[1]), None)
    if waits is not None:
        return (
            f"[red]its supervisor was killed[/]: steps {waits[0]} to {waits[1]} since it joined "
            "the job are logged in memory, and go with it: flowcheck up joins the job again"
        )
    if not any(job.step for job in state.jobs):
        return f"[red]its supervisor was killed[/]: flowcheck down --run {run} removes what is left"
    return (
        "[red]its supervisor was killed[/], its replica is in memory still: flowcheck restore "
        f"--run {run} gives it back, flowcheck up and flowcheck down --run {run} make it a "
        "checkpoint first"
    )


def _audited(job: Job) -> str:
    if job.audit_passed is None:
        return "never audited: hold it against a checkpoint of the trainer, flowcheck audit FILE"
    if job.audit_passed:
        return f"audit passed at step {job.audited_step}"
    return f"[red]audit FAILED at step {job.audited_step}[/]: {escape(job.audit_differs)} differs"
