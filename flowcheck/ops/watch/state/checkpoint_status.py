"""Status of a chain's checkpoints: the newest durable one, saves under way, failures, and the
URL that serves steps."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import msgspec
from rich.markup import escape

from flowcheck.config import PersistConfig
from flowcheck.errors import DECODE_ERRORS
from flowcheck.ops.watch.state.chain_state import ChainEnd, DurableCheckpoint, JobState
from flowcheck.stages.run_directory.run_dir import RunDir
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
        age_s=round(time.time() - found.durable_s, 1) if known else None,
        count=found.count,
        phase=found.phase,
        phase_step=found.step if found.phase else None,
        done_share=round(min(1.0, share), 4) if found.phase and share is not None else None,
        error=found.error,
        attempts=found.attempts,
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
    timeline = tuple(
        msgspec.structs.replace(one, durable_ns=made_ns) if one.step == kept.step else one
        for one in job.timeline
    )
    return msgspec.structs.replace(job, durable=own, timeline=timeline)


def serve_url(where: RunDir) -> str | None:
    """The URL at which the steps of a job are served; None: they are not."""
    with suppress(OSError, *DECODE_ERRORS):
        return msgspec.json.decode(where.served.read_bytes(), type=dict[str, str]).get("url")
    return None


def checkpoint_sentences(own: DurableCheckpoint | None, newest: int) -> list[str]:
    """Sentences about checkpoints for people. newest: the replica's step."""
    if own is None:
        return []
    if own.step is None:
        said = ["no checkpoint is durable yet"]
    else:
        said = [
            f"last durable checkpoint: step {own.step}, {_ago(own.age_s or 0.0)} ago, "
            f"{max(0, newest - own.step)} steps behind, in {escape(f'{own.target}/{own.name}')}"
        ]
    if own.phase:
        share = f", {100 * own.done_share:.0f} % there" if own.done_share is not None else ""
        said.append(f"  {own.phase} step {own.phase_step}{share}")
    if own.attempts:
        times = f"{own.attempts} attempts" if own.attempts > 1 else "an attempt"
        said.append(f"[red]saving fails[/] ({times}): {escape(str(own.error))}")
    return said


def _ago(seconds: float) -> str:
    if seconds < FRESH_S:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
