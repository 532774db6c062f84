"""The record of how, when and why a chain ended: file read and write, and its findings.

`up` writes it when its chain ends. For a chain that was killed, `down` or the next `up` writes it.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from flowcheck.atomic_write import write_atomically
from flowcheck.findings.catalog.earlier_files import earlier_finding
from flowcheck.findings.catalog.how_chains_end import (
    ENDED,
    GAVE_UP,
    KILLED,
    MEMORY_GONE,
    MEMORY_GONE_SINCE,
    STAGES_LEFT,
    UNEXPLAINED,
)
from flowcheck.findings.finding import Finding
from flowcheck.findings.named_run import run_option
from flowcheck.ops.watch.state.chain_state import ChainEnd, ChainState, EndKind, JobEnd, JobState
from flowcheck.ops.watch.state.replay_options_record import repeating_command
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.run_directory.run_dir_checks import chain_root
from flowcheck.untrusted_paths import step_in_name

END_ENTRIES = {
    EndKind.ASKED: ENDED,
    EndKind.DRAINED: ENDED,
    EndKind.FAILED: GAVE_UP,
    EndKind.KILLED: KILLED,
}


def write_end(run: RunDir, end: ChainEnd) -> None:
    """Writes the record. An error, such as a full disk, is ignored, so that the chain can end."""
    with suppress(OSError):
        write_atomically(run.ended, msgspec.json.encode(end))


def read_end(run: RunDir) -> ChainEnd | None:
    """The record; None: there is none. Raises msgspec.ValidationError for a file that is not a
    record. In records of FlowCheck 0.1 facts are sentences."""
    try:
        record = msgspec.json.decode(run.ended.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    if isinstance(record, dict):
        jobs = record.get("jobs")
        if isinstance(jobs, list):
            record["jobs"] = [_with_finding(job, "why") for job in jobs]
    return msgspec.convert(_with_finding(record, "by"), ChainEnd)


def _with_finding(record: object, key: str) -> object:
    """The record with a finding in place of a sentence."""
    if not (isinstance(record, dict) and isinstance(told := record.get(key), str)):
        return record
    return record | {key: msgspec.to_builtins(earlier_finding(told)) if told else None}


def path_to_record(saved: Path | str) -> str:
    """Where a checkpoint was saved (a folder or a URL), as the record names it for commands that
    are started in another working directory."""
    return str(saved) if "://" in str(saved) else str(Path(saved).absolute())


def utc_text(time_ns: int) -> str:
    """A time (nanoseconds since 1970) as text for people, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_ns // 10**9))


def last_sign_of_life_ns(run: RunDir) -> int | None:
    """Time of the chain's last heartbeat, or else of its last event, in nanoseconds since 1970."""
    for file in (run.heartbeat_file, run.events, run.config):
        with suppress(OSError):
            return file.stat().st_mtime_ns
    return None


def end_reason(run: RunDir, end: ChainEnd | None, stopped_ns: int | None = None) -> Finding:
    """How, when and by whom a chain ended whose shared memory is gone. stopped_ns: when its stages
    ended, nanoseconds since 1970, if there is no record."""
    if end is not None:
        return END_ENTRIES[end.how](run=run.root, time=utc_text(end.time_ns), by=end.by)
    if run.has_shared_memory:
        last = last_sign_of_life_ns(run)
        return (
            MEMORY_GONE(run.root)
            if last is None
            else MEMORY_GONE_SINCE(run=run.root, time=utc_text(last))
        )
    if stopped_ns:
        return STAGES_LEFT(run=run.root, time=utc_text(stopped_ns))
    return UNEXPLAINED(run.root)


def end_sentences(state: ChainState) -> Iterator[tuple[str, Finding | None]]:
    """Sentences for people, each with the finding that it tells: the result of a chain that is
    over, and what to do next."""
    end = state.ended
    if end is None:
        return
    for job, kept in zip(state.jobs, end.jobs, strict=False):
        named = f"{job.name}: " if state.jobs[1:] else ""
        yield from ((f"{named}{one}", of) for one, of in _of_job(job, kept))
    again = [f"{stage} {count} times" for stage, count in end.restarts.items() if count]
    if again:
        yield f"started again meanwhile: {', '.join(again)}", None
    yield f"next: {_next(state, end)}", None


def _of_job(job: JobState, kept: JobEnd) -> Iterator[tuple[str, Finding | None]]:
    if kept.why is not None:
        yield str(kept.why), kept.why
    if kept.in_flight is not None:
        yield f"step {kept.in_flight} was under way, and is not in it", None
    if job.steps_lost:
        lost = "1 step was" if job.steps_lost == 1 else f"{job.steps_lost} steps were"
        yield f"{lost} lost meanwhile; events.jsonl names each", None
    if kept.checkpoint is not None:
        yield f"its replica of step {kept.step} is kept in {kept.checkpoint}", None
    elif kept.step:
        yield "its replica was not kept", None


def _next(state: ChainState, end: ChainEnd) -> str:
    """The next commands, for the checkpoint that was kept or else for the durable one."""
    found = next((one.checkpoint for one in end.jobs if one.checkpoint is not None), None)
    durable = next((o.durable for o in state.jobs if o.durable and o.durable.step), None)
    if durable is not None and durable.doubt is not None and durable.exact_name:
        found = f"{durable.target}/{durable.exact_name}"
    elif found is None and durable is not None:
        found = f"{durable.target}/{durable.name}"
    first = "mend that; its stages' last words are in *.log there; " * (end.how is EndKind.FAILED)
    root = chain_root(Path(state.run))
    again = f"`flowcheck up JOB.toml{run_option(root)}` follows the job again"
    if end.replay:  # without --run it is in a folder of its own
        command = repeating_command(root, end.replay_options)
        again = f"`{command}` reads the captures again and saves the last step"
        if end.how is not EndKind.FAILED and found is not None and str(root) == state.run:
            again = f"`flowcheck audit FILE{run_option(root)}` compares it with FILE of the trainer"
    if found is None:
        return f"{first}{again}"
    kept = shlex.quote(path_to_record(found))
    restore = f"`flowcheck restore --checkpoint {kept} --format torch --out restored.pt`"
    if "://" in found:
        store, _, name = found.rpartition("/")
        store, step = shlex.quote(path_to_record(store)), step_in_name(name)
        restore = (
            f"`flowcheck restore --from {store} --step {step} --format torch --out restored.pt`"
        )
    return (
        f"{first}{restore} "
        "gives that step to the trainer (--template FILE instead of --format: in the layout of "
        f"FILE, any checkpoint that it wrote); {again}"
    )
