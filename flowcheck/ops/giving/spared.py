"""What no output of `flowcheck restore` may take the place of: whatever it is made from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from flowcheck.errors import FlowCheckError
from flowcheck.replica.files.latest import LATEST
from flowcheck.replica.files.manifest import MANIFEST
from flowcheck.stages.rundir import RunDir
from flowcheck.vault.overwriting import Spared
from flowcheck.vault.persist.ledger import LEDGER
from flowcheck.vault.persist.places import local_path

KEPT = "the folder of kept steps"


def spared_of(
    run: Path, checkpoint: Path | None, source: str | None, patterns: Sequence[Path]
) -> tuple[Spared, ...]:
    """Of what `restore` was given. source: a URL; patterns: checkpoints of the trainer that are to
    be filled, or looked into."""
    folders = [] if checkpoint is None else [checkpoint]
    if source is not None and source.startswith("file:"):
        folders.append(local_path(source))
    return (
        *(own for folder in folders for own in _steps(folder)),
        *_of_run(run),
        *(Spared(path, "what the step is filled into", path.is_dir()) for path in patterns),
    )


def _steps(folder: Path) -> Iterator[Spared]:
    if not (folder / MANIFEST).is_file():
        yield Spared(folder, KEPT, takes_new=True)
        return
    yield Spared(folder, "the step that is restored")
    around = folder.resolve().parent
    if any((around / name).is_file() for name in (LATEST, LEDGER)):
        yield Spared(around, KEPT, takes_new=True)


def _of_run(root: Path) -> Iterator[Spared]:
    try:
        where = RunDir(root)
        if not where.config.is_file():
            return
    except PermissionError:  # nor may this user write there
        return
    yield Spared(where.root, "the run directory")
    yield Spared(where.memory, "the memory of the run")
    with suppress(FlowCheckError):  # of another version: the verb itself says so
        config = where.settings()
        if config.checkpoint is not None:
            yield Spared(Path(config.checkpoint), KEPT, takes_new=True)
        if config.persist is not None and config.persist.is_local:
            yield Spared(local_path(config.persist.target), KEPT, takes_new=True)
