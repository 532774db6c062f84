"""The role of a captured collective; `Collective.meaning` has it as text."""

from __future__ import annotations

from flowcheck.wire.collectives.collective_role import CollectiveRole
from flowcheck.wire.learn import Collective
from flowcheck.wire.learn.jobs.sharding.hybrid import SUMMED_PARTS
from flowcheck.wire.learn.search.gathers import GATHERED, SCATTERED
from flowcheck.wire.learn.search.parted import SUMMED
from flowcheck.wire.learn.trainer import habits

_ROLES = {
    habits.COUNT: CollectiveRole.PARAMETER_COUNT,
    habits.SHAPES: CollectiveRole.PARAMETER_SHAPES,
    habits.WEIGHTS: CollectiveRole.INITIAL_WEIGHTS,
    habits.BUFFERS: CollectiveRole.BUFFERS,
    habits.ORDER: CollectiveRole.BUCKET_ORDER,
    habits.SIZES: CollectiveRole.BUCKET_SIZES,
    habits.BUCKET: CollectiveRole.BUCKET,
    habits.USED: CollectiveRole.USED_PARAMETERS,
    habits.PART: CollectiveRole.GRADIENT_PART,
    GATHERED: CollectiveRole.GATHERED_PARAMETERS,
    SCATTERED: CollectiveRole.SCATTERED_GRADIENTS,
    SUMMED: CollectiveRole.SUMMED_GRADIENTS,
    SUMMED_PARTS: CollectiveRole.SUMMED_GRADIENT_PARTS,
}


def role_of(collective: Collective) -> CollectiveRole | None:
    """None: nothing tells what it is."""
    return _ROLES.get(collective.meaning, CollectiveRole.OTHER) if collective.meaning else None
