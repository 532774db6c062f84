"""Paths that an output of `flowcheck restore` must not overwrite: everything that the output is
made from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from flowcheck.errors import FlowCheckError
from flowcheck.replica.checkpoint_files.latest_pointer import LATEST
from flowcheck.replica.checkpoint_files.manifest import MANIFEST
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.vault.overwrite_guard import ProtectedPath
from flowcheck.vault.persist.checkpoint_ledger import LEDGER
from flowcheck.vault.persist.storage_target import local_path

CHECKPOINT_FOLDER = "the folder of kept steps"


def protected_paths_of(
    run: Path, checkpoint: Path | None, source: str | None, patterns: Sequence[Path]
) -> tuple[ProtectedPath, ...]:
    """Of what `restore` was given. source: a URL; patterns: checkpoints of the trainer that are to
    be filled, or looked into."""
    folders = [] if checkpoint is None else [checkpoint]
    if source is not None and source.startswith("file:"):
        folders.append(local_path(source))
    return (
        *(own for folder in folders for own in _steps(folder)),
        *_of_run(run),
        *(ProtectedPath(path, "what the step is filled into", path.is_dir()) for path in patterns),
    )


def _steps(folder: Path) -> Iterator[ProtectedPath]:
    if not (folder / MANIFEST).is_file():
        yield ProtectedPath(folder, CHECKPOINT_FOLDER, takes_new=True)
        return
    yield ProtectedPath(folder, "the step that is restored")
    around = folder.resolve().parent
    if any((around / name).is_file() for name in (LATEST, LEDGER)):
        yield ProtectedPath(around, CHECKPOINT_FOLDER, takes_new=True)


def _of_run(root: Path) -> Iterator[ProtectedPath]:
    try:
        where = RunDir(root)
        if not where.config.is_file():
            return
    except (FlowCheckError, PermissionError):
        return  # nobody's that this user may take from; where it is wanted the verb says so
    yield ProtectedPath(where.root, "the run directory")
    yield ProtectedPath(where.memory, "the memory of the run")
    with suppress(FlowCheckError):  # of another version: the verb itself says so
        config = where.settings()
        if config.checkpoint is not None:
            yield ProtectedPath(Path(config.checkpoint), CHECKPOINT_FOLDER, takes_new=True)
        if config.persist is not None and config.persist.is_local:
            yield ProtectedPath(
                local_path(config.persist.target), CHECKPOINT_FOLDER, takes_new=True
            )
