"""A file of torch.save: {"model", "optimizer", "scheduler", "scaler", "step"}, under the trainer's
own keys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from flowcheck.errors import naming
from flowcheck.replica.files.sums import Sums
from flowcheck.replica.files.tee import Tee
from flowcheck.vault.foreign import load_tree
from flowcheck.vault.formats.parts import Options, Parts, tree_of
from flowcheck.vault.formats.storages import address_of, alone, labelled, raw_of
from flowcheck.vault.restore import save_into
from flowcheck.whole import sync


def write(parts: Parts, path: Path, options: Options, sums: Sums) -> str:
    """Writes and syncs the file; why it is no full resume."""
    write_tree(alone(tree_of(parts, options.keys, named=False)), path, path.name, sums)
    return parts.lacks


def read(path: Path) -> Any:
    """What torch.save put there, of tensors and plain values."""
    return load_tree(path)


def write_tree(tree: Any, path: Path, name: str, sums: Sums, *, part: str = "") -> None:
    """torch.save of `tree`, whose tensors have storages of their own. name: the file's in the
    manifest; part: before each tensor's there."""
    held = {part + label: (tensor, raw_of(tensor)) for label, tensor in labelled(tree)}
    with naming(path), path.open("wb", buffering=0) as file:
        tee = Tee(file, {address_of(raw): label for label, (_, raw) in held.items() if raw.nbytes})
        save_into(tree, tee)
        tell(tee, name, held, sums)
    sync(path)


def tell(
    tee: Tee, name: str, held: Mapping[str, tuple[torch.Tensor, memoryview]], sums: Sums
) -> None:
    """What was written through `tee`, to the sums of the output."""
    for label, (tensor, raw) in held.items():
        if label in tee.found:
            sums.tensor(label, tensor, [(name, *tee.found[label])], [raw])
        elif not raw.nbytes:
            sums.tensor(label, tensor, [], [])
    sums.whole(name, tee.done())
