"""A communicator whose trainer has no DistributedDataParallel, read again by the stated model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flowcheck.wire.learn.cuts.cut import Purse, cut_again
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.search.tighten import tightened
from flowcheck.wire.learn.search.typed import typed_again
from flowcheck.wire.learn.trainer.grouped import grouped_loop
from flowcheck.wire.learn.trainer.own import OwnLoop, habits_of, own_loop
from flowcheck.wire.training_job.operator_statements import OperatorStatement


def by_stated_model(
    communicators: Sequence[Communicator], stated: OperatorStatement | None, purse: Purse
) -> list[Communicator]:
    """The communicators, the one that reduces the stated model's gradients known to be it. Where
    a DDP told its parameters itself, only dtypes are read otherwise."""
    if stated is None or not stated.parameters:
        return list(communicators)
    if any(c.habits.shapes for c in communicators):
        return [typed_again(c, stated, purse) or c for c in communicators]
    typed = [typed_again(c, stated, purse) for c in communicators]
    if any(typed):
        return [found or c for found, c in zip(typed, communicators, strict=True)]
    return [_read_again(c, stated, purse) or c for c in communicators]


def _read_again(
    known: Communicator, stated: OperatorStatement, purse: Purse
) -> Communicator | None:
    ring, parameters = known.ring, stated.parameters
    # Of two ranks and sums in a wider type a half of the first sum is as large as the weights.
    weights = () if stated.weights_unsent else parameters
    cuts = cut_again(ring, OwnLoop(weights), purse)
    readings = [tightened(cuts)] if cuts.unread <= known.cuts.unread else []
    for reading in (*readings, known.cuts):
        laid_out = grouped_loop if stated.groups else own_loop
        found = laid_out(reading.found, ring, stated)
        if found is not None:
            loop, named = found
            told = replace(reading, found=named)
            summed = (*parameters, *stated.padding)
            habits = habits_of(loop, summed, stated.gradient_element_bytes)
            return replace(known, cuts=told, habits=habits)
    return None
