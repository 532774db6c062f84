"""`flowcheck down`, and rescue of a killed chain: saves the replica as a checkpoint, ends
processes, removes shared memory."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import msgspec

from flowcheck.config import JobConfig, PersistConfig
from flowcheck.errors import ConfigError, FlowCheckError, RunDirError, StateError
from flowcheck.findings.catalog.general_errors import ERROR_TEXT
from flowcheck.findings.catalog.how_chains_end import (
    DISCARDED,
    KEPT_NOWHERE,
    NO_CHECKPOINT_THERE,
    NO_MEMORY_TO_KEEP,
    NO_REPLICA_TO_KEEP,
    NO_STEP_TO_KEEP,
    REPLICA_KEPT,
    REPLICA_KEPT_BUT,
    RESCUED,
    STAGES_STILL_RUN,
)
from flowcheck.findings.catalog.run_directories import BEING_STARTED, NOTHING_TO_STOP
from flowcheck.findings.catalog.starting_a_chain import CHECKPOINT_WAITS
from flowcheck.findings.finding import Finding, plain_error_text
from flowcheck.ops.lifecycle.common_step_of_jobs import common_step_to_keep, write_index
from flowcheck.ops.lifecycle.leftover_memory import (
    RemovedLeftovers,
    remove_leftovers,
    summed_by_chain,
)
from flowcheck.ops.lifecycle.progress_messages import print_message
from flowcheck.ops.lifecycle.shutdown_checkpoint import SaveFunction, save_checkpoint
from flowcheck.ops.lifecycle.shutdown_record_writer import record_killed_end, record_stop_request
from flowcheck.ops.watch.state.taint_of_models import record_taint
from flowcheck.private_files import trust_user
from flowcheck.replica.state_file.file_header import peek_versions
from flowcheck.stages.run_directory.job_run_dirs import all_run_dirs
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.run_directory.run_dir_checks import is_run
from flowcheck.stages.run_directory.service_account import account
from flowcheck.stages.run_directory.start_notice import is_being_started
from flowcheck.stages.stage_table import SUPERVISOR
from flowcheck.step_numbers import Step
from flowcheck.untrusted_text import printable

DOWN_LIMIT_S = 10.0
"""Seconds for one process to end: twice the longest time that a supervisor needs (supervisor.py,
GRACE_S). A choice: a longer limit delays the error."""
LOOK_S = 0.05
"""Seconds between two checks of the processes. A choice: a shorter time costs CPU time."""
FOLDERS_MAX = 100
"""Number of folders tried (rescued, rescued1, ...) where killed chains left other states of the
same step. A choice: more only delays the error."""


@dataclass(frozen=True, slots=True)
class SavedReplica:
    """A checkpoint of a replica that was written."""

    folder: Path | str
    """Its folder, or the URL of an object store."""
    why: Finding | None
    """Why it is not where the job file wants it; None: it is."""


def save_replicas(
    config: JobConfig, run: RunDir, save: SaveFunction | None = None
) -> tuple[list[SavedReplica | None], Finding | None]:
    """Saves the replicas of all jobs of the chain in `run`, as `save_replica`. Rings of one
    training job are saved at a step that all of them have.

    Returns ([job] its checkpoint, None without a step) and why there is no common step (None:
    there is one, or none is needed). Raises as `save_replica`.
    """
    runs = all_run_dirs(run)
    record_taint(run)
    if len(runs) == 1:
        return [save_replica(config, run, None, save)], None
    step, why = common_step_to_keep(runs[0].settings(), runs)
    kept = [save_replica(own.settings(), own, step, save) for own in runs]
    if config.checkpoint is not None and any(kept):
        folders = [one.folder if one is not None else None for one in kept]
        own = [folder if isinstance(folder, Path) else None for folder in folders]
        write_index(Path(config.checkpoint), run, own, step)
    return kept, why


def save_replica(
    config: JobConfig, run: RunDir, step: Step | None = None, save: SaveFunction | None = None
) -> SavedReplica | None:
    """Writes a checkpoint of the replica at the place that the job file names, else in a folder of
    the run that does not hold another state of the same step. None: no step was applied.

    step: an older step than the last one.
    save: function that writes it; None: `save_checkpoint` in this process.

    Raises StateError or OSError where it can be written in neither place.
    """
    if not _stepped(run):
        return None
    save = save or save_checkpoint
    why: Finding | None = None
    kept = None
    if config.persist is not None:
        try:
            kept = _persisted(config, config.persist, run, step)
        except (FlowCheckError, OSError) as error:
            why = _finding_of(error)
    if config.checkpoint is not None:
        try:
            saved = save(config, run, Path(config.checkpoint), step)
            return SavedReplica(saved, why) if saved is not None else None
        except (StateError, OSError) as error:
            why = NO_CHECKPOINT_THERE(folder=config.checkpoint, error=error)
    if kept is not None:
        return SavedReplica(kept, why)
    for number in range(FOLDERS_MAX):
        try:
            saved = save(config, run, run.root / f"rescued{number or ''}", step)
            return SavedReplica(saved, why) if saved is not None else None
        except StateError as error:
            refused = error
    raise refused


def _finding_of(error: FlowCheckError | OSError) -> Finding:
    if isinstance(error, FlowCheckError):
        return error.finding
    return ERROR_TEXT(kind="system", text=plain_error_text(error))


def _persisted(
    config: JobConfig, persist: PersistConfig, run: RunDir, step: Step | None
) -> Path | str | None:
    from flowcheck.stages.checkpointing.final_checkpoint import save_last_step

    entry = save_last_step(run, config, step, print_message)
    if entry is None:
        return None
    if persist.is_local:
        from flowcheck.vault.persist.storage_target import local_path

        return local_path(persist.target) / entry.name
    return f"{persist.target.rstrip('/')}/{entry.name}"


def _stepped(run: RunDir) -> bool:
    """Whether a step was applied; without one the replica is what the trainer itself began with."""
    return run.replica.exists() and max(peek_versions(run.replica)[1], default=0) > 0


def rescue_killed_chain(run: RunDir, finder: str) -> Finding | None:
    """Saves the replica of a chain whose supervisor was killed, before its run directory is used
    again. Returns what was done, which is also recorded as the chain's end; None: there is no
    killed chain.

    finder: the command that found it, for the record.

    Raises ConfigError where stages are still running after DOWN_LIMIT_S, StateError where the
    replica cannot be written anywhere; then everything is left as it is.
    """
    if not run.has_shared_memory or SUPERVISOR.name in run.stage_pids():
        return None
    _wait_for_stages(run)
    folders: list[str | None] = []
    if not run.memory.exists():
        done = NO_MEMORY_TO_KEEP()
    elif not any(own.replica.exists() for own in all_run_dirs(run)):
        done = NO_REPLICA_TO_KEEP()
    else:
        done, folders = _rescued(run)
    record_killed_end(run, finder, done, folders)
    return RESCUED(run=run.root, done=done)


def _rescued(run: RunDir) -> tuple[Finding, list[str | None]]:
    """What was done, and [job] where its replica is kept now."""
    try:
        kept, why = save_replicas(_whole_settings(run), run)
    except (FlowCheckError, OSError) as error:
        raise StateError(KEPT_NOWHERE(run=run.root, error=error)) from error
    folders = [None if one is None else str(one.folder) for one in kept]
    there = [folder for folder in folders if folder is not None]
    if not there:
        return NO_STEP_TO_KEEP(), folders
    if why is None:
        return REPLICA_KEPT(there), folders
    return REPLICA_KEPT_BUT(folders=there, note=why), folders


def _whole_settings(run: RunDir) -> JobConfig:
    """Of all jobs of a chain: checkpoints' folder is that above each one's own."""
    config = run.settings()
    if not config.several or config.checkpoint is None:
        return config
    return msgspec.structs.replace(config, checkpoint=str(Path(config.checkpoint).parent))


def _wait_for_stages(run: RunDir) -> None:
    """Stages end with their supervisor, after what is in hand."""
    deadline_s = time.monotonic() + DOWN_LIMIT_S
    while left := [name for own in all_run_dirs(run) for name in own.stage_pids()]:
        if time.monotonic() > deadline_s:
            right = STAGES_STILL_RUN(stages=left, run=run.root)
            raise ConfigError("run", str(run.root), right)
        Event().wait(LOOK_S)


def down(root: Path, *, named: bool = True, discard: bool, as_json: bool) -> int:
    """`flowcheck down`: ends the processes of the chain and removes its shared memory. The replica
    of a killed chain is saved as a checkpoint first. Then removes unused shared memory of other
    killed chains. Logs and records stay. Returns the exit code.

    named: the user stated `root`, so that it must be a run directory. discard: give that replica
    up. Raises ConfigError where no chain was started, StateError where its replica can be written
    nowhere.
    """
    run = RunDir(root)
    if named and not is_run(root):
        with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            run.config.read_bytes()  # what this user may not read is not said to be no run
        starts = is_being_started(root)
        raise RunDirError(root, BEING_STARTED(run=root) if starts else NOTHING_TO_STOP(root))
    pids = run.stage_pids()
    if SUPERVISOR.name in pids:
        record_stop_request(run)
        _end_supervisor(run, pids[SUPERVISOR.name])
    _end([pid for own in all_run_dirs(run) for pid in own.stage_pids().values()], signal.SIGKILL)
    there = run.has_shared_memory
    rescued = None if discard else rescue_killed_chain(run, "flowcheck down")
    if discard and there:
        record_killed_end(run, "flowcheck down", DISCARDED(), ())
    run.remove(keep_records=True)
    cleared = remove_leftovers(except_run=root, replicas=True)
    if as_json:
        _print_json(cleared, ended=sorted(pids), removed=there, rescued=rescued)
        return 0
    if rescued is not None:
        print(printable(str(rescued)))
    stay = f"logs and records stay in {root}" if run.config.exists() else ""
    if pids or there:
        ended = ", ".join(sorted(pids)) or "no process"
        print("; ".join(filter(None, (f"ended {ended}", "removed its shared memory", stay))))
    else:
        print("; ".join(filter(None, (f"nothing runs in {root}", stay))))
    for removed in cleared.findings:
        print(printable(str(removed)))
    return 0


def remove_unowned(*, as_json: bool) -> int:
    """`flowcheck down --leftovers`: removes the shared memory of killed chains that no run
    directory of a user's leads to. No chain ends, whichever runs. Returns the exit code."""
    if os.geteuid() == 0:
        trust_user(account(None).user)  # the user of chains that root starts
    cleared = remove_leftovers(except_run=None, replicas=True)
    if as_json:
        _print_json(cleared, ended=[], removed=False, rescued=None)
        return 0
    said = [*cleared.findings, *(one.finding for one in summed_by_chain(cleared.kept))]
    print("\n".join(printable(str(one)) for one in said) or "no killed chain left anything")
    return 0


def _print_json(
    cleared: RemovedLeftovers, *, ended: list[str], removed: bool, rescued: Finding | None
) -> None:
    result = {
        "ended": ended,
        "removed": removed,
        "rescued": rescued,
        "stale": cleared.removed,
        "left": [one.finding for one in summed_by_chain(cleared.kept)],
    }
    print(msgspec.json.encode(result).decode())


def _end_supervisor(run: RunDir, pid: int) -> None:
    """Asks it to end; a chain of which only the supervisor is left writes its checkpoint, and that
    may take as long as it takes."""
    if _end([pid], signal.SIGTERM) or set(run.stage_pids()) != {SUPERVISOR.name}:
        return
    print_message(CHECKPOINT_WAITS())
    _ended(pid, None)


def _end(pids: Iterable[int], number: int) -> bool:
    """Signals processes that are not our children; whether all end within DOWN_LIMIT_S each."""
    signalled = list(pids)
    for pid in signalled:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    ended = [_ended(pid, DOWN_LIMIT_S) for pid in signalled]
    return all(ended)


def _ended(pid: int, limit_s: float | None) -> bool:
    """Waits for the end of a process; None: however long that takes."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], limit_s)[0])
    finally:
        os.close(watched)
