"""Which checkpoint of a folder a step number means. A replica that went back, as to a checkpoint of
the trainer, takes steps of the same numbers again: these are saved as step-N-DIGEST."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from flowcheck.errors import FlowCheckError, StateError
from flowcheck.findings.catalog.checkpoint_stores import LEDGER_NAMES_NONE, SEVERAL_OF_STEP
from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint_files.latest_pointer import CHECKPOINT_NAME_PREFIX
from flowcheck.replica.checkpoint_files.manifest import MANIFEST, load_manifest
from flowcheck.step_numbers import Step
from flowcheck.untrusted_paths import is_checkpoint_name, step_in_name
from flowcheck.vault.persist import checkpoint_ledger
from flowcheck.vault.persist.local_folder import LocalFolder


def step_of_checkpoint(path: Path) -> Step | None:
    """The step in the name of a checkpoint, step-N or step-N-DIGEST; None: it has another name."""
    return Step(step_in_name(path.name)) if is_checkpoint_name(path.name) else None


def checkpoint_of_step(folder: Path, step: Step) -> Path | None:
    """The checkpoint of a step in a folder of them; None: there is none. Of several, the one that
    was saved last, by the ledger there. Raises StateError where that does not tell it."""
    named = folder.glob(f"{CHECKPOINT_NAME_PREFIX}{step}*")
    there = sorted(path for path in named if step_of_checkpoint(path) == step)
    whole = [path for path in there if (path / MANIFEST).is_file()] or there
    if len(whole) < 2:
        return next(iter(whole), None)
    ledger = folder / checkpoint_ledger.LEDGER
    why: Finding = LEDGER_NAMES_NONE(ledger=ledger)
    try:
        text = LocalFolder(folder).read(checkpoint_ledger.LEDGER)
        for entry in reversed(checkpoint_ledger.decode(text, str(ledger)).entries):
            if folder / entry.name in whole:
                return folder / entry.name
    except FlowCheckError as error:
        why = error.finding
    names = tuple(path.name for path in whole)
    raise StateError(SEVERAL_OF_STEP(folder=folder, step=step, checkpoints=names, why=why))


def newest_with_tainted(folder: Path, latest: Path) -> Path:
    """The newest complete checkpoint in a folder of them, whether elements of it are tainted or
    not. latest: the one that `latest` names there, which is the newest of which none are."""
    with suppress(FlowCheckError, OSError):
        text = LocalFolder(folder).read(checkpoint_ledger.LEDGER)
        name = checkpoint_ledger.decode(text, str(folder)).newest_beside(latest.name)
        if name is not None and (folder / name / MANIFEST).is_file():
            return folder / name
    # Without a ledger: one of another run there, behind this one's steps, is not tainted.
    named = [(step_of_checkpoint(path), path) for path in folder.glob(f"{CHECKPOINT_NAME_PREFIX}*")]
    after = step_in_name(latest.name)
    newer = sorted((of, path) for of, path in named if of is not None and of > after)
    for _, path in reversed(newer):
        with suppress(FlowCheckError, OSError):
            if load_manifest(path).tainted:
                return path
    return latest
