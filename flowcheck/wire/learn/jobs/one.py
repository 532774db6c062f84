"""A job of which nothing came behind iteration 0: what is there of it, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence

from flowcheck.findings.catalog.job_learning import NO_BUCKET_PLAN, ONE_ITERATION
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.trainer.habits import BUCKET, GRADIENTS, WEIGHTS, Habits
from flowcheck.wire.learn.trainer.iteration import begun_at, planned_at
from flowcheck.wire.learn.trainer.stages import Stage


def only_one(communicator: Communicator) -> Finding:
    """Why no plan was seen where nothing more will come."""
    habits, cuts = communicator.habits, communicator.cuts
    behind = cuts.found[begun_at(cuts.found) :]
    buckets = sum(cut.op.meaning == BUCKET for cut in behind)
    # Under static_graph the second iteration is as the first.
    due = len(habits.first_buckets) * (1 + habits.static)
    alone = all(cut.op.meaning in GRADIENTS for cut in behind) and not cuts.unread
    if habits.stage is not Stage.STEPPED or not (0 < buckets <= due and alone):
        return NO_BUCKET_PLAN()
    return ONE_ITERATION(parameters=habits.parameters, elements=habits.elements)


def first_is_each(habits: Habits, cuts: Sequence[Cut]) -> bool:
    """With find_unused_parameters every iteration is as the first one, unless that began with
    broadcasts of buffers, which look like more of the weights. Nothing came behind it."""
    sent = sum(cut.op.meaning == WEIGHTS for cut in cuts)
    later = cuts[planned_at(cuts) :]
    return habits.mapped and sent == 1 and not later


def seen_once(cuts: Sequence[Cut]) -> bool:
    """No all-reduce came behind the plan."""
    later = cuts[planned_at(cuts) :]
    return not any(cut.op.kind is CollectiveKind.ALL_REDUCE for cut in later)
