"""Finds complete outputs of a restore that was killed before it renamed them to their final name.

A file has its name first, then its manifest: at no instant does one speak of another file."""

from __future__ import annotations

import fcntl
import glob
import os
import re
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

from flowcheck.errors import StateError
from flowcheck.findings.catalog.refused_restores import (
    BEING_WRITTEN,
    COMPLETE_BY_MANIFEST,
    COMPLETE_IN_FOLDER,
    RESTORE_KILLED,
)
from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint_files.checksum_verifier import verify_files
from flowcheck.replica.checkpoint_files.manifest import (
    Manifest,
    decode_manifest,
    load_manifest,
    manifest_beside,
    text_at,
)

_LEFT = re.compile(r"\.\d+(\.old)?\.tmp\Z")
"""See atomic_path_per_process and overwrite_guard.SET_ASIDE_SUFFIX."""


def interrupted_output_reason(output: Path) -> Finding | None:
    """Why `output`, or the manifest of a file, does not exist, and the command that puts it there;
    None: no complete output was left."""
    if output.is_dir():
        return None
    named = manifest_beside(output) if output.is_file() else output
    found: list[Finding] = []
    for left in _left_for(named):
        if _is_written(left):
            return BEING_WRITTEN(output)
        manifest = _whole(output, left)
        if manifest is not None:
            entry = COMPLETE_BY_MANIFEST if output.is_file() else COMPLETE_IN_FOLDER
            named_by = {"step": manifest.step, "form": manifest.form, "left": left.name}
            found.append(entry(**named_by, command=f"mv {quote(str(left))} {quote(str(named))}"))
    if not found:
        return None
    return RESTORE_KILLED(output=output, name=named.name, left=found)


def _left_for(named: Path) -> Iterator[Path]:
    """What was written last comes first, and what it was to replace behind it."""
    unfinished = named.parent.glob(f".{glob.escape(named.name)}.*.tmp")
    found = [path for path in unfinished if _LEFT.search(path.name.removeprefix(f".{named.name}"))]
    yield from sorted(found, key=lambda path: (path.name.endswith(".old.tmp"), path.name))


def _whole(output: Path, left: Path) -> Manifest | None:
    """The manifest of what is there as it was written."""
    try:
        if left.is_dir():
            manifest = load_manifest(left)
            return None if verify_files(left, manifest) else manifest
        if not output.is_file():
            return None
        manifest = decode_manifest(text_at(left, output), str(left))
    except StateError:
        return None
    own = manifest.files.keys() == {output.name}
    return manifest if own and not verify_files(output.parent, manifest) else None


def _is_written(left: Path) -> bool:
    """By a process that lives: it holds a lock (atomic_path_per_process)."""
    try:
        descriptor = os.open(left, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
