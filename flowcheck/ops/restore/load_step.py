"""`flowcheck.load`: a step as tensors in memory, from a run directory, a checkpoint folder or a
URL."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from flowcheck.errors import StateError
from flowcheck.findings.catalog.file_audits import LOAD_DOUBTED
from flowcheck.findings.catalog.refused_restores import NOT_A_DICTIONARY, OTHER_STEP
from flowcheck.findings.catalog.refused_user_code import OF_ANOTHER_USER
from flowcheck.findings.finding import Finding
from flowcheck.ops.restore.checkpoint_doubts import basis_of
from flowcheck.ops.restore.remote_checkpoint import checkpoint_of, is_url
from flowcheck.ops.restore.restore_request import StepSource
from flowcheck.ops.restore.step_lookup import (
    newest_step,
    output_of_step,
    refuse_tainted,
    step_on_stores,
    url_of_store,
)
from flowcheck.private_files import user_name
from flowcheck.replica.checkpoint_files.manifest import load_manifest, manifest_path
from flowcheck.replica.user_code import user_code_forbidden
from flowcheck.stages.job_state.audit_history import doubt_among
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step
from flowcheck.vault.checkpoint_formats.checkpoint_contents import tree_of
from flowcheck.vault.checkpoint_formats.checkpoint_io import read


def load(
    where: str | PathLike[str],
    step: Step | None = None,
    form: str | None = None,
    token_file: str | PathLike[str] | None = None,
    ca: str | PathLike[str] | None = None,
    *,
    allow_tainted: bool = False,
    despite_audit: bool = False,
    run: str | PathLike[str] | None = None,
) -> dict[str, Any]:
    """Loads a step; see `flowcheck.load`."""
    refusals = _Refusals(allow_tainted, despite_audit, None if run is None else Path(run))
    if (on_stores := url_of_store(Path(where), step)) is not None:
        where, step = on_stores
    if isinstance(where, str) and is_url(where):
        token, authority = (None if file is None else Path(file) for file in (token_file, ca))
        source = StepSource(
            url=where, token_file=token, authority=authority, step=step, allow_tainted=allow_tainted
        )
        with checkpoint_of(source) as there:
            return _read(there.folder, step, form, replace(refusals, doubts=there.doubts))
    chain = RunDir(Path(where))
    if not chain.config.is_file():
        return _read(chain.root, step, form, refusals)
    if (on_stores := step_on_stores(chain, step, allow_tainted=allow_tainted)) is not None:
        return load(
            *on_stores,
            form,
            token_file,
            ca,
            allow_tainted=allow_tainted,
            despite_audit=despite_audit,
        )
    with user_code_forbidden(_strangers(chain.root)):
        found = newest_step(chain, settle=False, step=step, allow_tainted=allow_tainted)
        refusals.check_doubt(found.snapshot.step, found.assumed)
        return tree_of(found.contents(), {}, named=False)


@dataclass(frozen=True, slots=True)
class _Refusals:
    """What is refused unless the caller takes it all the same."""

    allow_tainted: bool
    despite_audit: bool
    run: Path | None
    """The run directory that the caller names for a checkpoint that it saved."""
    doubts: tuple[Finding, ...] = ()
    """What the server from which the checkpoint was downloaded says against it."""

    def check(self, checkpoint: Path) -> None:
        """Raises StateError for an output of FlowCheck that is refused."""
        if not self.allow_tainted:
            refuse_tainted(checkpoint)
        manifest = load_manifest(checkpoint)
        basis = (*self.doubts, *basis_of(checkpoint, manifest, self.run))
        self.check_doubt(manifest.step, basis)

    def check_doubt(self, step: Step, basis: Sequence[Finding]) -> None:
        """basis: what the step rests on."""
        doubt = doubt_among(basis)
        if doubt is not None and not self.despite_audit:
            raise StateError(LOAD_DOUBTED(step=step, why=doubt))


def _read(path: Path, step: Step | None, form: str | None, refusals: _Refusals) -> dict[str, Any]:
    newest = output_of_step(path, step, allow_tainted=refusals.allow_tainted)
    if manifest_path(newest).is_file():
        refusals.check(newest)
    tree = read(newest, form)
    if not isinstance(tree, dict):
        raise StateError(NOT_A_DICTIONARY(path=path, type=type(tree).__name__))
    if step is not None and tree.get("step") != step:
        raise StateError(OTHER_STEP(path=path, found=str(tree.get("step")), step=step))
    return tree


def _strangers(run: Path) -> Finding | None:
    """Why this process must not run code that the run's settings name; None: it may. The owner of
    the run directory writes the settings, and root can read the settings of every user."""
    owner = run.stat().st_uid
    if owner == os.geteuid():
        return None
    return OF_ANOTHER_USER(owner=user_name(owner), user=user_name(os.geteuid()))
