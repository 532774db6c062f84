"""`flowcheck.load`: a step as tensors in memory, from a run directory, a checkpoint folder or a
URL."""

from __future__ import annotations

import os
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from flowcheck.errors import StateError
from flowcheck.ops.restore import step_lookup
from flowcheck.ops.restore.remote_checkpoint import checkpoint_of, is_url
from flowcheck.private_files import user_name
from flowcheck.replica.checkpoint.step_snapshot import Snapshot
from flowcheck.replica.checkpoint.trainer_state import trainer_state
from flowcheck.replica.user_code import no_code
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step
from flowcheck.vault.checkpoint_formats import read
from flowcheck.vault.checkpoint_formats.checkpoint_contents import contents_of, tree_of
from flowcheck.vault.checkpoint_formats.format_detection import newest_output


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
            found = step_lookup.newest_step(run, settle=False, step=step)
            if found.kept is not None:
                return tree_of(contents_of(found.kept, found.snapshot.layout), {}, named=False)
            return in_memory(found.snapshot)
    if step is not None and (path / f"step-{step}").exists():
        path /= f"step-{step}"
    tree = read(newest_output(path), form).tree
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
        f"is code that {user_name(owner)} names, whose run directory this is, and not run as "
        f"{user_name(os.geteuid())}: load it as that user, or a checkpoint of the run"
    )


def in_memory(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot as torch.load would give it."""
    return tree_of(contents_of(trainer_state(snapshot), snapshot.layout), {}, named=False)
