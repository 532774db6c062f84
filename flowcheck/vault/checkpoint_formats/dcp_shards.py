"""All shards of a model (hybrid sharding) as one torch.distributed.checkpoint folder: each shard of
a tensor is a chunk of it at its own place, as the trainer's ranks write it. Nothing is joined in
memory.

Sources: torch 2.13, torch/distributed/checkpoint/default_planner.py (DefaultSavePlanner,
create_default_global_save_plan), planner_helpers.py (`__create_write_items__`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

from flowcheck.errors import StateError
from flowcheck.findings.catalog.hybrid_jobs import SHARDS_DIFFER, SHARDS_LACK_ELEMENTS
from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint_files.checksummed_writer import ChecksummedWriter
from flowcheck.vault.checkpoint_formats.checkpoint_contents import CheckpointContents
from flowcheck.vault.checkpoint_formats.dcp_format import own_tree, save_tree
from flowcheck.vault.checkpoint_formats.format_registry import FormatOptions
from flowcheck.vault.checkpoint_formats.tensor_storage import labelled_tensors
from flowcheck.vault.trainer_checkpoint.shard_of_checkpoint import cut_of_key
from flowcheck.wire.training_job.operator_statements import ShardCut

FORM = "dcp"
"""The format's name."""


@dataclass(frozen=True, slots=True)
class ModelShard:
    """One shard of a step."""

    contents: CheckpointContents
    cuts: Mapping[str, ShardCut]
    """{parameter: its part in this shard}."""


class _Chunks:
    """A tensor in parts. torch asks it what is to be written."""

    def __init__(self, path: str, parts: Sequence[tuple[ShardCut, torch.Tensor]]) -> None:
        """Raises StateError where the parts are not the whole of it."""
        cuts = [cut for cut, _ in parts]
        whole = self.whole = cuts[0].whole
        self._dtype = parts[0][1].dtype
        self.at = {
            tuple(cut.start if n == cut.dim else 0 for n in range(len(whole))): tensor
            for cut, tensor in parts
            if tensor.numel()
        }
        ends = sorted((cut.start, cut.start + cut.size) for cut in cuts if cut.size)
        joined = [end for _, end in ends[:-1]] == [start for start, _ in ends[1:]]
        one = all((c.whole, c.dim) == (whole, cuts[0].dim) for c in cuts)
        filled = sum(tensor.numel() for tensor in self.at.values())
        if not (one and joined) or filled != prod(whole):
            raise StateError(SHARDS_LACK_ELEMENTS(tensor=path, elements=filled, whole=prod(whole)))

    def __create_write_items__(self, fqn: str, _: object) -> list[Any]:
        from torch.distributed.checkpoint.metadata import (
            ChunkStorageMetadata,
            MetadataIndex,
            TensorProperties,
        )
        from torch.distributed.checkpoint.planner import (
            TensorWriteData,
            WriteItem,
            WriteItemType,
        )

        return [
            WriteItem(
                index=MetadataIndex(fqn, torch.Size(offsets)),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=ChunkStorageMetadata(torch.Size(offsets), tensor.shape),
                    properties=TensorProperties.create_from_tensor(tensor),
                    size=torch.Size(self.whole),
                ),
            )
            for offsets, tensor in self.at.items()
        ]


def write(
    shards: Sequence[ModelShard],
    folder: Path,
    options: FormatOptions,
    sums: ChecksummedWriter,
) -> tuple[Finding, ...]:
    """Writes the folder. shards: [shard] all of one model, at one step. Returns why a trainer that
    resumes from it does not continue exactly as before. Raises StateError where the shards are no
    whole model, and as `dcp_format.write` does."""
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    class Planner(DefaultSavePlanner):
        def lookup_object(self, index: Any) -> Any:
            held = self.state_dict[index.fqn]
            return held.at[tuple(index.offset)] if isinstance(held, _Chunks) else held

    own = [own_tree(shard.contents, options) for shard in shards]
    trees = [tree for tree, _ in own]
    whole = _joined("", trees, [shard.cuts for shard in shards], None)
    held = {
        f"{label} of shard {number}" if number else label: tensor
        for number, tree in enumerate(trees)
        for label, tensor in labelled_tensors(tree)
    }
    save_tree(whole, held, folder, sums, planner=Planner())
    return tuple(dict.fromkeys(one for _, lacks in own for one in lacks))


def _joined(
    path: str,
    nodes: Sequence[Any],
    cuts: Sequence[Mapping[str, ShardCut]],
    own: Sequence[ShardCut] | None,
) -> Any:
    """The tree of the whole model. nodes: [shard] the same place of its tree; own: [shard] its part
    of the parameter whose name a key above is."""
    first = nodes[0]
    if isinstance(first, dict):
        if any(not isinstance(node, dict) or node.keys() != first.keys() for node in nodes):
            raise StateError(SHARDS_DIFFER(path))
        return {
            key: _joined(
                f"{path}.{key}" if path else str(key),
                [node[key] for node in nodes],
                cuts,
                _cuts_of(key, cuts) or own,
            )
            for key in first
        }
    if isinstance(first, torch.Tensor):
        if own is not None and all(map(_is_part, nodes, own)):
            return _Chunks(path, list(zip(own, nodes, strict=True)))
        if not all(isinstance(node, torch.Tensor) and _equal(node, first) for node in nodes):
            raise StateError(SHARDS_DIFFER(path))
        return first
    if any(node != first for node in nodes):
        raise StateError(SHARDS_DIFFER(path))
    return first


def _cuts_of(key: object, cuts: Sequence[Mapping[str, ShardCut]]) -> list[ShardCut] | None:
    found = [cut_of_key(key, own) for own in cuts]
    return None if None in found else [cut for cut in found if cut is not None]


def _is_part(node: Any, cut: ShardCut) -> bool:
    shape = (*cut.whole[: cut.dim], cut.size, *cut.whole[cut.dim + 1 :])
    return isinstance(node, torch.Tensor) and tuple(node.shape) == shape


def _equal(one: torch.Tensor, two: torch.Tensor) -> bool:
    """In every bit."""
    if (one.dtype, one.shape) != (two.dtype, two.shape):
        return False
    flat = (each.contiguous().reshape(-1).view(torch.uint8) for each in (one, two))
    return torch.equal(*flat)
