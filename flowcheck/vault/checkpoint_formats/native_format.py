"""FlowCheck's own checkpoint format: safetensors and a JSON manifest. The replica writes it too
(replica/checkpoint/checkpoint_save.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint import checkpoint_save
from flowcheck.replica.checkpoint.checkpoint_load import MODEL, OPTIMIZER
from flowcheck.replica.checkpoint_files.checksummed_writer import ChecksummedWriter
from flowcheck.replica.checkpoint_files.manifest import FULL
from flowcheck.vault.checkpoint_formats.checkpoint_contents import (
    CheckpointContents,
    averaged_model_state,
)
from flowcheck.vault.checkpoint_formats.format_registry import FormatOptions


def write(
    parts: CheckpointContents, folder: Path, options: FormatOptions, sums: ChecksummedWriter
) -> tuple[Finding, ...]:
    """Writes the folder; see `CheckpointFormat.write`. Parts that are known only from an earlier
    checkpoint have no place in this format."""
    sums.format_fields.update(
        checkpoint_save.write_files(parts.trainer_state, folder, parts.layout, sums)
    )
    return (
        parts.resume_caveats
        if parts.trainer_state.optimizer is None
        or parts.trainer_state.older
        or parts.trainer_state.tainted
        else ()
    )


def read(folder: Path) -> dict[str, Any]:
    """{"model", "optimizer", "scheduler", "scaler", "averages", "masters", "step"}, without the
    parts that the step does not have."""
    kept = checkpoint_save.load(folder)
    found: dict[str, Any] = {"model": kept.model}
    if kept.manifest.kind is FULL:
        found["optimizer"] = kept.optimizer_state_dict()
    for part, told in (("scheduler", kept.plain.scheduler), ("scaler", kept.plain.scaler)):
        if told is not None:
            found[part] = told
    averages = averaged_model_state(
        kept.model, kept.parameters, kept.more.averages, kept.more.average_updates
    )
    more = {"averages": averages, "masters": kept.more.masters}
    found.update({part: held for part, held in more.items() if held is not None})
    return {**found, "step": kept.manifest.step}


def holds_native_files(folder: Path) -> bool:
    """Whether the folder has the two files of a step, which no other program writes together."""
    return all((folder / name).is_file() for name in (MODEL, OPTIMIZER))
