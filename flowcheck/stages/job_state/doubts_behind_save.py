"""What came to light about a checkpoint behind its save: its own manifest cannot say it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from flowcheck.errors import StateError
from flowcheck.findings.catalog.file_audits import DOUBTED
from flowcheck.findings.catalog.lost_steps import CALLED_EXACT_BEFORE
from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint_files.manifest import Manifest, load_manifest
from flowcheck.stages.job_state.audit_history import (
    audit_history_of,
    failed_audits,
    saved_doubts_of,
)
from flowcheck.stages.job_state.differing_steps import differing_steps, saved_while_exact
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step

if TYPE_CHECKING:  # torch stays out
    from flowcheck.replica.checkpoint.step_snapshot import Snapshot


def doubts_behind_save(
    run: RunDir, step: Step, digest: str, state: Callable[[], Manifest | Snapshot | None]
) -> tuple[Finding, ...]:
    """Of the run's audits, and of copies that differed, for a checkpoint that the run saved.

    digest: of its state; state: reads its manifest, or what is restored of it, None if there is
    none that can be read; called only where copies of such a step differed: else the cost is that
    of the run's own lines.
    """
    found = saved_doubts_of(run, step, digest)
    if saved_while_exact(run, step, digest=digest):
        known = state()
        found += saved_while_exact(run, step, None if known is None else known.tainted, digest)
    return found


def doubts_to_note(
    run: RunDir,
    step: Step,
    digest: str,
    manifest: Callable[[], Manifest | None],
    noted: tuple[Finding, ...],
) -> tuple[Finding, ...]:
    """The same, and what is noted of the checkpoint already that this run cannot take back: it has
    no record of what that rests on. Another run of the same name may have written it, on another
    machine or in a run directory that was removed since; or the record was too long to be kept."""
    found = doubts_behind_save(run, step, digest, manifest)
    kept = (one for one in noted if not _is_on_record(run, one))
    return tuple(dict.fromkeys((*found, *kept)))


def doubt_of_later(run: RunDir, noted: Finding | None) -> Finding | None:
    """Why steps that are made from the run's saves are in doubt: an audit failed, and no base came
    since. noted: as of `doubts_to_note`, of what is noted of such steps."""
    found = audit_history_of(run).doubt_of()
    if found is None and noted is not None and not _is_on_record(run, noted):
        return noted
    return found


def _is_on_record(run: RunDir, doubt: Finding) -> bool:
    """Whether the run itself knows the audit, or the copies, that a doubt tells of."""
    told = doubt.arguments
    if doubt.is_any_of(DOUBTED):
        return (told.get("file"), told.get("step")) in failed_audits(run)
    return doubt.is_any_of(CALLED_EXACT_BEFORE) and any(
        told.get("step") == one.step
        and told.get("to") == one.called_exact_to
        and (told.get("elements"), told.get("bytes")) == (one.elements, one.conflict_bytes)
        for one in differing_steps(run)
    )


def manifest_if_whole(checkpoint: Path) -> Manifest | None:
    """A checkpoint's manifest; None if it cannot be read."""
    with suppress(StateError, OSError):
        return load_manifest(checkpoint)
    return None
