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
from flowcheck.findings.named_run import run_option
from flowcheck.ops.analysis.communicator_svg import communicators_svg
from flowcheck.ops.analysis.learned_communicators import summarize_learned_job
from flowcheck.ops.console_output import SentenceConsole
from flowcheck.ops.lifecycle import leftover_memory
from flowcheck.ops.svg_drawing import write_picture
from flowcheck.ops.watch.state import checkpoint_status, shutdown_record
from flowcheck.ops.watch.state.chain_state import AnchorFile, ChainState, JobState
from flowcheck.ops.watch.state.health_rules import base_missing, failed_audit
from flowcheck.ops.watch.state.replay_options_record import reads_captures, repeating_command
from flowcheck.ops.watch.state.state_reader import StateReader
from flowcheck.ops.watch.taint_table import print_tainted_models
from flowcheck.ops.watch.terminal_tables import PIPED_CELLS, last_frame
from flowcheck.plane.shared_memory.packet_counters import FLOW_TABLE_FULL, flow_table_full_finding
from flowcheck.stages.job_state.training_facts import learned_job_of
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.stage_table import SUPERVISOR
from flowcheck.untrusted_text import printable
from flowcheck.wire.training_job.learned_job import FollowedData


def run(root: Path, *, svg: Path | None = None, previous: bool = False, as_json: bool) -> int:
    """Prints the state of the chain in `root`, running or ended; returns the exit code.

    svg: file for a picture of the job's communicators; None: no picture.
    previous: the chain before the last one.

    Raises ConfigError where no chain was started there, or no job is learned that could be drawn.
    """
    where = RunDir(root)
    if previous:
        where = _before(where)
    where.settings()
    if svg is not None:
        _draw(where, svg)
    state, left = (
        read_chain(where),
        [one for one in leftover_memory.find_leftover_memory() if one.run != root.resolve()],
    )
    if as_json:
        own = [one.finding for one in leftover_memory.summed_by_chain(left) if one.is_own]
        print(_json(msgspec.structs.asdict(state) | {"leftovers": own}, indent=1))
    else:
        print_state(state, leftover_memory.summary_findings(left))
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
    """Prints the shared memory of killed chains on this machine, of other users as well; returns
    the exit code."""
    found = [
        one.finding
        for one in leftover_memory.summed_by_chain(leftover_memory.find_leftover_memory())
    ]
    if as_json:
        print(_json({"leftovers": found}))
    else:
        lines = [printable(str(one)) for one in found]
        print("\n".join(lines) or "no killed chain left anything")
    return 0


def read_chain(where: RunDir) -> ChainState:
    """Reads the chain's present state."""
    return StateReader(where.root).state()


def _draw(where: RunDir, svg: Path) -> None:
    if not where.learned_job.exists():
        raise ConfigError("--svg", str(svg), NOTHING_TO_DRAW())
    job = learned_job_of(where)
    write_picture(
        svg, communicators_svg(summarize_learned_job(job), f"The job followed in {where.root}")
    )


HEALTH_COLOURS = {
    "exact": "green",
    "behind": "yellow",
    "tainted": "magenta",
    "stale": "red",
    "ended": "cyan",
}


def print_state(state: ChainState, leftovers: Sequence[Finding]) -> None:
    """leftovers: what other chains left."""
    say = StatusLines(SentenceConsole(highlight=False)).say
    console = SentenceConsole(highlight=False)
    if not console.is_terminal:
        console = SentenceConsole(highlight=False, width=PIPED_CELLS)
    word, colour = state.health.word.upper(), HEALTH_COLOURS[state.health.word]
    killed = bool(state.stages) and state.ended is None and not _supervised(state)
    # What to do about a killed chain is told below, with its folder.
    told_of = None if killed else state.health.reason
    say(f"[bold {colour}]{word}[/] {escape(str(state.health.reason))}", told_of)
    for sentence, of in shutdown_record.end_sentences(state):
        say(escape(sentence), of)
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
        full = flow_table_full_finding(packets)
        say(f"[red]{escape(str(full))}[/]", full)
    for job in state.jobs:
        if state.jobs[1:]:
            told = f"[bold]Job {escape(job.name)}[/]: {escape(str(job.health.reason))}"
            say(told, job.health.reason)
        for sentence, of in _of_job(job, over=state.ended is not None):
            say(sentence, of)
    print_tainted_models(state.models)
    at = "a port that its log names" if state.watch_port_in_log else state.watched
    if at and state.ended is None:
        say(f"watched at {escape(at)}")
    for problem in state.problems:
        say(f"[yellow]{escape(str(problem))}[/]", problem)
    if killed:
        say(_killed(state))
    if RunDir(Path(state.run)).previous.exists():
        say(f"the run before: `flowcheck status --previous{escape(run_option(state.run))}`")
    for left in leftovers:
        say(escape(str(left)), left)


class StatusLines:
    """Lines on a console, and under a finding what to do about it, each remedy once."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._remedies: set[str] = set()

    def say(self, line: str, of: Finding | None = None) -> None:
        """line: markup; of: the finding that it tells."""
        self._console.print(printable(line), soft_wrap=True)
        if of is not None and of.remedy and of.remedy not in self._remedies:
            self._remedies.add(of.remedy)
            self._console.print(f"  [dim]{escape(printable(of.remedy))}[/]", soft_wrap=True)


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


def _of_job(job: JobState, *, over: bool) -> Iterator[tuple[str, Finding | None]]:
    """Lines of markup, each with the finding that it tells. over: nothing can be given to it any
    more."""
    if job.lost_step is not None:
        yield f"[red]step {job.lost_step} was lost[/]: the replica stops there", job.lost_why
    if job.awaits_base and not over:
        base = base_missing(job)
        yield escape(str(base)), base
    for one in job.base_search:
        yield f"  {escape(str(one))}", one
    if job.addresses:
        yield f"job on {', '.join(job.addresses)}", None
    if job.step is not None:
        yield f"replica at step {job.step}, digest {escape(job.digest)}", None
        if job.follows == FollowedData.PARAMETERS:
            yield "  of kind: parameters as they are gathered, no optimizer state", None
        for one in job.tainted:
            yield f"  {escape(str(one))}", one
        if job.healed is not None:
            yield f"  {escape(str(job.healed))}", job.healed
        if job.kept_steps is not None:
            yield f"  {escape(str(job.kept_steps.sentence))}", job.kept_steps.sentence
            if job.kept_steps.why_not is not None:
                why = job.kept_steps.why_not
                yield f"  [red]{escape(str(why))}[/]", why
        yield _audited(job)
        if job.audit_doubt is not None:
            yield f"  [red]{escape(str(job.audit_doubt))}[/]", job.audit_doubt
        for one in job.damaged_files:
            yield f"  {escape(str(one))}", one
    elif over:
        yield "no step was applied" if job.learned else "no job was learned", None
    else:
        yield "no step applied yet" if job.learned else "the job is not learned yet", None
    yield from _copies(job)
    for line in anchor_sentences(job.anchors, job.anchors_before):
        yield line, None
    yield from checkpoint_status.checkpoint_sentences(job.durable, job.step or 0)
    if job.served:
        yield f"steps are served at {escape(job.served)}", None
    for reason in job.why_not:
        yield f"  {escape(str(reason))}", reason


def _copies(job: JobState) -> Iterator[tuple[str, Finding | None]]:
    """What the replica is a copy of, and who has copies of it."""
    if (own := job.copy_of) is not None:
        yield f"  {escape(str(own.sentence))}", own.sentence
        if own.why_not is not None:
            yield f"  [red]{escape(str(own.why_not))}[/]", own.why_not
    if (given := job.copied_by) is not None:
        yield f"copies may follow at {escape(given.url)}", None
        for one in given.followers:
            yield f"  {escape(str(one.sentence))}", one.sentence
        if given.why_not is not None:
            yield f"  [red]{escape(str(given.why_not))}[/]", given.why_not


def _killed(state: ChainState) -> str:
    """What to do about a chain whose supervisor is gone."""
    of_run = escape(run_option(state.run))
    again = f"`flowcheck up JOB.toml{of_run}`"
    if replay := reads_captures(Path(state.run)):
        again = f"`{escape(repeating_command(Path(state.run)))}`"
    waits = next((job.logged for job in state.jobs if job.logged and job.logged[1]), None)
    if waits is not None:
        return (
            f"[red]its supervisor was killed[/]: steps {waits[0]} to {waits[1]} since it joined "
            f"the job are logged in memory, and go with it: {again} begins anew"
        )
    if not any(job.step for job in state.jobs):
        return f"[red]its supervisor was killed[/]: `flowcheck down{of_run}` removes what is left"
    if not any(RunDir(Path(job.run)).replica.exists() for job in state.jobs):
        then = (
            f"{again} reads the captures again" if replay else f"{again} follows a live job again"
        )
        return (
            "[red]its supervisor was killed[/], and its shared memory is gone: `flowcheck restore"
            f"{of_run} --format torch --out restored.pt` gives the newest exact step that was "
            f"saved; {then}; `flowcheck down{of_run}` removes what is left"
        )
    first = f"{again} and `flowcheck down{of_run}` make it a checkpoint first"
    if replay:
        first = f"`flowcheck down{of_run}` makes it a checkpoint; {again} reads the captures again"
    return (
        "[red]its supervisor was killed[/], its replica is in memory still: `flowcheck restore"
        f"{of_run} --format torch --out restored.pt` gives it back; {first}"
    )


def _audited(job: JobState) -> tuple[str, Finding | None]:
    if job.audit_passed is None:
        never = NEVER_AUDITED(job.run)
        return escape(str(never)), never
    if job.audit_passed:
        return f"audit passed at step {job.audited_step}", None
    failed = failed_audit(job)
    return f"[red]{escape(str(failed))}[/]", failed


def anchor_sentences(anchors: Sequence[AnchorFile], before: int) -> list[str]:
    """Sentences about trainer checkpoints that replaced steps of the replica. anchors: the newest
    ones, ascending; before: number of older ones."""
    more = [f"  and {before} files before"] if before else []
    return [
        f"step {one.step} is the trainer's {escape(one.file)}, which took its place when "
        f"the replica was at step {one.at}"
        for one in reversed(anchors)
    ] + more
