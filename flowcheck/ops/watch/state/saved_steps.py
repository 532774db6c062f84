"""What `[persist]` saved of a run: the checkpoints that its target's ledger lists, where the target
is a folder of this machine, and the newest that its status names."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from flowcheck.errors import FlowCheckError
from flowcheck.replica.checkpoint_files.manifest import MANIFEST
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step
from flowcheck.vault.persist import checkpoint_ledger
from flowcheck.vault.persist.checkpoint_ledger import LedgerEntry
from flowcheck.vault.persist.local_folder import LocalFolder
from flowcheck.vault.persist.save_status_file import read_save_status
from flowcheck.vault.persist.storage_target import local_path


class DurableSave(NamedTuple):
    """The newest save that is called exact, or the newest at all where none is."""

    step: Step
    name: str
    target: str
    """A folder or a URL."""
    is_local: bool
    is_exact: bool


def saved_checkpoints(run: RunDir) -> list[Path]:
    """Checkpoint folders of a run at the target of its `[persist]`, the newest last. One whose step
    was taken again later, by a replica that had gone back, does not count. []: nothing was saved,
    or the target is no folder that can be read here."""
    config = run.settings().persist
    if config is None or not config.is_local or durable_save(run) is None:
        return []
    folder = local_path(config.target)
    with suppress(FlowCheckError, OSError):
        text = LocalFolder(folder).read(checkpoint_ledger.LEDGER)
        own = checkpoint_ledger.decode(text, str(folder)).of(run.name_of_saves)
        paths = [folder / entry.name for entry in _of_this_past(own)]
        return [path for path in paths if (path / MANIFEST).is_file()]
    return []


def durable_save(run: RunDir) -> DurableSave | None:
    """By the status of the run's saves, which `flowcheck status` shows; None: nothing was saved."""
    config, told = run.settings().persist, read_save_status(run.persisted)
    if config is None or told is None or told.durable_step is None:
        return None
    step, name, is_exact = told.durable_step, told.durable_name, told.doubt is None
    if told.doubt is not None and told.exact_step is not None:
        step, name, is_exact = told.exact_step, told.exact_name, True
    target = str(local_path(config.target)) if config.is_local else told.target.rstrip("/")
    return DurableSave(step, name, target, config.is_local, is_exact)


def _of_this_past(own: tuple[LedgerEntry, ...]) -> list[LedgerEntry]:
    """Those behind which no earlier step, nor the same one, was saved again. Ascending."""
    found: list[LedgerEntry] = []
    for entry in own:
        while found and found[-1].step >= entry.step:
            found.pop()
        found.append(entry)
    return found
