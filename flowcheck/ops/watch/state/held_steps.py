"""Which steps of a job are at hand, in its replica and as checkpoints, and which of them are exact:
what `restore` gives, and what is told of the newest exact step."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec

from flowcheck.config.persist_serve_config import is_local_place
from flowcheck.errors import RingError, StateError
from flowcheck.ops.watch.state.saved_steps import durable_save, saved_checkpoints
from flowcheck.ops.watch.state.shutdown_record import read_end
from flowcheck.replica.checkpoint_files.latest_pointer import (
    CHECKPOINT_NAME_PREFIX,
    latest_checkpoint,
)
from flowcheck.replica.checkpoint_files.manifest import load_manifest, manifest_path
from flowcheck.replica.state_file.file_header import peek_tainted, peek_versions
from flowcheck.stages.job_state.audit_history import doubts_of
from flowcheck.stages.job_state.differing_steps import saved_while_exact
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step
from flowcheck.untrusted_paths import step_in_name
from flowcheck.vault.persist.checkpoint_of_step import step_of_checkpoint
from flowcheck.vault.persist.storage_target import local_path


@dataclass(frozen=True, slots=True)
class HeldSteps:
    """Steps of one job, each whole."""

    every: frozenset[Step] = frozenset()
    tainted: frozenset[Step] = frozenset()
    """Those of which elements rest on bytes that no mirror brought, or of which copies differ."""


def in_replica(run: RunDir) -> HeldSteps:
    """Those that the replica in memory has; none without a replica."""
    with suppress(OSError, RingError):
        if run.replica.exists():
            every = frozenset(peek_versions(run.replica)[1])
            return HeldSteps(every, peek_tainted(run.replica))
    return HeldSteps()


def at_hand(run: RunDir) -> HeldSteps:
    """Those that can be restored: of the replica, and of the checkpoints of its job file or of its
    chain's end. Where both have a step, the replica's is given."""
    memory = _in_memory(run)
    files = [path for path in checkpoints_of(run) if step_in_folder_name(path) not in memory.every]
    saved = in_checkpoints(files)
    early = {step_in_folder_name(path) for path in files if was_called_exact(run, path)}
    return HeldSteps(memory.every | saved.every, memory.tainted | saved.tainted | early)


def was_called_exact(run: RunDir, checkpoint: Path) -> bool:
    """Whether elements of a checkpoint, which names none as tainted, turned out to be so behind
    it."""
    known = _known_of(checkpoint)
    digest = None if known is None else known[1]
    return bool(saved_while_exact(run, step_in_folder_name(checkpoint), digest=digest))


def in_checkpoints(folders: Sequence[Path]) -> HeldSteps:
    """Those of checkpoint folders; one whose manifest cannot be read does not count."""
    told = {step_in_folder_name(path): is_tainted(path) for path in folders}
    every = frozenset(step for step, tainted in told.items() if tainted is not None)
    return HeldSteps(every, frozenset(step for step in every if told[step]))


def common_steps(held: Sequence[HeldSteps], *, exact: bool) -> tuple[Step, ...]:
    """Steps that all have, ascending. exact: only those without tainted elements in any."""
    both = frozenset[Step]().union(*(one.every for one in held[:1]))
    both = both.intersection(*(one.every for one in held))
    tainted = frozenset[Step]().union(*(one.tainted for one in held))
    return tuple(sorted(both - tainted if exact else both))


def newest_exact_step(runs: Sequence[RunDir]) -> Step | None:
    """The newest step that is exact in all these jobs and can be restored; None: there is none. One
    behind a failed audit counts as not exact. Checkpoints are looked at only where no such step is
    in memory: their folder may be a disk that hangs. Of what is saved in a store the status of the
    saves is asked."""
    for held_by in (_in_memory, at_hand, _in_store):
        steps = common_steps([held_by(run) for run in runs], exact=True)
        proved = (step for step in reversed(steps) if not any(doubts_of(run, step) for run in runs))
        if (newest := next(proved, None)) is not None:
            return newest
    return None


def _in_memory(run: RunDir) -> HeldSteps:
    """Those of the replica, where the state that it began with is known."""
    return in_replica(run) if incarnation_of(run).step is not None else HeldSteps()


def _in_store(run: RunDir) -> HeldSteps:
    """What can be restored and needs to be fetched, or of which nothing can be read here: the
    newest exact one."""
    saved = durable_save(run)
    if saved is None or not saved.is_exact:
        return HeldSteps()
    return HeldSteps(frozenset([saved.step]))


def checkpoints_of(run: RunDir) -> list[Path]:
    """Checkpoint folders of a job, the newest step last: of the folder that the job file states,
    else the one that was kept when the chain ended; and those that `[persist]` saved, of a chain
    that has ended only such as are not newer than what was kept."""
    stated = run.settings().checkpoint
    own = checkpoints_in(Path(stated)) if stated is not None else _kept_at_end(run)
    known = {step_in_folder_name(path) for path in own}
    saved = [one for one in saved_checkpoints(run) if step_in_folder_name(one) not in known]
    if stated is None and own:
        saved = [one for one in saved if step_in_folder_name(one) <= max(known)]
    return sorted((*saved, *own), key=lambda path: (step_in_folder_name(path), path.name))


def step_in_folder_name(checkpoint: Path) -> Step:
    """The step that the name of a checkpoint folder states."""
    return Step(step_in_name(checkpoint.name))


def is_tainted(checkpoint: Path) -> bool | None:
    """None: its manifest cannot be read, whose own error is told once the checkpoint is."""
    known = _known_of(checkpoint)
    return None if known is None else known[0]


def _known_of(checkpoint: Path) -> tuple[bool, str] | None:
    """(whether it names tainted elements, its digest); None: its manifest cannot be read."""
    with suppress(StateError, OSError):
        found = manifest_path(checkpoint).stat()
        return _facts(checkpoint, found.st_ino, found.st_mtime_ns)
    return None


@lru_cache(maxsize=256)
def _facts(checkpoint: Path, inode: int, written_ns: int) -> tuple[bool, str]:
    manifest = load_manifest(checkpoint)
    return bool(manifest.tainted), manifest.digest


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoint folders in a folder, the newest step last; each of several of one step."""
    named = folder.glob(f"{CHECKPOINT_NAME_PREFIX}*")
    own = (path for path in named if step_of_checkpoint(path) is not None)
    return sorted(own, key=lambda path: (step_in_folder_name(path), path.name))


def _where_it_is(run: RunDir, folder: Path) -> Path:
    """The step's folder; of several stores at one that has it, if that which is named is gone."""
    config = run.settings().persist
    targets = () if config is None or folder.is_dir() else config.targets
    others = (local_path(one) / folder.name for one in targets if is_local_place(one))
    return next((one for one in others if one.is_dir()), folder)


def _kept_at_end(run: RunDir) -> list[Path]:
    """The folder that the record of the chain's end names as the job's checkpoint; []: it names
    none, or a URL."""
    try:
        end = read_end(run.port)
    except (OSError, msgspec.DecodeError):
        return []
    jobs = end.jobs if end is not None else ()
    saved = jobs[run.reader].checkpoint if run.reader < len(jobs) else None
    if saved is None or "://" in saved:
        return []
    folder = _where_it_is(run, Path(saved))
    if step_of_checkpoint(folder) is None:
        return []
    # Beside a tainted step the newest exact one was written, which `latest` names.
    exact = latest_checkpoint(folder.parent) if is_tainted(folder) else None
    own = [] if exact is None or exact == folder else [exact]
    return [*own, folder]
