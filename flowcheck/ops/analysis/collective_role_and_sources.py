"""The role of a captured collective, and which connections carried its bytes: codes for programs.

`Collective.meaning` and `Collective.sources` say the same in short words for people.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

import msgspec

from flowcheck.wire.collectives.collective_role import CollectiveRole
from flowcheck.wire.learn import Collective
from flowcheck.wire.learn.cuts.p2p import SOURCE
from flowcheck.wire.learn.jobs.sharding.hybrid import SUMMED_PARTS
from flowcheck.wire.learn.search.gathers import GATHERED, SCATTERED
from flowcheck.wire.learn.search.parted import SUMMED
from flowcheck.wire.learn.trainer import habits
from flowcheck.wire.traffic.observed_messages import FlowKey


class CollectiveSourceKind(StrEnum):
    """Kind of connection that carried final bytes of a collective."""

    CONNECTION = "connection"
    """A mirrored connection of the collective's communicator."""
    POINT_TO_POINT = "point_to_point"
    """Point-to-point sends outside the communicator; their bytes fill ranges that the mirrored
    links do not carry."""


class CollectiveSource(msgspec.Struct, frozen=True, kw_only=True):
    """One connection, named as in `flows`; for point-to-point sends all fields but the kind are
    null."""

    kind: CollectiveSourceKind
    src: str | None = None
    dst: str | None = None
    dest_qp: int | None = None
    incarnation: int | None = None
    protocol: str | None = None


def sources_of(collective: Collective) -> tuple[CollectiveSource, ...]:
    """The connections that carried final bytes of the collective. A connection with several queue
    pairs is named by its first one."""
    if not collective.sources:
        return ()
    found = [
        CollectiveSource(
            kind=CollectiveSourceKind.CONNECTION,
            src=flow.source,
            dst=flow.destination,
            dest_qp=flow.dest_qp,
            incarnation=flow.incarnation,
            protocol=str(collective.protocol),
        )
        for flow in dict.fromkeys(_carriers(collective))
    ]
    if SOURCE in collective.sources:
        found.append(CollectiveSource(kind=CollectiveSourceKind.POINT_TO_POINT))
    return tuple(found)


def _carriers(collective: Collective) -> Iterator[FlowKey]:
    for one in collective.placements:
        if one.final and one.data_bytes and one.first_psn is not None:
            yield one.flow


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
