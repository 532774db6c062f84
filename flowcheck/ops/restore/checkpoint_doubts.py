"""What the audits of a run say of a checkpoint that it saved, and copies that differed later.

A checkpoint states what was known when it was written. An audit that fails later, or a copy that
turns out to differ, is written to the run, and by [persist] into the ledger beside the checkpoint:
it reaches the checkpoint where one of them is known, the run by its name or because the checkpoint
lies in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.lost_steps import CALLED_EXACT_BEFORE
from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint.step_snapshot import Snapshot
from flowcheck.replica.checkpoint_files.manifest import Manifest
from flowcheck.stages.job_state.audit_history import is_found_equal
from flowcheck.stages.job_state.doubts_behind_save import doubts_behind_save, manifest_if_whole
from flowcheck.stages.run_directory.job_run_dirs import all_run_dirs
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.run_directory.run_dir_checks import is_run
from flowcheck.step_numbers import Step
from flowcheck.vault.persist.checkpoint_listing import CheckpointListing
from flowcheck.vault.persist.noted_doubts import noted_beside
from flowcheck.vault.persist.storage_target import local_path


def basis_of(
    checkpoint: Path,
    manifest: Manifest,
    run: Path | None = None,
    made: Snapshot | None = None,
) -> tuple[Finding, ...]:
    """What a checkpoint rests on: as its manifest has it, and by the audits since, as far as they
    can be read. run: the run directory that the user names; it counts if its settings name the
    checkpoint's folder; made: a later step that was made from it."""
    state = manifest if made is None else made
    found: list[Finding] = []
    for own in _runs_of(checkpoint, run):
        with suppress(FlowCheckError, OSError):
            found += doubts_behind_save(own, state.step, state.digest, lambda: state)
    noted = noted_beside(checkpoint, manifest.digest, None if made is None else made.step)
    if made is not None and made.tainted:  # it names what copies differed of
        noted = tuple(one for one in noted if not one.is_any_of(CALLED_EXACT_BEFORE))
    found += noted
    return tuple(dict.fromkeys((*found, *manifest.assumed)))


def doubts_since_save(checkpoint: Path, listing: CheckpointListing) -> tuple[Finding, ...]:
    """The same of a checkpoint's folder, without what its manifest says: of the run in whose
    directory it lies, as far as that can be read."""
    found: list[Finding] = []
    for own in _runs_of(checkpoint, None):
        with suppress(FlowCheckError, OSError):
            manifest = partial(manifest_if_whole, checkpoint)
            found += doubts_behind_save(own, listing.step, listing.digest, manifest)
    found += noted_beside(checkpoint, listing.digest)
    return tuple(dict.fromkeys(found))


def is_found_equal_by(
    checkpoint: Path, run: Path | None, step: Step, last: Step | None = None
) -> bool:
    """Whether an audit of the run that saved the checkpoint shows every element of a step, before
    a trainer's checkpoint of a later step took its place. run: as of `basis_of`; last: as of
    `is_found_equal`."""
    for own in _runs_of(checkpoint, run):
        with suppress(FlowCheckError, OSError):
            if is_found_equal(own, step, last):
                return True
    return False


def _runs_of(checkpoint: Path, named: Path | None) -> Iterator[RunDir]:
    """The run directories, one of each job, that saved it."""
    place = checkpoint.absolute().resolve()
    around = next((folder for folder in place.parents if _is_run(folder)), None)
    for root in {folder for folder in (named, around) if folder is not None and _is_run(folder)}:
        # One that is somebody else's, or damaged, tells nothing here.
        with suppress(FlowCheckError, OSError):
            for own in all_run_dirs(RunDir(root)):
                saves_there = any(at == place or at in place.parents for at in _folders(own))
                if saves_there or own.root.resolve() == around:
                    yield own


def _is_run(folder: Path) -> bool:
    try:
        return is_run(folder)
    except OSError:
        return False


def _folders(run: RunDir) -> Iterator[Path]:
    """Where a run saves checkpoints on this machine, beside its own directory."""
    config = run.settings()
    if config.checkpoint is not None:
        yield Path(config.checkpoint).absolute().resolve()
    if config.persist is not None and config.persist.is_local:
        yield local_path(config.persist.target).absolute().resolve()
