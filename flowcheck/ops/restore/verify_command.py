"""`flowcheck verify`: compares the files and tensors of an output with the checksums in its
manifest."""

from __future__ import annotations

from pathlib import Path

import msgspec

from flowcheck.errors import StateError
from flowcheck.ops.console_output import print_line
from flowcheck.ops.restore.interrupted_output import interrupted_output_reason
from flowcheck.replica.checkpoint_files.checksum_verifier import (
    FileFault,
    unlisted_files,
    verify_files,
)
from flowcheck.replica.checkpoint_files.latest_pointer import (
    STEP,
    latest_checkpoint,
    why_latest_is_missing,
)
from flowcheck.replica.checkpoint_files.manifest import (
    MANIFEST,
    MANIFEST_SUFFIX,
    Manifest,
    load_manifest,
    path_of,
)

DAMAGED = 1
SHOWN = 8
"""Faults that are listed; more are counted. A choice of layout."""


def run(path: Path, *, as_json: bool) -> int:
    """Prints what is not as it was written; 0 if nothing is. Raises StateError where nothing tells
    what was written there."""
    output = output_at(path)
    if not path_of(output).is_file() and (told := interrupted_output_reason(output)):
        raise StateError(told)
    manifest = load_manifest(output)
    faults = verify_files(output if output.is_dir() else output.parent, manifest)
    more = unlisted_files(output, manifest)
    if as_json:
        print(msgspec.json.encode(_told(output, manifest, faults) | {"strangers": more}).decode())
    else:
        _print(output, manifest, faults)
        for name in more[:SHOWN]:
            print_line(f"  not of this checkpoint: {name}")
        if len(more) > SHOWN:
            print_line(f"  and {len(more) - SHOWN} more files that are not")
    return DAMAGED if faults else 0


def output_at(path: Path) -> Path:
    """The output a path speaks of: a file, a folder, its manifest, or the newest checkpoint of a
    folder of them. Raises StateError where there is none."""
    if path.name == MANIFEST and path.is_file():
        return path.parent
    if path.name.endswith(MANIFEST_SUFFIX) and path.is_file():
        return path.with_name(path.name.removesuffix(MANIFEST_SUFFIX))
    if path_of(path).is_file() or path.is_file():
        return path
    newest = latest_checkpoint(path)
    if newest is None and (gone := why_latest_is_missing(path)):
        raise StateError(gone)
    if newest is None and path.is_dir() and path.name.startswith(STEP):
        lacks = f"{MANIFEST} is missing, so it is no whole step, or none of ours"
        raise StateError(f"{path}: no manifest of ours tells of it: {lacks}")
    if newest is None and (told := interrupted_output_reason(path)):
        raise StateError(told)
    if newest is None:
        there = "nothing is there" if not path.exists() else "no manifest of ours tells of it"
        raise StateError(
            f"{path}: {there}: name a step-N folder, a folder whose `latest` names one, or a file "
            f"that flowcheck restore wrote (its sums lie beside it in NAME{MANIFEST_SUFFIX})"
        )
    return newest


def _told(output: Path, manifest: Manifest, faults: list[FileFault]) -> dict[str, object]:
    return {
        "path": str(output),
        "format": manifest.form,
        "step": manifest.step,
        "whole": not faults,
        "files": len(manifest.files or manifest.sha256),
        "tensors": len(manifest.tensors),
        "faults": faults,
        "lacks": manifest.lacks,
        "assumed": manifest.assumed,
    }


def _print(output: Path, manifest: Manifest, faults: list[FileFault]) -> None:
    files = manifest.files or manifest.sha256
    what = f"step {manifest.step} ({manifest.form}), {len(files)} files"
    tensors = len(manifest.tensors)
    if faults:
        print_line(f"{output}: {what}: DAMAGED")
        for fault in faults[:SHOWN]:
            print_line(f"  {fault}")
        if len(faults) > SHOWN:
            print_line(f"  and {len(faults) - SHOWN} more")
        return
    sums = f"{tensors} tensors" if manifest.tensors else "no tensor by itself: an older manifest"
    print_line(f"{output}: {what}, {sums}: all as written (sha256)")
    if manifest.lacks:
        print_line(f"  NOT a full resume: {'; '.join(map(str, manifest.lacks))}")
