"""The job of a trainer without DistributedDataParallel, whose model is stated."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import msgspec

from flowcheck.findings.catalog.hybrid_jobs import (
    NO_GROUPS_FIT,
    START_NOT_WHOLE,
    WEIGHTS_WERE_SENT,
)
from flowcheck.findings.catalog.job_learning import (
    ADDED_STEP_OPEN,
    NO_ORDER_FITS,
    NO_WHOLE_ITERATION,
    START_UP_NOT_SEEN,
    STATE_A_MODEL,
)
from flowcheck.findings.finding import Finding
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.jobs.begun import Begun
from flowcheck.wire.learn.jobs.causes import forbidding
from flowcheck.wire.learn.jobs.job import Plan, assembled, ring_op
from flowcheck.wire.learn.jobs.settled import turns_open, unsettled
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.trainer.habits import BUCKET
from flowcheck.wire.learn.trainer.iteration import iteration
from flowcheck.wire.learn.trainer.own import weights_sent
from flowcheck.wire.learn.verdict.collect import Found
from flowcheck.wire.training_job import learned_job
from flowcheck.wire.training_job.operator_statements import OperatorStatement


def learn_own(
    communicators: Sequence[Communicator],
    found: Sequence[Found],
    stated: OperatorStatement | None,
    *,
    ended: bool,
) -> tuple[learned_job.LearnedJob | None, tuple[Finding, ...]]:
    """The job, or why there is none yet. `ended`: nothing more will come."""
    if stated is None or not stated.parameters:
        return None, (START_UP_NOT_SEEN(), STATE_A_MODEL())
    for communicator, collected in zip(communicators, found, strict=True):
        if communicator.habits.own:
            return _of(communicator, collected, stated, ended=ended)
    if stated.groups:
        return None, (NO_GROUPS_FIT(groups=len(stated.groups)),)
    size = sum(parameter.nbytes for parameter in stated.parameters)
    return None, (NO_ORDER_FITS(parameters=len(stated.parameters), bytes=size),)


def _of(
    communicator: Communicator, collected: Found, stated: OperatorStatement, *, ended: bool
) -> tuple[learned_job.LearnedJob | None, tuple[Finding, ...]]:
    habits, cuts, ring = communicator.habits, communicator.cuts.found, communicator.ring
    if told := turns_open(communicator):
        return None, (told,)
    if not collected.added_told:
        return None, (ADDED_STEP_OPEN(),)
    gradients = [i for i, cut in enumerate(cuts) if cut.op.meaning == BUCKET]
    if len(gradients) < 2 * habits.reduces:
        return None, (NO_WHOLE_ITERATION(),)
    begin, later = gradients[0], gradients[habits.reduces - 1] + 1
    each = iteration(cuts, later, habits.reduces, ended)
    if not each:
        return None, (NO_WHOLE_ITERATION(),)
    unsent = stated.weights_unsent
    if unsent and weights_sent(cuts[:begin], ring, stated.parameters):
        return None, (WEIGHTS_WERE_SENT(),)
    if unsent and not _start_is_whole(communicator, cuts[:later]):
        return None, (START_NOT_WHOLE(),)
    masters = stated.steps_masters
    told = unsettled(communicator, collected, each)
    if told := told or forbidding(habits, cuts, ring, masters=masters):
        return None, (told,)
    buckets = habits.buckets
    begun = Begun(buckets, buckets, gradient_element_bytes=stated.gradient_element_bytes)
    plan = Plan(stated.parameters, begun, start=cuts[begin])
    for part, chosen in ((plan.first, range(begin, later)), (plan.each, each)):
        number = count()
        for i in chosen:
            gradient = cuts[i].op.meaning == BUCKET
            part.append(ring_op(cuts[i].op, gradient, next(number) if gradient else 0))
    job = assembled(communicator, collected, plan)
    return msgspec.structs.replace(job, start_unknown=unsent, padding=stated.padding), ()


def _start_is_whole(communicator: Communicator, cuts: Sequence[Cut]) -> bool:
    """Whether these are all that the connections ever carried: an iteration that was lost before
    them would be a step that nothing tells of."""
    streams = (stream for edge in communicator.ring.edges for stream in edge.streams)
    whole = all(stream.from_start for stream in streams) and not communicator.cuts.skipped
    return whole and not any(cut.lost for cut in cuts)
