"""The target of `flowcheck restore`: what the output may replace, and the inputs that it must not
touch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from flowcheck.errors import FlowCheckError
from flowcheck.ops.restore.restore_request import RestoreRequest
from flowcheck.replica.checkpoint_files.latest_pointer import LATEST
from flowcheck.replica.checkpoint_files.manifest import MANIFEST
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.vault.checkpoint_formats.format_registry import FORMATS
from flowcheck.vault.overwrite_guard import (
    OutputTarget,
    ProtectedPath,
    files_by_index,
    files_by_manifest,
)
from flowcheck.vault.persist.checkpoint_ledger import LEDGER
from flowcheck.vault.persist.storage_target import local_path

CHECKPOINT_FOLDER = "the folder of kept steps"


def output_of(
    request: RestoreRequest, *, several: bool = False, protected: tuple[ProtectedPath, ...] = ()
) -> OutputTarget:
    """Where a restore writes to, and what it may replace. several: the output has a file for each
    job of a chain."""
    form = FORMATS.get(request.form or "")
    return OutputTarget(
        path=request.output,
        folder=several if form is None else form.folder,
        force=request.force,
        protected=protected,
        listed=files_by_index if several else files_by_manifest,
    )


def protected_paths_of(request: RestoreRequest) -> tuple[ProtectedPath, ...]:
    """The inputs of a restore, which the output must not replace, contain or lie in."""
    source = request.source
    folders = [] if source.checkpoint is None else [source.checkpoint]
    if source.url is not None and source.url.startswith("file:"):
        folders.append(local_path(source.url))
    filled = "what the step is filled into"
    return (
        *(own for folder in folders for own in _steps(folder)),
        *_of_run(source.run),
        *(ProtectedPath(path, filled, path.is_dir()) for path in request.trainer_files),
    )


def _steps(folder: Path) -> Iterator[ProtectedPath]:
    if not (folder / MANIFEST).is_file():
        yield ProtectedPath(folder, CHECKPOINT_FOLDER, takes_new=True)
        return
    yield ProtectedPath(folder, "the step that is restored")
    around = folder.resolve().parent
    if any((around / name).is_file() for name in (LATEST, LEDGER)):
        yield ProtectedPath(around, CHECKPOINT_FOLDER, takes_new=True)


def _of_run(root: Path | None) -> Iterator[ProtectedPath]:
    if root is None:
        return
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
