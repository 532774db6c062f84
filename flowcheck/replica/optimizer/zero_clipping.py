"""DeepSpeed's clipping by the norm of all gradients (gradient_clipping), for ZeRO stages 1 and 2.

Each rank squares the norms of the gradients in its part of a group's flat parameters, in float64,
and sums them to a float32; these are all-reduced. Groups' norms are joined, and what exceeds the
limit divides the gradients (deepspeed/runtime/zero/stage_1_and_2.py: get_grad_norm_direct,
scaled_global_norm, unscale_and_clip_grads; runtime/utils.py: combine_grad_norm_groups).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from flowcheck.config import OptimizerConfig
from flowcheck.config.optimizer_config import ShardedGroup

EPSILON = 1e-6
"""Added to the norm before it is divided by the limit (unscale_and_clip_grads)."""


def clip_as_zero(config: OptimizerConfig, leaves: Sequence[torch.Tensor]) -> None:
    """Multiplies the gradients of `leaves`, in registration order, in place. A norm that is not
    finite leaves none: DeepSpeed divides by infinity then."""
    assert config.clip_norm is not None
    norms = torch.stack([_norm_of_group(group, leaves) for group in config.sharded_groups])
    norm = torch.linalg.vector_norm(norms, ord=2.0)
    if not torch.isfinite(norms).all():
        norm = torch.full_like(norm, torch.inf)
    clip = torch.clamp((norm + EPSILON) / config.clip_norm, min=1.0)
    factor = 1.0 / clip
    for leaf in leaves:
        if leaf.grad is not None:
            leaf.grad.mul_(factor)


def _norm_of_group(group: ShardedGroup, leaves: Sequence[torch.Tensor]) -> torch.Tensor:
    """A float32: the root of what the ranks' sums of squares make."""
    parts = [_squares(group, leaves, rank) for rank in range(group.ranks)]
    # A ring all-reduce of one number ends on its first rank (NCCL: all_reduce.h, runRing): the
    # second one's is the first that is sent.
    total = parts[1 % group.ranks]
    for rank in range(2, group.ranks + 1):
        total = total + parts[rank % group.ranks]
    return total.pow(0.5)


def _squares(group: ShardedGroup, leaves: Sequence[torch.Tensor], rank: int) -> torch.Tensor:
    """A float32: the squared norms of one rank's part."""
    norms = [
        torch.linalg.vector_norm(piece.double(), ord=2.0) for piece in _pieces(group, leaves, rank)
    ]
    if not norms:
        return torch.zeros((), dtype=torch.float32)
    return torch.stack(norms).pow(2.0).sum().float()


def _pieces(
    group: ShardedGroup, leaves: Sequence[torch.Tensor], rank: int
) -> Iterator[torch.Tensor]:
    """What of each gradient lies in the rank's part of the flat group."""
    begin, end = rank * group.part_elements, (rank + 1) * group.part_elements
    for index, at in group.starts:
        gradient = leaves[index].grad
        start, stop = max(begin, at), min(end, at + leaves[index].numel())
        if gradient is not None and start < stop:
            yield gradient.reshape(-1)[start - at : stop - at]
