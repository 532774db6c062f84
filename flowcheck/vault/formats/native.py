"""Our own format: safetensors and a JSON manifest (replica/checkpoint.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flowcheck.replica import checkpoint
from flowcheck.replica.files.manifest import FULL
from flowcheck.replica.files.sums import Sums
from flowcheck.vault.formats.averaged import averaged_state
from flowcheck.vault.formats.parts import Options, Parts


def write(parts: Parts, folder: Path, options: Options, sums: Sums) -> str:
    """The step's own files; what an earlier checkpoint alone tells has no place in them."""
    sums.more.update(checkpoint.write_files(parts.given, folder, parts.layout, sums))
    return parts.lacks if parts.given.optimizer is None or parts.given.older else ""


def read(folder: Path) -> dict[str, Any]:
    """As torch.load of {"model", "optimizer", "scheduler", "scaler", "averages", "step"}."""
    kept = checkpoint.load(folder)
    found: dict[str, Any] = {"model": kept.model}
    if kept.manifest.kind == FULL:
        found["optimizer"] = kept.optimizer_state_dict()
    for part, told in (("scheduler", kept.plain.scheduler), ("scaler", kept.plain.scaler)):
        if told is not None:
            found[part] = told
    averages = averaged_state(kept.model, kept.parameters, kept.more.averages, kept.more.averaged)
    more = {"averages": averages, "masters": kept.more.masters}
    found.update({part: held for part, held in more.items() if held is not None})
    return {**found, "step": kept.manifest.step}
