"""Clipping by the norm that DeepSpeed's ranks make of their parts of all gradients."""

from __future__ import annotations

from math import prod

import pytest
import torch

from flowcheck.config import OptimizerConfig
from flowcheck.config.optimizer_config import ShardedGroup
from flowcheck.replica.optimizer.gradient_clipping import clip_gradients

SHAPES = ((31, 17), (), (5,), (64, 33), (129,))
LIMIT = 0.5


def whole_norm(gradients: list[torch.Tensor]) -> float:
    return float(torch.cat([g.reshape(-1) for g in gradients]).double().norm())


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("dealt", [((0, 1, 2, 3, 4),), ((3, 0), (1, 4, 2))])
@pytest.mark.parametrize("size", [1e-6, 3.0, float("inf")])
def test_what_exceeds_the_limit_is_divided(
    ranks: int, dealt: tuple[tuple[int, ...], ...], size: float
) -> None:
    groups = []
    for own in dealt:
        at, starts = 0, []
        for index in own:
            starts.append((index, at))
            at += prod(SHAPES[index])
        part = -(-at // (2 * ranks)) * 2
        groups.append(ShardedGroup(ranks=ranks, part_elements=part, starts=tuple(starts)))
    stated = OptimizerConfig(
        name="sgd", learning_rate=1.0, clip_norm=LIMIT, sharded_groups=tuple(groups)
    )
    torch.manual_seed(3)
    leaves = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    given = [torch.randn(shape).bfloat16().float() * min(size, 1e30) for shape in SHAPES]
    if size == float("inf"):
        given[2][1] = size
    for leaf, gradient in zip(leaves, given, strict=True):
        leaf.grad = gradient.clone()
    clip_gradients(stated, leaves)
    norm = whole_norm(given)
    for leaf, gradient in zip(leaves, given, strict=True):
        if size == float("inf"):
            finite = torch.isfinite(gradient)
            assert not leaf.grad[finite].any()
        elif norm <= LIMIT:
            assert torch.equal(leaf.grad, gradient)
        else:
            torch.testing.assert_close(leaf.grad, gradient * (LIMIT / norm), rtol=3e-6, atol=0)


def test_a_rank_without_parameters_adds_nothing() -> None:
    group = ShardedGroup(ranks=3, part_elements=2, starts=((0, 0),))
    stated = OptimizerConfig(name="sgd", learning_rate=1.0, clip_norm=1.0, sharded_groups=(group,))
    leaf = torch.nn.Parameter(torch.zeros(2))
    leaf.grad = torch.tensor([3.0, 4.0])
    clip_gradients(stated, [leaf])
    torch.testing.assert_close(leaf.grad, torch.tensor([0.6, 0.8]), rtol=1e-6, atol=0)
