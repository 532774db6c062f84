"""`flowcheck verify`: compares the files and tensors of an output with the checksums in its
manifest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from flowcheck.errors import StateError
from flowcheck.findings.catalog.refused_restores import (
    NO_MANIFEST_OF_IT,
    NOTHING_TO_VERIFY,
    PATH_MISSING,
    STEP_WITHOUT_MANIFEST,
)
from flowcheck.findings.catalog.striped_saves import BLOCKS_ALONE
from flowcheck.ops.console_output import print_line
from flowcheck.ops.restore.checkpoint_doubts import basis_of
from flowcheck.ops.restore.interrupted_output import interrupted_output_reason
from flowcheck.ops.watch.state.held_steps import checkpoints_in, common_steps, in_checkpoints
from flowcheck.ops.watch.taint_table import print_tainted_models
from flowcheck.replica.checkpoint_files.checksum_verifier import (
    FileFault,
    unlisted_files,
    verify_files,
)
from flowcheck.replica.checkpoint_files.latest_pointer import (
    CHECKPOINT_NAME_PREFIX,
    latest_checkpoint,
    why_latest_is_missing,
)
from flowcheck.replica.checkpoint_files.manifest import (
    MANIFEST,
    MANIFEST_SUFFIX,
    Manifest,
    load_manifest,
    manifest_path,
)
from flowcheck.replica.model_taint import ModelTaint, model_part, model_taint
from flowcheck.stages.job_state.audit_history import doubt_among
from flowcheck.vault.erasure.small_files import is_one_of_several
from flowcheck.vault.overwrite_guard import read_index

DAMAGED = 1
SHOWN = 8
"""Faults that are listed; more are counted. A choice of layout."""


def run(path: Path, *, chain: Path | None = None, as_json: bool) -> int:
    """Verifies an output, or in a folder with an index those of all its jobs, and prints the
    differences from their manifests. Returns the exit code, 0 if there are none. chain: a run
    directory, whose audits count if it saved the output. Raises StateError if an output has no
    manifest."""
    index = None if manifest_path(path).is_file() or not path.is_dir() else read_index(path)
    if index is None:
        done = [_verified(output_at(path), chain)]
    else:
        saved = [one.checkpoint for one in index.jobs if one.checkpoint is not None]
        done = [_verified(output_at(path / name), chain) for name in saved]
    models = _tainted_models(done, together=index is not None and index.step is not None)
    if as_json:
        jobs = [one.as_dict() for one in done]
        told = jobs[0] if index is None else {"path": str(path), "jobs": jobs}
        print(msgspec.json.encode(told | {"tainted_models": models}).decode())
    else:
        for one in done:
            _print_verified(one)
        print_tainted_models(models)
    return DAMAGED if any(one.faults for one in done) else 0


@dataclass(frozen=True, slots=True)
class _Verified:
    """One output, and how it differs from its manifest."""

    output: Path
    manifest: Manifest
    faults: list[FileFault]
    strangers: list[str]
    """Files that are not its own."""

    def as_dict(self) -> dict[str, object]:
        told = _result_fields(self.output, self.manifest, self.faults)
        return told | {"strangers": self.strangers}


def _verified(output: Path, chain: Path | None) -> _Verified:
    if not manifest_path(output).is_file() and (told := interrupted_output_reason(output)):
        raise StateError(told)
    manifest = load_manifest(output)
    faults = verify_files(output if output.is_dir() else output.parent, manifest)
    more = unlisted_files(output, manifest)
    basis = basis_of(output, manifest, chain)
    return _Verified(output, msgspec.structs.replace(manifest, assumed=basis), faults, more)


def _tainted_models(done: Sequence[_Verified], *, together: bool) -> tuple[ModelTaint, ...]:
    """Models with tainted elements. together: the outputs are of rings of one training job."""
    of_model = [list(done)] if together else [[one] for one in done]
    found = []
    for own in of_model:
        parts = [
            model_part(_job_of(one), one.manifest.step, one.manifest.layout, one.manifest.tainted)
            for one in own
        ]
        beside = [in_checkpoints(checkpoints_in(one.output.parent)) for one in own]
        exact = common_steps(beside, exact=True)
        found.append(model_taint(parts, exact[-1] if exact else None))
    return tuple(one for one in found if one.tainted_elements)


def _job_of(one: _Verified) -> str:
    """The name of its job is that of the folder in which its checkpoints are."""
    return one.output.parent.name if one.output.is_dir() else one.output.name


def output_at(path: Path) -> Path:
    """The output that a path names: a file, a folder, its manifest, or the newest checkpoint of a
    folder of checkpoints. Raises StateError if there is no output."""
    if is_one_of_several(path) or is_one_of_several(path.parent):
        raise StateError(BLOCKS_ALONE(path))
    if path.name == MANIFEST and path.is_file():
        return path.parent
    if path.name.endswith(MANIFEST_SUFFIX) and path.is_file():
        return path.with_name(path.name.removesuffix(MANIFEST_SUFFIX))
    if manifest_path(path).is_file() or path.is_file():
        return path
    newest = latest_checkpoint(path)
    if newest is None and (gone := why_latest_is_missing(path)):
        raise StateError(gone)
    if newest is None and path.is_dir() and path.name.startswith(CHECKPOINT_NAME_PREFIX):
        raise StateError(STEP_WITHOUT_MANIFEST(path=path, manifest=MANIFEST))
    if newest is None and (told := interrupted_output_reason(path)):
        raise StateError(told)
    if newest is None:
        found = NO_MANIFEST_OF_IT() if path.exists() else PATH_MISSING()
        raise StateError(NOTHING_TO_VERIFY(path=path, found=found, suffix=MANIFEST_SUFFIX))
    return newest


def _result_fields(output: Path, manifest: Manifest, faults: list[FileFault]) -> dict[str, object]:
    return {
        "path": str(output),
        "format": manifest.form,
        "step": manifest.step,
        "whole": not faults,
        "files": len(manifest.files or manifest.sha256),
        "tensors": len(manifest.tensors),
        "faults": faults,
        "lacks": manifest.resume_caveats,
        "assumed": manifest.assumed,
        "doubt": doubt_among(manifest.assumed),
    }


def _print_verified(one: _Verified) -> None:
    _print(one.output, one.manifest, one.faults)
    for name in one.strangers[:SHOWN]:
        print_line(f"  not of this checkpoint: {name}")
    if len(one.strangers) > SHOWN:
        print_line(f"  and {len(one.strangers) - SHOWN} more that are not")


def _print(output: Path, manifest: Manifest, faults: list[FileFault]) -> None:
    files = manifest.files or manifest.sha256
    many = "1 file" if len(files) == 1 else f"{len(files)} files"
    what = f"step {manifest.step} ({manifest.form}), {many}"
    tensors = "1 tensor" if len(manifest.tensors) == 1 else f"{len(manifest.tensors)} tensors"
    if faults:
        print_line(f"{output}: {what}: DAMAGED")
        for fault in faults[:SHOWN]:
            print_line(f"  {fault}")
        if len(faults) > SHOWN:
            print_line(f"  and {len(faults) - SHOWN} more")
        for remedy in dict.fromkeys(fault.finding.remedy for fault in faults):
            print_line(f"  {remedy}")
        return
    sums = tensors if manifest.tensors else "no tensor by itself: an older manifest"
    print_line(f"{output}: {what}, {sums}: all as written (sha256)")
    if (doubt := doubt_among(manifest.assumed)) is not None:
        print_line(f"  {doubt}")
    if manifest.resume_caveats:
        print_line(f"  NOT a full resume: {'; '.join(map(str, manifest.resume_caveats))}")
