"""`flowcheck up`: runs a chain in the foreground until a signal, then writes a final
checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from flowcheck.config import JobConfig
from flowcheck.errors import FlowCheckError, StateError
from flowcheck.findings.catalog.chain_health import OF_JOB
from flowcheck.findings.catalog.how_chains_end import FAILED_AND, STAYS_IN_MEMORY
from flowcheck.findings.catalog.starting_a_chain import (
    JOB_IS_KNOWN,
    KEPT_AFTER_FAILURE,
    STARTING,
    STARTS_ANEW,
)
from flowcheck.findings.named_run import set_named_run
from flowcheck.ops.job_setup.capture_port_check import check_capture_ports
from flowcheck.ops.job_setup.checked_job_file import load_checked_job
from flowcheck.ops.job_setup.midstream_join_buckets import expected_buckets_of_jobs
from flowcheck.ops.lifecycle.chain_runner import create_run, supervise
from flowcheck.ops.lifecycle.job_file_memory import check_memory_fits
from flowcheck.ops.lifecycle.leftover_memory import remove_leftovers, summary_findings
from flowcheck.ops.lifecycle.progress_messages import (
    ERROR,
    LiveMessages,
    print_message,
    set_message_format,
)
from flowcheck.ops.lifecycle.run_outcome import RunOutcome, run_outcome
from flowcheck.ops.lifecycle.shutdown_checkpoint import checkpoint_writer
from flowcheck.ops.lifecycle.shutdown_cleanup import rescue_killed_chain, save_replicas
from flowcheck.ops.lifecycle.shutdown_record_writer import (
    failure_finding,
    record_end,
    record_failed_end,
    stopped_by,
)
from flowcheck.ops.watch.state.chain_state import EndKind, JobEnd
from flowcheck.ops.watch.state.shutdown_record import path_to_record
from flowcheck.stages.job_learning.remembered_job import REMEMBERED_JOB_FILE
from flowcheck.stages.privilege.drop_privileges import kept_rights_notes
from flowcheck.stages.run_directory.job_run_dirs import all_run_dirs
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.run_directory.start_notice import end_start_notice
from flowcheck.stages.service_loop import Signals
from flowcheck.stages.supervisor.checkpoint_helper import CheckpointHelper
from flowcheck.stages.supervisor.sd_notify import SdNotifier
from flowcheck.stages.supervisor.supervisor import Supervisor

EXIT_STOPPED_SHORT = 1


def up(job: Path, root: Path | None, *, as_json: bool) -> int:
    """Runs a chain until a signal, then writes a checkpoint if the job file names a place for it.

    Returns 0 if the replica followed to the end, 1 if it applied no step or stopped earlier.
    Raises any other error that ended the chain; the replica is saved wherever there is room.
    """
    config = load_checked_job(job)
    set_message_format(config.log)
    for note in kept_rights_notes():
        print_message(note)
    check_capture_ports(config.source, job)
    expected = expected_buckets_of_jobs(config)
    where = root or Path(config.run)
    set_named_run(where)
    manager = SdNotifier()
    # To the end: a signal while a checkpoint is being written must not be the end of both.
    with Signals() as signals:
        with manager.busy("looking for what a killed run left"):
            rescued = rescue_killed_chain(RunDir(where), "flowcheck up")
        if rescued is not None:
            print_message(STARTS_ANEW(rescued))
        cleared = remove_leftovers(except_run=where, replicas=False)
        for found in (*cleared.findings, *summary_findings(cleared.kept)):
            print_message(found)
        check_memory_fits(config)
        run, memory = create_run(config, where, expected)
        end_start_notice()
        print_message(memory)
        known = [
            own for own in all_run_dirs(run) if (own.learned_folder / REMEMBERED_JOB_FILE).exists()
        ]
        if known:
            print_message(JOB_IS_KNOWN())
        print_message(STARTING(run.root))
        supervisor = _supervised(config, run, signals, manager)
        runs = all_run_dirs(run)
        manager.stopping()
        keeps = config.wants_final_checkpoint
        saved = (
            _write_replicas(config, run, manager, supervisor.checkpoint_helper)
            if keeps
            else [None] * len(runs)
        )
        watched = (supervisor, *supervisor.other_jobs)
        ended = [run_outcome(config, own, w.progress) for own, w in zip(runs, watched, strict=True)]
        came_to = [_kept_of(*of) for of in zip(ended, saved, strict=True)]
        record_end(run, EndKind.ASKED, stopped_by(run, signals.received), came_to)
        run.remove(keep_records=True)
    told = [_outcome_fields(*of) for of in zip(runs, ended, saved, watched, strict=True)]
    for number, one in enumerate(ended, 1):
        if one.why is not None:
            print_message(
                OF_JOB(job=f"job {number}", reason=one.why) if len(runs) > 1 else one.why, ERROR
            )
    if as_json:
        further = {"beside": told[1:]} if told[1:] else {}
        print(msgspec.json.encode(told[0] | further).decode())
    for number, (own, one, folder) in enumerate(zip(runs, ended, saved, strict=True), 1):
        if not as_json:
            named = f"job {number} " if len(runs) > 1 else ""
            print(named + _summary(config, own, one, folder))
    return 0 if all(one.why is None for one in ended) else EXIT_STOPPED_SHORT


def _kept_of(ended: RunOutcome, saved: Path | str | None) -> JobEnd:
    return JobEnd(
        step=ended.step,
        why=ended.why,
        in_flight=ended.in_flight,
        checkpoint=path_to_record(saved) if saved else None,
    )


def _outcome_fields(
    run: RunDir, ended: RunOutcome, saved: Path | str | None, of: Supervisor
) -> dict[str, Any]:
    return {
        "steps": ended.step,
        "digest": ended.digest,
        "why": ended.why,
        "in_flight": ended.in_flight,
        "frames": ended.frames,
        "lost_frames": ended.lost_frames,
        "restarts": of.progress.restarts,
        "checkpoint": str(saved) if saved else None,
        "records": str(run.root),
    }


def _supervised(
    config: JobConfig, run: RunDir, signals: Signals, manager: SdNotifier
) -> Supervisor:
    """The chain's life. One that fails leaves its replica as a checkpoint, asked for or not."""
    try:
        return supervise(
            config,
            run,
            until_drained=False,
            will_save=config.wants_final_checkpoint,
            signals=signals,
            watch=LiveMessages(config),
            manager=manager,
        )
    except BaseException as error:
        manager.stopping()
        folders = _write_replicas(config, run, manager, None, after=error)
        for saved in filter(None, folders):
            print_message(KEPT_AFTER_FAILURE(saved), ERROR)
        record_failed_end(run, failure_finding(error), folders)
        run.remove(keep_records=True)
        raise


def _write_replicas(
    config: JobConfig,
    run: RunDir,
    manager: SdNotifier,
    helper: CheckpointHelper | None,
    after: BaseException | None = None,
) -> list[Path | str | None]:
    """The replica of each job as a checkpoint; None if there is no replica. Raises StateError,
    their memory being left where it is, if there is no room for one."""
    pids = [helper.process.pid] if helper is not None else []
    try:
        busy = manager.busy("writing the replica as a checkpoint", *pids)
        with busy, checkpoint_writer(helper) as save:
            kept, why = save_replicas(config, run, save)
    except (FlowCheckError, OSError) as error:
        stays = STAYS_IN_MEMORY(error=error, run=run.root)
        if after is not None:
            stays = FAILED_AND(failure=failure_finding(after), then=stays)
        record_failed_end(run, stays, [None] * len(all_run_dirs(run)))
        raise StateError(stays) from error
    for note in (why, *(one.why for one in kept if one is not None)):
        if note is not None:
            print_message(note)
    return [one.folder if one is not None else None for one in kept]


def _summary(config: JobConfig, run: RunDir, ended: RunOutcome, saved: Path | str | None) -> str:
    parts = [f"stopped at step {ended.step}" if ended.step else "stopped without a step"]
    if ended.in_flight is not None:
        parts.append(f"step {ended.in_flight} was under way and is not in it")
    if saved is not None:
        parts.append(f"checkpoint {saved}")
    elif ended.step and not config.wants_final_checkpoint:
        parts.append("no checkpoint, for the job file names no folder for one")
    if ended.lost_frames:
        parts.append(f"{ended.lost_frames:,} frames were lost in capture")
    return "; ".join([*parts, f"logs and records in {run.root}"])
