"""A file of torch.save: {"model", "optimizer", "scheduler", "scaler", "step"}, under the trainer's
own keys."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

from flowcheck.replica.files.sums import Sums
from flowcheck.vault.foreign import load_tree
from flowcheck.vault.formats.parts import Options, Parts, tree_of
from flowcheck.vault.formats.recorded import Recorder, recorded
from flowcheck.vault.formats.storages import alone, by_address, labelled


def write(parts: Parts, path: Path, options: Options, sums: Sums) -> str:
    """Writes the file; why it is no full resume."""
    write_tree(alone(tree_of(parts, options.keys, named=False)), path, path.name, sums)
    return parts.lacks


def read(path: Path) -> Any:
    """What torch.save put there, of tensors and plain values."""
    return load_tree(path)


def write_tree(
    tree: Any, path: Path, name: str, sums: Sums, *, part: str = "", pickling: Any = pickle
) -> None:
    """torch.save of `tree`, whose tensors have storages of their own. name: the file's in the
    manifest; part: before each tensor's there; pickling: torch's pickle_module."""
    held = {part + label: tensor for label, tensor in labelled(tree)}
    at = by_address(held)

    def save() -> Recorder:
        recorder = Recorder(at, set())
        torch.save(tree, recorder, pickle_module=pickling)  # type: ignore[arg-type]
        return recorder

    sums.put(name, path, recorded(save), held)
