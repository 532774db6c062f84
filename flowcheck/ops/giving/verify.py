"""`flowcheck verify`: an output of ours against its manifest, files and tensors."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from flowcheck.errors import StateError
from flowcheck.ops.giving.left import killed_before
from flowcheck.ops.say import say
from flowcheck.replica.files.check import Fault, check, strangers
from flowcheck.replica.files.latest import STEP, latest, missing
from flowcheck.replica.files.manifest import BESIDE, MANIFEST, Manifest, load_manifest, path_of

DAMAGED = 1
SHOWN = 8


def run(path: Path, *, as_json: bool) -> int:
    """Prints what is not as it was written; 0 if nothing is. Raises StateError where nothing tells
    what was written there."""
    output = output_at(path)
    if not path_of(output).is_file() and (told := killed_before(output)):
        raise StateError(told)
    manifest = load_manifest(output)
    faults = check(output if output.is_dir() else output.parent, manifest)
    more = strangers(output, manifest)
    if as_json:
        print(json.dumps({**_told(output, manifest, faults), "strangers": more}))
    else:
        _print(output, manifest, faults)
        for name in more[:SHOWN]:
            say(f"  not of this checkpoint: {name}")
        if len(more) > SHOWN:
            say(f"  and {len(more) - SHOWN} more files that are not")
    return DAMAGED if faults else 0


def output_at(path: Path) -> Path:
    """The output a path speaks of: a file, a folder, its manifest, or the newest checkpoint of a
    folder of them. Raises StateError where there is none."""
    if path.name == MANIFEST and path.is_file():
        return path.parent
    if path.name.endswith(BESIDE) and path.is_file():
        return path.with_name(path.name.removesuffix(BESIDE))
    if path_of(path).is_file() or path.is_file():
        return path
    newest = latest(path)
    if newest is None and (gone := missing(path)):
        raise StateError(gone)
    if newest is None and path.is_dir() and path.name.startswith(STEP):
        lacks = f"{MANIFEST} is missing, so it is no whole step, or none of ours"
        raise StateError(f"{path}: no manifest of ours tells of it: {lacks}")
    if newest is None and (told := killed_before(path)):
        raise StateError(told)
    if newest is None:
        there = "nothing is there" if not path.exists() else "no manifest of ours tells of it"
        raise StateError(
            f"{path}: {there}: name a step-N folder, a folder whose `latest` names one, or a file "
            f"that flowcheck restore wrote (its sums lie beside it in NAME{BESIDE})"
        )
    return newest


def _told(output: Path, manifest: Manifest, faults: list[Fault]) -> dict[str, object]:
    return {
        "path": str(output),
        "format": manifest.form,
        "step": manifest.step,
        "whole": not faults,
        "files": len(manifest.files or manifest.sha256),
        "tensors": len(manifest.tensors),
        "faults": [asdict(fault) for fault in faults],
        "lacks": manifest.lacks,
        "assumed": manifest.assumed,
    }


def _print(output: Path, manifest: Manifest, faults: list[Fault]) -> None:
    files = manifest.files or manifest.sha256
    what = f"step {manifest.step} ({manifest.form}), {len(files)} files"
    tensors = len(manifest.tensors)
    if faults:
        say(f"{output}: {what}: DAMAGED")
        for fault in faults[:SHOWN]:
            say(f"  {fault}")
        if len(faults) > SHOWN:
            say(f"  and {len(faults) - SHOWN} more")
        return
    sums = f"{tensors} tensors" if manifest.tensors else "no tensor by itself: an older manifest"
    say(f"{output}: {what}, {sums}: all as written (sha256)")
    if manifest.lacks:
        say(f"  NOT a full resume: {manifest.lacks}")
