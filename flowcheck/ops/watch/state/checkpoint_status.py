"""Status of a chain's checkpoints: the newest durable one, saves under way, failures, and the
URL that serves steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
from rich.markup import escape

from flowcheck.config import PersistConfig
from flowcheck.errors import DECODE_ERRORS, StateError
from flowcheck.findings.catalog.chain_processes import NEWEST_NOT_EXACT, SAVE_TAINTED
from flowcheck.findings.finding import Finding
from flowcheck.ops.watch.state.chain_state import ChainEnd, DurableCheckpoint, JobState
from flowcheck.ops.watch.state.held_steps import is_tainted, step_in_folder_name
from flowcheck.replica.checkpoint_files.latest_pointer import latest_checkpoint
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step
from flowcheck.vault.persist import save_status_file

FRESH_S = 90.0
"""Ages up to this many seconds are shown in seconds, larger ones in minutes. A choice of layout."""


def read_checkpoint_status(where: RunDir, config: PersistConfig | None) -> DurableCheckpoint | None:
    """The last status of the persist stage, with the checkpoint's age; None: the chain saves no
    checkpoints."""
    if config is None:
        return None
    found = save_status_file.read_save_status(where.persisted) or save_status_file.SaveStatus(
        target=config.target
    )
    known = found.durable_step is not None
    share = found.done_bytes / found.total_bytes if found.total_bytes else None
    return DurableCheckpoint(
        target=found.target,
        step=found.durable_step,
        name=found.durable_name,
        time_ns=int(found.durable_s * 1e9) if known else None,
        age_s=_age_s(found.durable_s) if known else None,
        count=found.count,
        phase=found.phase,
        phase_step=found.step if found.phase else None,
        done_share=round(min(1.0, share), 4) if found.phase and share is not None else None,
        error=found.error,
        attempts=found.attempts,
        doubt=found.doubt,
        short=found.short,
        beside=found.beside,
        scrubbed_time_ns=int(found.scrubbed_s * 1e9) if found.scrubbed_s else None,
        exact_step=found.exact_step,
        exact_name=found.exact_name,
        exact_time_ns=int(found.exact_s * 1e9) if found.exact_step is not None else None,
        exact_age_s=_age_s(found.exact_s) if found.exact_step is not None else None,
    )


def with_final_checkpoint(job: JobState, end: ChainEnd | None) -> JobState:
    """`job` with the checkpoint that was written when its chain ended, if it still exists and is
    at least as new as the durable one."""
    kept = end.jobs[job.number - 1] if end is not None and job.number <= len(end.jobs) else None
    before = job.durable.step if job.durable is not None else None
    if kept is None or kept.checkpoint is None or (before is not None and before > kept.step):
        return job
    place = Path(kept.checkpoint)
    try:
        made_ns = place.stat().st_mtime_ns
    except OSError:
        return job
    own = DurableCheckpoint(
        target=str(place.parent),
        step=kept.step,
        name=place.name,
        time_ns=made_ns,
        age_s=round((time.time_ns() - made_ns) / 1e9, 1),
        count=(job.durable.count if job.durable is not None else 0) + (before != kept.step),
        phase="",
        phase_step=None,
        done_share=None,
        error=None,
        attempts=0,
    )
    if job.durable is not None and (job.durable.step, job.durable.name) == (own.step, own.name):
        own = _with_exact_of(job.durable, own)
    elif is_tainted(place):
        own = _beside_tainted(own, latest_checkpoint(place.parent))
    timeline = tuple(
        msgspec.structs.replace(one, durable_ns=made_ns) if one.step == kept.step else one
        for one in job.timeline
    )
    return msgspec.structs.replace(job, durable=own, timeline=timeline)


def _with_exact_of(known: DurableCheckpoint, own: DurableCheckpoint) -> DurableCheckpoint:
    """`own` with what is known of the saves of its chain, which it is the newest of."""
    return msgspec.structs.replace(
        own,
        doubt=known.doubt,
        short=known.short,
        beside=known.beside,
        scrubbed_time_ns=known.scrubbed_time_ns,
        exact_step=known.exact_step,
        exact_name=known.exact_name,
        exact_time_ns=known.exact_time_ns,
        exact_age_s=known.exact_age_s,
    )


def _beside_tainted(own: DurableCheckpoint, latest: Path | None) -> DurableCheckpoint:
    """A tainted one that was written at the end. latest: what the folder's `latest` names: the
    newest exact step, if there was one to write."""
    step = own.step or 0
    own = msgspec.structs.replace(own, doubt=NEWEST_NOT_EXACT(step=step, why=SAVE_TAINTED()))
    with suppress(StateError, OSError):
        if latest is not None and is_tainted(latest) is False:
            made_s = latest.stat().st_mtime
            return msgspec.structs.replace(
                own,
                exact_step=step_in_folder_name(latest),
                exact_name=latest.name,
                exact_time_ns=int(made_s * 1e9),
                exact_age_s=_age_s(made_s),
            )
    return own


def _age_s(since_s: float) -> float:
    return round(time.time() - since_s, 1)


def serve_url(where: RunDir) -> str | None:
    """The URL at which the steps of a job are served; None: they are not."""
    with suppress(OSError, *DECODE_ERRORS):
        return msgspec.json.decode(where.served.read_bytes(), type=dict[str, str]).get("url")
    return None


def checkpoint_sentences(
    own: DurableCheckpoint | None, newest: int
) -> Iterator[tuple[str, Finding | None]]:
    """Lines of markup about checkpoints, each with the finding that it tells. newest: the replica's
    step."""
    if own is None:
        return
    if own.step is None:
        yield "no checkpoint is durable yet", None
    elif own.doubt is None or own.exact_step is None:
        yield _last("last durable checkpoint", own, (own.step, own.name, own.age_s), newest), None
    else:
        exact = own.exact_step, own.exact_name, own.exact_age_s
        yield _last("last exact durable checkpoint", own, exact, newest), None
    if own.doubt is not None:
        yield f"  [red]{escape(str(own.doubt))}[/]", own.doubt
    if own.short is not None:
        yield f"  [yellow]{escape(str(own.short))}[/]", own.short
    if own.beside is not None:
        yield f"  [red]{escape(str(own.beside))}[/]", own.beside
    if own.scrubbed_time_ns is not None:
        ago = _ago(_age_s(own.scrubbed_time_ns / 1e9))
        yield f"  every block of the saves of that time was read {ago} ago", None
    if own.phase:
        share = f", {100 * own.done_share:.0f} % there" if own.done_share is not None else ""
        yield f"  {own.phase} step {own.phase_step}{share}", None
    if own.attempts:
        times = f"{own.attempts} attempts" if own.attempts > 1 else "an attempt"
        yield f"[red]saving fails[/] ({times}): {escape(str(own.error))}", own.error


def _last(
    named: str, own: DurableCheckpoint, of: tuple[Step, str, float | None], newest: int
) -> str:
    step, name, age_s = of
    return (
        f"{named}: step {step}, {_ago(age_s or 0.0)} ago, {max(0, newest - step)} steps behind, in "
        f"{escape(f'{own.target}/{name}')}"
    )


def _ago(seconds: float) -> str:
    if seconds < FRESH_S:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
