"""A model under hybrid sharding (HSDP), as one shard rank holds it and its gradients are summed.

Source: torch 2.13, torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py (foreach_reduce): each
`fully_shard` group all-reduces the reduce-scattered gradients of its parameters in one tensor, back
to back, each padded to as many rows as any shard rank has.
"""

from __future__ import annotations

import msgspec


class HybridParameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One trainable parameter."""

    name: str
    shape: tuple[int, ...]
    """Of the whole parameter."""
    dim: int
    """Dimension that it is cut along."""
    shard_shape: tuple[int, ...]
    """Of one shard rank's part with its padding."""
    start: int
    """Where in `dim` this rank's part begins."""
    own_shape: tuple[int, ...]
    """The same without padding; a dimension of 0 where this rank holds nothing of it."""
    dtype: str
    """That the optimizer steps, torch's name without the prefix."""


class HybridModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The shard of one rank within a node."""

    mesh: tuple[int, int]
    """(replicas, shards of each): the mesh that `fully_shard` was given."""
    shard: int
    """Which of them this is."""
    parameters: tuple[HybridParameter, ...]
    """Trainable ones, in registration order."""
    groups: tuple[tuple[int, ...], ...]
    """[group of fully_shard, in module order] indices of its parameters, in their order in the
    tensor that is summed."""
    reduce_dtype: str | None
    """That gradients are summed in; None: each group's is its parameters' own."""
    divisor: float = 1.0
    """By which each sum is divided behind the all-reduce."""
