"""`flowcheck status`: prints the state of a running or ended chain, as text or JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.chain_health import NEVER_AUDITED
from flowcheck.findings.catalog.refused_commands import NO_EARLIER_RUN, NOTHING_TO_DRAW
from flowcheck.findings.finding import Finding
from flowcheck.ops.analysis.communicator_svg import communicators_svg
from flowcheck.ops.analysis.learned_communicators import summarize_learned_job
from flowcheck.ops.lifecycle import leftover_memory
from flowcheck.ops.svg_drawing import write_picture
from flowcheck.ops.watch.state import checkpoint_status, shutdown_record
from flowcheck.ops.watch.state.chain_state import AnchorFile, ChainState, JobState
from flowcheck.ops.watch.state.health_rules import base_missing, failed_audit
from flowcheck.ops.watch.state.state_reader import StateReader
from flowcheck.ops.watch.terminal_tables import last_frame
from flowcheck.plane.shared_memory.packet_counters import FLOW_TABLE_FULL, flow_table_full
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.stage_table import SUPERVISOR
from flowcheck.terminal_escape import printable
from flowcheck.wire.training_job.learned_job import FollowedData, decode_job


def run(root: Path, *, svg: Path | None = None, previous: bool = False, as_json: bool) -> int:
    """Prints the state of the chain in `root`, also of one that has ended; previous: of the one
    before; svg: a picture of the job it learned is written there. Raises ConfigError where no
    chain was started, or no job is to be drawn."""
    where = RunDir(root)
    try:
        if previous:
            where = _before(where)
        where.settings()
    except ConfigError as error:
        if as_json:
            print(_json({"run": str(where.root), "error": error.right}))
        raise
    if svg is not None:
        _draw(where, svg)
    state, left = read(where), [one for one in leftover_memory.find() if one.run != root.resolve()]
    if as_json:
        own = [one.finding for one in leftover_memory.by_chain(left) if one.mine]
        print(_json(msgspec.structs.asdict(state) | {"leftovers": own}, indent=1))
    else:
        print_state(state, leftover_memory.in_short(left))
    lives = state.stages and all(stage.pid is not None for stage in state.stages)
    return 0 if lives else 1


def _json(value: object, indent: int = -1) -> str:
    """In one line, unless an indent is given."""
    return msgspec.json.format(msgspec.json.encode(value), indent=indent).decode()


def _before(where: RunDir) -> RunDir:
    """The records of the run before."""
    before = RunDir(where.previous)
    if not before.config.exists():
        raise ConfigError("--previous", str(before.root), NO_EARLIER_RUN())
    return before


def list_leftovers(*, as_json: bool) -> int:
    """What killed chains left on this machine, those of other users as well."""
    found = [one.finding for one in leftover_memory.by_chain(leftover_memory.find())]
    if as_json:
        print(_json({"leftovers": found}))
    else:
        lines = [printable(str(one)) for one in found]
        print("\n".join(lines) or "no killed chain left anything")
    return 0


def read(where: RunDir) -> ChainState:
    """The chain's state just now."""
    return StateReader(where.root).state()


def _draw(where: RunDir, svg: Path) -> None:
    if not where.learned_job.exists():
        raise ConfigError("--svg", str(svg), NOTHING_TO_DRAW())
    job = decode_job(where.learned_job.read_bytes())
    write_picture(
        svg, communicators_svg(summarize_learned_job(job), f"The job followed in {where.root}")
    )


COLOURS = {"exact": "green", "behind": "yellow", "tainted": "magenta", "stale": "red"}


def print_state(state: ChainState, leftovers: Sequence[Finding]) -> None:
    """leftovers: what other chains left."""
    console = Console(highlight=False)

    def say(sentence: str) -> None:
        console.print(printable(sentence), soft_wrap=True)

    word = state.health.word
    say(f"[bold {COLOURS[word]}]{word.upper()}[/] {escape(str(state.health.reason))}")
    for remedy in _remedies([state.health.reason], state.ended is not None):
        say(remedy)
    for sentence in shutdown_record.end_sentences(state):
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
    if packets := sum(ring.parse.get(FLOW_TABLE_FULL, 0) for ring in state.rings):
        say(f"[red]{escape(str(flow_table_full(packets)))}[/]")
    for job in state.jobs:
        if state.jobs[1:]:
            say(f"[bold]Job {escape(job.name)}[/]: {escape(str(job.health.reason))}")
        for sentence in _of_job(job, over=state.ended is not None):
            say(sentence)
    at = "a port that its log names" if state.watch_port_in_log else state.watched
    if at and state.ended is None:
        say(f"watched at {escape(at)}")
    for problem in state.problems:
        say(f"[yellow]{escape(str(problem))}[/]")
        for remedy in _remedies([problem]):
            say(remedy)
    if state.stages and state.ended is None and not _supervised(state):
        say(_killed(state))
    if RunDir(Path(state.run)).previous.exists():
        say(f"the run before: flowcheck status --previous --run {escape(state.run)}")
    for left in leftovers:
        say(escape(str(left)))


def _remedies(reasons: Sequence[Finding], over: bool = False) -> Iterator[str]:
    """Lines of markup: what to do, each once. over: the chain has ended, and what must be done
    while it runs is of no use any more."""
    if not over:
        for remedy in dict.fromkeys(reason.remedy for reason in reasons if reason.remedy):
            yield f"  [dim]{escape(remedy)}[/]"


def _supervised(state: ChainState) -> bool:
    return any(one.name == SUPERVISOR.name and one.pid is not None for one in state.stages)


def _stages(state: ChainState) -> Table:
    table = Table("stage", "pid", "restarts", title=escape(printable(state.run)))
    for one in state.stages:
        named = one.name if one.job == 1 else f"{one.name} (job {one.job})"
        lives = "gone" if one.started else "not yet"
        pid = str(one.pid) if one.pid is not None else f"[red]{lives}[/]"
        table.add_row(named, pid, str(one.restarts))
    return table


def _rings(state: ChainState) -> Table:
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


def _of_job(job: JobState, *, over: bool) -> Iterator[str]:
    """Lines of markup. over: nothing can be given to it any more."""
    if job.lost_step is not None:
        yield f"[red]step {job.lost_step} was lost[/]: the replica stops there"
    if job.awaits_base and not over:
        yield escape(str(base_missing(job.logged)))
    if job.addresses:
        yield f"job on {', '.join(job.addresses)}"
    if job.step is not None:
        yield f"replica at step {job.step}, digest {escape(job.digest)}"
        if job.follows == FollowedData.PARAMETERS:
            yield "  of kind: parameters as they are gathered, no optimizer state"
        for one in job.tainted:
            yield f"  {escape(str(one))}"
        yield _audited(job)
    else:
        yield "no step applied yet" if job.learned else "the job is not learned yet"
    yield from anchor_sentences(job.anchors, job.anchors_before)
    yield from checkpoint_status.checkpoint_sentences(job.durable, job.step or 0)
    if job.served:
        yield f"steps are served at {escape(job.served)}"
    for reason in job.why_not:
        yield f"  {escape(str(reason))}"
    yield from _remedies(job.why_not, over)


def _killed(state: ChainState) -> str:
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


def _audited(job: JobState) -> str:
    if job.audit_passed is None:
        return escape(str(NEVER_AUDITED()))
    if job.audit_passed:
        return f"audit passed at step {job.audited_step}"
    return f"[red]{escape(str(failed_audit(job)))}[/]"


def anchor_sentences(anchors: Sequence[AnchorFile], before: int) -> list[str]:
    """For people. anchors: the newest that took a step's place, ascending; before: how many more
    there were."""
    more = [f"  and {before} files before"] if before else []
    return [
        f"step {one.step} is the trainer's {escape(one.file)}, which took its place when "
        f"the replica was at step {one.at}"
        for one in reversed(anchors)
    ] + more
