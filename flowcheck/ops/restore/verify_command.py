"""`flowcheck verify`: compares the files and tensors of an output with the checksums in its
manifest."""

from __future__ import annotations

from pathlib import Path

import msgspec

from flowcheck.errors import StateError
from flowcheck.findings.catalog.refused_restores import (
    NO_MANIFEST_OF_IT,
    NOTHING_TO_VERIFY,
    PATH_MISSING,
    STEP_WITHOUT_MANIFEST,
)
from flowcheck.ops.console_output import print_line
from flowcheck.ops.restore.checkpoint_doubts import basis_of
from flowcheck.ops.restore.interrupted_output import interrupted_output_reason
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
from flowcheck.stages.job_state.audit_history import doubt_among

DAMAGED = 1
SHOWN = 8
"""Faults that are listed; more are counted. A choice of layout."""


def run(path: Path, *, chain: Path | None = None, as_json: bool) -> int:
    """Verifies an output and prints the differences from its manifest. Returns the exit code, 0 if
    there are none. chain: a run directory, whose audits count if it saved the output. Raises
    StateError if the output has no manifest."""
    output = output_at(path)
    if not manifest_path(output).is_file() and (told := interrupted_output_reason(output)):
        raise StateError(told)
    manifest = load_manifest(output)
    faults = verify_files(output if output.is_dir() else output.parent, manifest)
    more = unlisted_files(output, manifest)
    basis = basis_of(output, manifest, chain)
    manifest = msgspec.structs.replace(manifest, assumed=basis)
    if as_json:
        print(
            msgspec.json.encode(
                _result_fields(output, manifest, faults) | {"strangers": more}
            ).decode()
        )
    else:
        _print(output, manifest, faults)
        for name in more[:SHOWN]:
            print_line(f"  not of this checkpoint: {name}")
        if len(more) > SHOWN:
            print_line(f"  and {len(more) - SHOWN} more that are not")
    return DAMAGED if faults else 0


def output_at(path: Path) -> Path:
    """The output that a path names: a file, a folder, its manifest, or the newest checkpoint of a
    folder of checkpoints. Raises StateError if there is no output."""
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
