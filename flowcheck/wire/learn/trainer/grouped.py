"""Trainers whose own code tells which gradients they sum together: torch's `fully_shard` over a
mesh of replicas.

In which order groups come is the backward pass's doing (torch 2.13,
torch/distributed/fsdp/_fully_shard/_fsdp_state.py: _root_post_backward_final_callback sums last, in
module order, what no backward hook did, as groups whose inputs take no gradient): it is read from
the sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowcheck.findings.catalog.hybrid_jobs import GROUPS_BY_ORDER, GROUPS_BY_SIZE
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.trainer.own import MOST_BEFORE, Loop, as_bucket, named
from flowcheck.wire.training_job.learned_job import Parameter, as_reduced
from flowcheck.wire.training_job.operator_statements import OperatorStatement


def grouped_loop(
    cuts: Sequence[Cut], ring: Ring, stated: OperatorStatement
) -> tuple[Loop, tuple[Cut, ...]] | None:
    """The order of the stated groups, and `cuts` with their sums named; None where no iteration
    has their sizes, or where sizes on the wire leave open which of two groups one is."""
    summed = (*stated.parameters, *stated.padding)
    reduced = as_reduced(summed, stated.gradient_element_bytes)
    groups = [[reduced[i] for i in group] for group in stated.groups]
    reduces = [i for i, cut in enumerate(cuts) if cut.op.kind is CollectiveKind.ALL_REDUCE]
    fits = [_fitting(cuts[i], groups, ring) for i in reduces[: MOST_BEFORE + len(groups)]]
    for at in range(len(fits) - len(groups) + 1):
        order = _order(fits[at : at + len(groups)], groups)
        if order is not None:
            sizes = {_size(group) for group in groups}
            how = GROUPS_BY_SIZE() if len(sizes) == len(groups) else GROUPS_BY_ORDER()
            loop = Loop(tuple(stated.groups[n] for n in order), how)
            return loop, named(cuts, reduces[at:], ring, reduced, loop)
    return None


def _size(group: Sequence[Parameter]) -> int:
    return sum(parameter.nbytes for parameter in group)


def _fitting(cut: Cut, groups: Sequence[Sequence[Parameter]], ring: Ring) -> frozenset[int]:
    """Sizes of groups that `cut` may be the sum of."""
    by_size = {_size(group): group for group in groups}
    return frozenset(
        size for size, group in by_size.items() if as_bucket(cut, group, ring) is not None
    )


def _order(
    fits: Sequence[frozenset[int]], groups: Sequence[Sequence[Parameter]]
) -> tuple[int, ...] | None:
    """[all-reduce] which group it is; None where they are not each group once, or where a size is
    open. Those of one size come from the last one to the first."""
    left: dict[int, list[int]] = {}
    for number, group in enumerate(groups):
        left.setdefault(_size(group), []).append(number)
    order = []
    for sizes in fits:
        if len(sizes) != 1 or not left[next(iter(sizes))]:
            return None
        order.append(left[next(iter(sizes))].pop())
    return tuple(order)
