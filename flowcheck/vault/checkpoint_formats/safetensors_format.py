"""Model parameters only, in one safetensors file; the manifest beside it has the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError, safe_open

from flowcheck.errors import StateError
from flowcheck.findings.catalog.restored_state import PARAMETERS_ALONE
from flowcheck.findings.catalog.unreadable_checkpoints import INCOMPLETE_SAFETENSORS
from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint_files.checksummed_writer import ChecksummedWriter
from flowcheck.replica.checkpoint_files.safetensors_file import (
    PYTORCH_METADATA,
    read_tensors,
    write_tensors,
)
from flowcheck.replica.taint import tainted_finding
from flowcheck.untrusted_paths import refuse_special_file
from flowcheck.vault.checkpoint_formats.checkpoint_contents import CheckpointContents
from flowcheck.vault.checkpoint_formats.format_registry import FormatOptions

ZIP_MAGIC = b"PK\x03\x04"
"""First bytes of the zip archives that torch.save writes."""


def write(
    parts: CheckpointContents, path: Path, options: FormatOptions, sums: ChecksummedWriter
) -> tuple[Finding, ...]:
    """Writes the file; see `CheckpointFormat.write`. A tied weight is in it once, under its first
    name. The file's metadata have the "step", and as "older" the tensors from another step, {name:
    step} in JSON; as "tainted" what a manifest says of it."""
    told = {**PYTORCH_METADATA, "step": str(parts.trainer_state.step)}
    if parts.older:  # whoever has this file alone is told as well
        told["older"] = json.dumps(parts.older)
    tainted = parts.trainer_state.tainted
    if tainted:
        told["tainted"] = msgspec.json.encode(tainted).decode()
    write_tensors(path, parts.untied, sums, part="model/", metadata=told)
    lacks = (tainted_finding(tainted, parts.layout),) if tainted else ()
    return (PARAMETERS_ALONE(), *lacks, *parts.carried_over)


def read(path: Path) -> dict[str, Any]:
    """{"model"}, and "step" if the file's metadata state it."""
    found: dict[str, Any] = {"model": read_tensors(path)}
    step = step_in(path)
    return found if step is None else {**found, "step": step}


def step_in(path: Path) -> int | None:
    """The step in a file's metadata; None: there is none. Raises StateError for an incomplete
    file."""
    refuse_special_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            told = (file.metadata() or {}).get("step", "")
    except (SafetensorError, OSError) as error:
        raise StateError(INCOMPLETE_SAFETENSORS(file=path, error=error)) from error
    return int(told) if told.isascii() and told.isdigit() and len(told) < 19 else None


def recognizes(path: Path) -> bool:
    """Whether a file is in this format, by its suffix or by JSON after the eight bytes of its
    length. Raises OSError."""
    with path.open("rb") as file:
        begin = file.read(9)
    return (begin[:4] != ZIP_MAGIC and begin[8:] == b"{") or path.suffix == ".safetensors"
