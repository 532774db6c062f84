"""Parameters alone, as one safetensors file; what else there is to know is in its manifest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from flowcheck.errors import StateError
from flowcheck.outside_names import refuse_odd
from flowcheck.replica.files.sums import Sums
from flowcheck.replica.files.tensorfile import FOR_TORCH, read_tensors, write_tensors
from flowcheck.vault.formats.parts import Options, Parts

ALONE = "parameters alone: a trainer goes on with a new optimizer"


def write(parts: Parts, path: Path, options: Options, sums: Sums) -> str:
    """Writes the file; why it is no full resume. A tied weight is in it once, under its first
    name. Its metadata tell the "step", and as "older" what is of another one, {name: step} as
    JSON."""
    told = {**FOR_TORCH, "step": str(parts.given.step)}
    if parts.older:  # whoever has this file alone is told as well
        told["older"] = json.dumps(parts.older)
    write_tensors(path, parts.own, sums, part="model/", metadata=told)
    return "; ".join((ALONE, *parts.kept))


def read(path: Path) -> dict[str, Any]:
    """{"model"} and, where the file's metadata tell it, {"step"}."""
    found: dict[str, Any] = {"model": read_tensors(path)}
    step = step_in(path)
    return found if step is None else {**found, "step": step}


def step_in(path: Path) -> int | None:
    """The step that a file's metadata tell. Raises StateError where it is no whole file."""
    refuse_odd(path)
    try:
        with safe_open(path, framework="pt") as file:
            told = (file.metadata() or {}).get("step", "")
    except (SafetensorError, OSError) as error:
        raise StateError(f"{path}: no whole safetensors file: {error}") from error
    return int(told) if told.isascii() and told.isdigit() and len(told) < 19 else None
