"""`flowcheck.load`: a step in memory, from wherever it lies."""

from __future__ import annotations

import os
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from flowcheck.errors import StateError
from flowcheck.ops.giving import steps
from flowcheck.ops.giving.fetch import checkpoint_of, is_url
from flowcheck.private_files import named
from flowcheck.replica.given import given
from flowcheck.replica.kept.snapshot import Snapshot
from flowcheck.replica.user_code import no_code
from flowcheck.stages.rundir import RunDir
from flowcheck.step_numbers import Step
from flowcheck.vault.formats import read
from flowcheck.vault.formats.parts import parts_of, tree_of
from flowcheck.vault.formats.told import output_in


def load(
    where: str | PathLike[str],
    step: Step | None = None,
    form: str | None = None,
    token_file: str | PathLike[str] | None = None,
    ca: str | PathLike[str] | None = None,
) -> dict[str, Any]:
    """As the package's `load`."""
    if isinstance(where, str) and is_url(where):
        own = None if token_file is None else fspath(token_file)
        authority = None if ca is None else fspath(ca)
        with checkpoint_of(where, step, own, authority=authority) as folder:
            return load(folder, step, form)
    path = Path(where)
    run = RunDir(path)
    if run.config.is_file():
        with no_code(_strangers(path)):
            found = steps.newest(run, settle=False, step=step)
            if found.kept is not None:
                return tree_of(parts_of(found.kept, found.snapshot.layout), {}, named=False)
            return in_memory(found.snapshot)
    if step is not None and (path / f"step-{step}").exists():
        path /= f"step-{step}"
    tree = read(output_in(path), form).tree
    if not isinstance(tree, dict):
        raise StateError(f"{path}: holds a {type(tree).__name__}, not a dictionary")
    if step is not None and tree.get("step") != step:
        raise StateError(f"{path}: is of step {tree.get('step')}, not {step}")
    return tree


def _strangers(run: Path) -> str:
    """Why code that the settings of a run name is not run in this process; empty: it is. Who owns
    the run directory writes them, and root reads those of every user."""
    owner = run.stat().st_uid
    if owner == os.geteuid():
        return ""
    return (
        f"is code that {named(owner)} names, whose run directory this is, and not run as "
        f"{named(os.geteuid())}: load it as that user, or a checkpoint of the run"
    )


def in_memory(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot as torch.load would give it."""
    return tree_of(parts_of(given(snapshot), snapshot.layout), {}, named=False)
