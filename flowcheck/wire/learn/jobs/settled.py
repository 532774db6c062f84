"""Is it sure where the iterations of a job lie, and where in them the chunks of its gradients?"""

from __future__ import annotations

from collections.abc import Sequence

from flowcheck.findings.catalog.job_learning import (
    COPIES_DIFFER,
    COUNT_LOST,
    ELEMENT_BYTES_OPEN,
    FIRST_ITERATIONS_OPEN,
    RELEASE_OPEN,
    TURNS_OPEN,
    WRITERS_OPEN,
)
from flowcheck.findings.finding import Finding
from flowcheck.wire.learn.jobs.lacking_start import count_is_lost
from flowcheck.wire.learn.jobs.tree import contradicted
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.search.releases import releases_open
from flowcheck.wire.learn.trainer.element_size import element_size_told
from flowcheck.wire.learn.trainer.habits import GRADIENTS
from flowcheck.wire.learn.verdict.collect import Found
from flowcheck.wire.learn.verdict.writers import writers_open


def turns_open(communicator: Communicator) -> Finding | None:
    """Why the order in which queue pairs take turns is not told; None: it is."""
    streams = [s for edge in communicator.ring.edges for s in edge.streams]
    several = max(len(s.queue_pairs) for s in streams)
    told = several <= 1 or all(s.turns and s.from_start for s in streams)
    return None if told else TURNS_OPEN(several)


def unsettled(communicator: Communicator, collected: Found, each: Sequence[int]) -> Finding | None:
    """Why an iteration, by its indices, is not sure to lie where it was read; None: it is."""
    own = communicator.habits, communicator.cuts.found, communicator.ring
    if not element_size_told(*own):
        return ELEMENT_BYTES_OPEN()
    if each[-1] >= collected.counted:
        return (COUNT_LOST if count_is_lost(communicator) else FIRST_ITERATIONS_OPEN)()
    if release_open(communicator):
        return RELEASE_OPEN()
    return _misplaced(communicator, collected)


def _misplaced(communicator: Communicator, collected: Found) -> Finding | None:
    """Why chunks of the gradients may lie elsewhere than they were read; None: nothing says so."""
    for cut in communicator.cuts.found:
        if cut.op.meaning in GRADIENTS and (why := writers_open(cut, communicator)):
            return WRITERS_OPEN(why)
    gradients = [c for c in collected.collectives if c.meaning in GRADIENTS]
    if why := contradicted(communicator, gradients):
        return why
    differ = gradients and all(c.conflicts for c in gradients)
    return COPIES_DIFFER() if differ else None


def release_open(communicator: Communicator) -> bool:
    """Sizes fit the partition of several NCCL releases."""
    alike = {cut.op: cut for cut in communicator.cuts.found}.values()
    return any(releases_open(cut, communicator) for cut in alike)
