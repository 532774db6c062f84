"""The part of a trainer's checkpoint that a replica of one shard has (hybrid sharding)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from flowcheck.wire.training_job.operator_statements import ShardCut


def cut_to_shards(tree: Any, names: Sequence[str], cuts: Sequence[ShardCut]) -> Any:
    """The tree with every tensor of a whole parameter's shape cut to the shard: parameters and
    what the optimizer keeps of each of their elements.

    names, cuts: of each parameter. A tensor below a key that is a parameter's name is cut as that
    parameter is. Elsewhere its shape alone tells, if all parameters of that shape are cut alike.
    """
    named = dict(zip(names, cuts, strict=False))
    shaped: dict[tuple[int, ...], set[ShardCut]] = {}
    for cut in cuts:
        shaped.setdefault(cut.whole, set()).add(cut)
    alike = {shape: own.pop() for shape, own in shaped.items() if len(own) == 1}
    return _cut(tree, named, alike, None)


def _cut(
    node: Any,
    named: Mapping[str, ShardCut],
    alike: Mapping[tuple[int, ...], ShardCut],
    own: ShardCut | None,
) -> Any:
    """own: of the parameter whose name a key above is."""
    if isinstance(node, torch.Tensor):
        shape = tuple(node.shape)
        cut = own if own is not None and own.whole == shape else alike.get(shape)
        if cut is None:
            return node
        return node.narrow(cut.dim, cut.start, cut.size).contiguous()
    if isinstance(node, dict):
        return {
            key: _cut(value, named, alike, cut_of_key(key, named) or own)
            for key, value in node.items()
        }
    if isinstance(node, list):
        return [_cut(value, named, alike, own) for value in node]
    return node


def cut_of_key(key: object, named: Mapping[str, ShardCut]) -> ShardCut | None:
    """The part of the parameter whose name a key of a checkpoint is; None: it is none's."""
    return named.get(key.removeprefix("module.")) if isinstance(key, str) else None
