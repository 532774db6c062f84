"""The record of how, when and why a chain ended: file read and write, and its sentences.

`up` writes it of its own end; `down`, or the next `up`, of a chain that was killed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from flowcheck.atomic_write import write_atomically
from flowcheck.ops.watch.state.chain_state import ChainEnd, ChainState, EndKind, JobEnd, JobState
from flowcheck.stages.run_directory.run_dir import RunDir

END_SENTENCES = {
    EndKind.ASKED: "ended at {}: {}",
    EndKind.DRAINED: "ended at {}: {}",
    EndKind.FAILED: "gave up at {}: {}",
    EndKind.KILLED: "was killed, its last sign of life is of {}: {}",
}


def write_end(run: RunDir, end: ChainEnd) -> None:
    """An end that cannot be told, as on a full disk, is an end all the same."""
    with suppress(OSError):
        write_atomically(run.ended, msgspec.json.encode(end))


def read_end(run: RunDir) -> ChainEnd | None:
    """None where none was told. Raises msgspec.ValidationError for what is no record."""
    try:
        return msgspec.json.decode(run.ended.read_bytes(), type=ChainEnd)
    except (FileNotFoundError, NotADirectoryError):
        return None


def clock(time_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_ns // 10**9))


def last_sign_ns(run: RunDir) -> int | None:
    """When a chain's heart last beat, or else when it last wrote an event, since 1970."""
    for file in (run.beat, run.events, run.config):
        with suppress(OSError):
            return file.stat().st_mtime_ns
    return None


def end_reason(run: RunDir, end: ChainEnd | None, stopped_ns: int | None = None) -> str:
    """How, when and by whom a chain ended whose shared memory is gone. stopped_ns: when its stages
    left, of one whose end nobody wrote down."""
    began = f"the chain that ran in {run.root}"
    if end is not None:
        return f"{began} {END_SENTENCES[end.how].format(clock(end.time_ns), end.by)}"
    last = last_sign_ns(run)
    when = f"; its last sign of life is of {clock(last)}" if last is not None else ""
    if run.holds_memory:
        return (
            f"{began} was killed, and its memory is gone, as after a restart of this machine{when}"
        )
    left = f"its stages left at {clock(stopped_ns)}" if stopped_ns else "nothing tells why"
    return f"{began} has ended; {left}"


def end_sentences(state: ChainState) -> Iterator[str]:
    """For people: what a chain that is over had come to, and what to do next."""
    end = state.ended
    if end is None:
        return
    for job, kept in zip(state.jobs, end.jobs, strict=False):
        named = f"{job.name}: " if state.jobs[1:] else ""
        yield from (f"{named}{one}" for one in _of_job(job, kept))
    again = [f"{stage} {count} times" for stage, count in end.restarts.items() if count]
    if again:
        yield f"started again meanwhile: {', '.join(again)}"
    yield f"next: {_next(state, end)}"


def _of_job(job: JobState, kept: JobEnd) -> Iterator[str]:
    if kept.why:
        yield kept.why
    if kept.in_flight is not None:
        yield f"step {kept.in_flight} was under way, and is not in it"
    if job.steps_lost:
        lost = "1 step was" if job.steps_lost == 1 else f"{job.steps_lost} steps were"
        yield f"{lost} lost meanwhile; events.jsonl names each"
    if kept.checkpoint is not None:
        yield f"its replica of step {kept.step} is kept in {kept.checkpoint}"
    elif kept.step:
        yield "its replica was not kept"


def _next(state: ChainState, end: ChainEnd) -> str:
    """Of what was kept, else of what is durable."""
    found = next((one.checkpoint for one in end.jobs if one.checkpoint is not None), None)
    durable = next((o.durable for o in state.jobs if o.durable and o.durable.step), None)
    if found is None and durable is not None:
        found = f"{durable.target}/{durable.name}"
    first = "mend that; its stages' last words are in *.log there; " * (end.how is EndKind.FAILED)
    again = f"flowcheck up JOB.toml --run {state.run} follows the job again"
    if found is None:
        return f"{first}{again}"
    return f"{first}flowcheck restore --checkpoint {found} gives that step to the trainer; {again}"
