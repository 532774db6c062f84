"""torch.distributed.checkpoint folders, written by its own writer in one process: tensors are whole
there, under the names of the modules, and DCP itself hands each rank of any world its shards.

The keys are those of {"model": get_model_state_dict(), "optimizer": get_optimizer_state_dict(),
...} (torch/distributed/checkpoint/state_dict.py): states and groups by names, not numbers.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from flowcheck.errors import StateError, naming
from flowcheck.replica.files.pieces import Piece
from flowcheck.replica.files.sums import Sums
from flowcheck.vault.formats.dcp_read import read_tree
from flowcheck.vault.formats.dcp_write import writer_of
from flowcheck.vault.formats.parts import Options, Parts, tree_of
from flowcheck.vault.formats.recorded import uncollected
from flowcheck.vault.formats.storages import alone, by_address, labelled
from flowcheck.vault.formats.told import DCP_METADATA

STEPPED = ("adam", "adamw")
"""Count steps, and begin with zeros."""


def write(parts: Parts, folder: Path, options: Options, sums: Sums) -> str:
    """Writes the folder. Raises StateError where the process is a rank of a job itself."""
    import torch.distributed as dist
    from torch.distributed.checkpoint import state_dict_saver
    from torch.distributed.checkpoint.api import CheckpointException

    if dist.is_available() and dist.is_initialized():
        raise StateError(f"{folder}: a rank of a process group cannot write it alone")
    whole, missing = _complete(parts)
    tree = alone(_contiguous(tree_of(whole, options.keys, named=True)))
    held = dict(labelled(tree))
    at = by_address(held)
    rest = dict(held)

    def done(name: str, pieces: list[Piece]) -> None:
        own = {piece.label: rest.pop(piece.label) for piece in pieces if piece.label}
        sums.put(name, folder / name, pieces, own)

    with warnings.catch_warnings(), naming(folder), uncollected():
        warnings.simplefilter("ignore")  # it says that no process group is initialised: so it is
        try:
            state_dict_saver.save(tree, storage_writer=writer_of(folder, at, done))
        except CheckpointException as error:  # of all ranks, which is this one
            for failure, _ in error.failures.values():
                if isinstance(failure, OSError | StateError):
                    raise failure from None
            raise
    for label, tensor in rest.items():
        if not tensor.numel():
            sums.empty(label, tensor)
    sums.file(DCP_METADATA, folder / DCP_METADATA)
    told = [parts.lacks] if parts.lacks else []
    if missing:
        told.append(
            f"{missing} parameters have no optimizer state yet: a loader that makes one before it "
            "reads must allow it to be missing (DefaultLoadPlanner(allow_partial_load=True))"
        )
    return "; ".join(told)


def read(folder: Path) -> dict[str, Any]:
    """What any world of ranks saved there, whole; see dcp_read."""
    return read_tree(folder)


def _complete(parts: Parts) -> tuple[Parts, int]:
    """(the step with a state for every parameter, for how many there is none).

    DCP's loader lets the optimizer make its states before it reads (torch/distributed/checkpoint/
    state_dict.py, _init_optim_state) and asks for those of all parameters. Where torch would make
    zeros at a parameter's first step, zeros are what it goes on from; SGD's first momentum is the
    gradient, which is what zeros give as well, undamped.
    """
    given, rule = parts.given, parts.given.rule
    if given.optimizer is None:
        return parts, 0
    kinds: tuple[str, ...] = ()
    if rule.name in STEPPED:
        kinds = ("step", "exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) * bool(rule.amsgrad)))
    elif rule.name == "sgd" and rule.momentum and not rule.dampening:
        kinds = ("momentum_buffer",)
    stateless = rule.name == "sgd" and not rule.momentum
    held = dict(given.optimizer["state"])
    stepped = (n for n, name in parts.numbers.items() if name in given.model)
    without = [n for n in stepped if n not in held and not stateless]
    for number in without if kinds else ():
        like = given.model[parts.numbers[number]]
        zeros = {kind: torch.zeros_like(like) for kind in kinds if kind != "step"}
        held[number] = {**({"step": torch.tensor(0.0)} if "step" in kinds else {}), **zeros}
    optimizer = {**given.optimizer, "state": dict(sorted(held.items()))}
    return replace(parts, given=replace(given, optimizer=optimizer)), 0 if kinds else len(without)


def _contiguous(node: Any) -> Any:
    """DCP saves a tensor as it lies, and reads shards of it in index order."""
    if isinstance(node, torch.Tensor):
        return node.detach().contiguous()
    if isinstance(node, dict):
        return {key: _contiguous(value) for key, value in node.items()}
    return node
