"""Is it sure where the iterations of a job lie, and where in them the chunks of its gradients?"""

from __future__ import annotations

from collections.abc import Sequence

from flowcheck.wire.learn.jobs.tree import contradicted
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.search.releases import releases_open
from flowcheck.wire.learn.trainer.habits import GRADIENTS
from flowcheck.wire.learn.verdict.collect import Found
from flowcheck.wire.learn.verdict.writers import writers_open

NO_RELEASE = (
    "no clear-to-send was mirrored and the sizes fit the partition of several NCCL releases: "
    "mirror the other direction too"
)
COPIES_DIFFER = "two copies of every gradient's sum differ: no ring that fits the sizes is theirs"
NO_WRITERS = "where chunks of the gradients lie is not told: {}"
SEVERAL_QPS = (
    "each connection uses {} queue pairs (NCCL_IB_QPS_PER_CONNECTION), and the order of their "
    "turns is not told: their start was not seen"
)
NO_COUNT = "sends were lost before the first iterations: where these begin is not sure"


def turns_open(communicator: Communicator) -> str:
    """Why the order in which queue pairs take turns is not told; empty: it is."""
    streams = [s for edge in communicator.ring.edges for s in edge.streams]
    several = max(len(s.queue_pairs) for s in streams)
    told = several <= 1 or all(s.turns and s.from_start for s in streams)
    return "" if told else SEVERAL_QPS.format(several)


def unsettled(communicator: Communicator, collected: Found, each: Sequence[int]) -> str:
    """Why an iteration, by its indices, is not sure to lie where it was read; empty: it is."""
    if each[-1] >= collected.counted:
        return NO_COUNT
    return NO_RELEASE if release_open(communicator) else _misplaced(communicator, collected)


def _misplaced(communicator: Communicator, collected: Found) -> str:
    """Why chunks of the gradients may lie elsewhere than they were read; empty: nothing says so."""
    for cut in communicator.cuts.found:
        if cut.op.meaning in GRADIENTS and (why := writers_open(cut, communicator)):
            return NO_WRITERS.format(why)
    gradients = [c for c in collected.collectives if c.meaning in GRADIENTS]
    if why := contradicted(communicator, gradients):
        return why
    return COPIES_DIFFER if gradients and all(c.conflicts for c in gradients) else ""


def release_open(communicator: Communicator) -> bool:
    """Sizes fit the partition of several NCCL releases."""
    alike = {cut.op: cut for cut in communicator.cuts.found}.values()
    return any(releases_open(cut, communicator) for cut in alike)
