"""A file of torch.save: {"model", "optimizer", "scheduler", "scaler", "step"}, under the trainer's
own keys."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint_files.checksummed_writer import ChecksummedWriter
from flowcheck.vault.checkpoint_formats.checkpoint_contents import CheckpointContents, tree_of
from flowcheck.vault.checkpoint_formats.format_registry import FormatOptions
from flowcheck.vault.checkpoint_formats.tensor_storage import (
    labelled_tensors,
    labels_by_address,
    with_own_storage,
)
from flowcheck.vault.checkpoint_formats.torch_save_archive import PieceRecorder, record_torch_save
from flowcheck.vault.safe_torch_load import safe_torch_load


def write(
    parts: CheckpointContents, path: Path, options: FormatOptions, sums: ChecksummedWriter
) -> tuple[Finding, ...]:
    """Writes the file; see `CheckpointFormat.write`."""
    write_tree(with_own_storage(tree_of(parts, options.keys, named=False)), path, path.name, sums)
    return parts.resume_caveats


def read(path: Path) -> Any:
    """The tensors and plain values in the file."""
    return safe_torch_load(path)


def write_tree(
    tree: Any,
    path: Path,
    name: str,
    sums: ChecksummedWriter,
    *,
    part: str = "",
    pickling: Any = pickle,
) -> None:
    """Writes `tree` with torch.save. Its tensors must own their storages (tensor_storage.py). name:
    the file's name in the manifest. part: prefix of each tensor's label there. pickling: torch's
    pickle_module."""
    held = {part + label: tensor for label, tensor in labelled_tensors(tree)}
    at = labels_by_address(held)

    def save() -> PieceRecorder:
        recorder = PieceRecorder(at, set())
        torch.save(tree, recorder, pickle_module=pickling)  # type: ignore[arg-type]
        return recorder

    sums.write_file(name, path, record_torch_save(save), held)
