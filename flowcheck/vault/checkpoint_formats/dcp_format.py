"""torch.distributed.checkpoint folders, written by its own writer in one process for any world
size.

Tensors are stored unsharded, under the names of the modules. When a job of any size loads the
folder, DCP gives each rank its shards.

The keys are as in {"model": get_model_state_dict(), "optimizer": get_optimizer_state_dict(), ...}
(torch/distributed/checkpoint/state_dict.py): states and groups have names, not numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import torch

from flowcheck.errors import StateError, naming_file
from flowcheck.findings.catalog.dcp_checkpoints import WRITER_IS_A_RANK
from flowcheck.findings.catalog.restored_state import STATES_TO_COME
from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint_files.checksummed_writer import ChecksummedWriter
from flowcheck.replica.checkpoint_files.file_read_ahead import FilePiece
from flowcheck.vault.checkpoint_formats.checkpoint_contents import CheckpointContents, tree_of
from flowcheck.vault.checkpoint_formats.dcp_reader import DCP_METADATA, read_tree
from flowcheck.vault.checkpoint_formats.format_registry import FormatOptions
from flowcheck.vault.checkpoint_formats.tensor_storage import (
    labelled_tensors,
    labels_by_address,
    with_own_storage,
)
from flowcheck.vault.checkpoint_formats.torch_save_archive import (
    PieceRecorder,
    TensorArchives,
    gc_paused,
    merge_small_pieces,
)

DATA_SUFFIX = ".distcp"
"""Suffix of files with data (torch/distributed/checkpoint/filesystem.py, DEFAULT_SUFFIX)."""
FILES = 2
"""Number of files with data, which are summed at the same time. A choice: more uses more processors
and memory."""


def writer_of(
    folder: Path,
    at: Mapping[tuple[int, int], str],
    done: Callable[[str, list[FilePiece]], None],
) -> Any:
    """A storage writer for DCP that writes no data itself. at: {(address, bytes): label} of the
    tensors. done: called with the name and the pieces of every file with data."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
    from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItemType
    from torch.distributed.checkpoint.storage import WriteResult
    from torch.futures import Future

    class Writer(FileSystemWriter):
        def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
            archives, met = TensorArchives(), set[str]()
            results: list[WriteResult] = []
            for number, items in enumerate(_shares(plan.items)):
                name = f"{plan.storage_data.prefix}{number}{DATA_SUFFIX}"
                recorder = PieceRecorder(at, met)
                for item in items:
                    first = recorder.aligned()
                    data: Any = planner.resolve_data(item)
                    if item.type == WriteItemType.BYTE_IO:
                        recorder.write(data.getbuffer())
                    else:
                        archives.put(data, recorder)
                    place = _StorageInfo(name, first, recorder.tell() - first)
                    results.append(WriteResult(item.index, place.length, place))
                done(name, list(merge_small_pieces(recorder.pieces)))
            told: Future[list[WriteResult]] = Future()
            told.set_result(results)
            return told

    return Writer(folder, sync_files=False)


def _shares(items: Sequence[Any]) -> list[list[Any]]:
    """Divides the items among the files, in order, so that the files have about the same size."""
    shares: list[list[Any]] = [[] for _ in range(FILES)]
    held = [0] * FILES
    for item in items:
        least = held.index(min(held))
        shares[least].append(item)
        if item.tensor_data is not None:
            of = item.tensor_data
            held[least] += prod(of.chunk.sizes) * of.properties.dtype.itemsize
    return shares


def write(
    parts: CheckpointContents, folder: Path, options: FormatOptions, sums: ChecksummedWriter
) -> tuple[Finding, ...]:
    """Writes the folder; see `CheckpointFormat.write`. Raises StateError if this process is itself
    a rank of a distributed job."""
    tree, lacks = own_tree(parts, options)
    save_tree(tree, dict(labelled_tensors(tree)), folder, sums)
    return lacks


def own_tree(
    parts: CheckpointContents, options: FormatOptions
) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """(what a folder holds, with contiguous tensors that each have a storage of their own; why a
    trainer that resumes from it does not continue exactly as before)."""
    whole, missing = _complete(parts)
    tree = with_own_storage(_contiguous(tree_of(whole, options.keys, named=True)))
    caveats = parts.resume_caveats
    return tree, (*caveats, STATES_TO_COME(missing)) if missing else caveats


def save_tree(
    tree: dict[str, Any],
    held: Mapping[str, torch.Tensor],
    folder: Path,
    sums: ChecksummedWriter,
    *,
    planner: Any = None,
) -> None:
    """Lets torch plan a folder of this tree, and writes it. held: {label: tensor} of the tree's
    tensors, in whichever parts; planner: torch's, which knows the parts; None: its own.
    Raises StateError if this process is itself a rank of a distributed job."""
    import torch.distributed as dist
    from torch.distributed.checkpoint import state_dict_saver
    from torch.distributed.checkpoint.api import CheckpointException

    if dist.is_available() and dist.is_initialized():
        raise StateError(WRITER_IS_A_RANK(folder))
    at = labels_by_address(held)
    rest = dict(held)

    def done(name: str, pieces: list[FilePiece]) -> None:
        own = {piece.label: rest.pop(piece.label) for piece in pieces if piece.label}
        sums.write_file(name, folder / name, pieces, own)

    with warnings.catch_warnings(), naming_file(folder), gc_paused():
        warnings.simplefilter("ignore")  # it says that no process group is initialised: so it is
        try:
            writer = writer_of(folder, at, done)
            state_dict_saver.save(tree, storage_writer=writer, planner=planner)
        except CheckpointException as error:  # of all ranks, which is this one
            for failure, _ in error.failures.values():
                if isinstance(failure, OSError | StateError):
                    raise failure from None
            raise
    for label, tensor in rest.items():
        if not tensor.numel():
            sums.empty(label, tensor)
    sums.file(DCP_METADATA, folder / DCP_METADATA)


def read(folder: Path) -> dict[str, Any]:
    """Reads a folder that a job of any number of ranks saved (dcp_reader.py)."""
    return read_tree(folder)


def recognizes(folder: Path) -> bool:
    """Whether the folder has DCP's metadata file."""
    return (folder / DCP_METADATA).is_file()


def _complete(parts: CheckpointContents) -> tuple[CheckpointContents, int]:
    """(the step with optimizer states for every parameter, number of parameters without one).

    DCP's loader lets the optimizer make its states before it reads, and requires them for all
    parameters (torch/distributed/checkpoint/state_dict.py, _init_optim_state). Where the
    optimizer's first step is the same from zeros as without a state, zeros are written.
    """
    given, config = parts.trainer_state, parts.trainer_state.optimizer_config
    if given.optimizer is None:
        return parts, 0
    zeros_of = config.rule.zeros_before_first_step(config)
    kinds, stateless = zeros_of or (), zeros_of == ()
    held = dict(given.optimizer["state"])
    stepped = (n for n, name in parts.numbers.items() if name in given.model)
    without = [n for n in stepped if n not in held and not stateless]
    for number in without if kinds else ():
        like = given.model[parts.numbers[number]]
        zeros = {kind: torch.zeros_like(like) for kind in kinds if kind != "step"}
        held[number] = {**({"step": torch.tensor(0.0)} if "step" in kinds else {}), **zeros}
    optimizer = {**given.optimizer, "state": dict(sorted(held.items()))}
    return replace(parts, trainer_state=replace(given, optimizer=optimizer)), 0 if kinds else len(
        without
    )


def _contiguous(node: Any) -> Any:
    """The tree with contiguous tensors: DCP saves a tensor's memory as it is, but reads shards in
    index order."""
    if isinstance(node, torch.Tensor):
        return node.detach().contiguous()
    if isinstance(node, dict):
        return {key: _contiguous(value) for key, value in node.items()}
    return node
