"""Is a collective of a capture the planned one, as far as the wire tells?"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flowcheck.ops.planning.cost import Wire, cost_of
from flowcheck.ops.planning.traffic import Planned
from flowcheck.wire.learn import Collective
from flowcheck.wire.terms import GRAIN_BYTES, Kind, Protocol, round_up


class Stated(msgspec.Struct, frozen=True, kw_only=True):
    """What of the wire is held against the captures as well."""

    ranks: int
    protocol: Protocol | None = None
    wire: Wire | None = None
    """Where the channels were stated: how many of them a collective has."""


def unlike(planned: Planned, stated: Stated, seen: Collective) -> str:
    """Why `seen` is not the planned collective; empty: it is, as far as the wire tells."""
    if seen.kind != planned.kind:
        return "another kind"
    if seen.ranks != stated.ranks:
        return f"its ring has {seen.ranks} ranks, not {stated.ranks}"
    if stated.protocol is not None and seen.protocol is not stated.protocol:
        return f"it is in {seen.protocol}, not in {stated.protocol}"
    grain = GRAIN_BYTES[seen.protocol]
    blocks = stated.ranks if planned.kind is Kind.ALL_GATHER else 1
    if round_up(seen.bytes // blocks, grain) != round_up(planned.work_bytes, grain):
        return "another size"
    if stated.wire is not None:
        wire = msgspec.structs.replace(stated.wire, protocol=seen.protocol)
        due = cost_of(planned, wire).channels
        if seen.channels != due:
            return f"it is on {seen.channels} channels, not on {due}"
    told = said(planned, seen)
    return "" if told == planned.values else _first_unlike(planned.values, told)


def said(planned: Planned, seen: Collective) -> tuple[int, ...]:
    """What it says, where all of that was seen; else as planned."""
    size = planned.work_bytes
    whole = not seen.conflicts and not any(start < size for start, _ in seen.missing)
    if not planned.values or not whole or len(seen.result) < size:
        return planned.values
    kind = "<i8" if planned.value_bytes == 8 else "<i4"
    return tuple(seen.result[:size].view(kind).tolist())


def _first_unlike(planned: Sequence[int], told: Sequence[int]) -> str:
    at = next(n for n, pair in enumerate(zip(planned, told, strict=True)) if pair[0] != pair[1])
    return f"it says {told[at]} at place {at}, not {planned[at]}"


def opens(planned: Planned, seen: Collective) -> bool:
    """An all-gather of one number of each rank, whatever the number and the ranks."""
    grain = GRAIN_BYTES[seen.protocol]
    block = round_up(seen.bytes // seen.ranks, grain)
    return seen.kind == planned.kind and block == round_up(planned.work_bytes, grain)
