"""Which connections carried the bytes of a collective, in parts for programs.

`Collective.sources` says the same in short names for people.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

import msgspec

from flowcheck.wire.learn import Collective
from flowcheck.wire.learn.cuts.p2p import SOURCE
from flowcheck.wire.traffic.observed_messages import FlowKey


class SourceKind(StrEnum):
    CONNECTION = "connection"
    """A mirrored connection of the collective's communicator."""
    POINT_TO_POINT = "point_to_point"
    """Sends outside the communicator, whose bytes fill what its mirrored links never carry."""


class CollectiveSource(msgspec.Struct, frozen=True, kw_only=True):
    """One source. A connection is named as in `flows`; of point-to-point sends all is null."""

    kind: SourceKind
    src: str | None = None
    dst: str | None = None
    dest_qp: int | None = None
    incarnation: int | None = None
    protocol: str | None = None


def sources_of(collective: Collective) -> tuple[CollectiveSource, ...]:
    """Those that carried final bytes; a connection of several queue pairs is named by the first."""
    if not collective.sources:
        return ()
    found = [
        CollectiveSource(
            kind=SourceKind.CONNECTION,
            src=flow.source,
            dst=flow.destination,
            dest_qp=flow.dest_qp,
            incarnation=flow.incarnation,
            protocol=str(collective.protocol),
        )
        for flow in dict.fromkeys(_carriers(collective))
    ]
    if SOURCE in collective.sources:
        found.append(CollectiveSource(kind=SourceKind.POINT_TO_POINT))
    return tuple(found)


def _carriers(collective: Collective) -> Iterator[FlowKey]:
    for one in collective.placements:
        if one.final and one.data_bytes and one.first_psn is not None:
            yield one.flow
