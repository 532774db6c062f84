"""Which buckets find_unused_parameters made, where the sizes of iteration 0 allow several.

Chunks of LL128 are as large on the wire with one more small parameter. Then the copies of a chunk
tell, which differ behind its end. Else DDP's own caps do, which close most trainers' buckets: any
other would have to end a bucket just there by chance. Else the numbers that end in a chunk.

Source: torch/nn/parallel/distributed.py (_ddp_init_helper, bucket_cap_mb).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowcheck.findings.catalog.job_learning import BUCKETS_BY_CAPS, BUCKETS_BY_NUMBERS
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives import nccl_wire_format
from flowcheck.wire.collectives.nccl_parameters import (
    GRAIN_BYTES,
    CollectiveKind,
    Protocol,
    wire_bytes,
)
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.flows.streams import SendSeen
from flowcheck.wire.learn.trainer.habits import USED
from flowcheck.wire.learn.trainer.parts import Buckets, Gradients, caps_of, resized, ways_of
from flowcheck.wire.training_job.gradient_buckets import (
    CAP_BYTES,
    FIRST_CAP_BYTES,
    assign_buckets,
)

UNIT_BYTES = 1 << 20
"""Of bucket_cap_mb, which most scripts that set it give as a whole number."""


Sized = tuple[Buckets, tuple[int, ...]]
"""Buckets, and the bytes of each."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The buckets of every iteration."""

    buckets: Buckets = ()
    """(): nothing tells."""
    each: tuple[int, ...] = ()
    """[parameter] bytes of an element there."""
    by: Finding | None = None
    """What tells them from others, which the sizes allow as well; None: there are no others."""
    ways: tuple[Sized, ...] = ()
    """Those that nothing tells apart."""


def plan_among(
    parts: Sequence[Cut], ring: Ring, ways: Sequence[Gradients], told: Buckets = ()
) -> Plan:
    """The buckets that those all-reduces are, in the first of `ways` before others that give the
    same ones. told: those that their numbers bear out, if any."""
    found = [_plan(parts, ring, gradients, told) for gradients in ways]
    same = len({plan.buckets for plan in found}) == 1
    return found[0] if same else Plan(ways=tuple(way for plan in found for way in plan.ways))


def _plan(parts: Sequence[Cut], ring: Ring, gradients: Gradients, told: Buckets) -> Plan:
    found = ways_of(parts, ring, gradients)
    usual = _of_default_caps(gradients)
    if len(found) > 1:
        # Of very many only some were looked at.
        first = [way for way in (usual, told) if way and _fit(parts, way, ring, gradients)]
        found = list(dict.fromkeys([*first, *found]))
        found = [way for way in found if not _contradicted(parts, way, ring, gradients)] or found
    if len(found) == 1:
        return Plan(found[0], gradients.each)
    others = len(found) - 1
    if told in found:
        return Plan(told, gradients.each, BUCKETS_BY_NUMBERS(others))
    likely = [way for way in found if _of_whole_caps(way, gradients)]
    chosen = [usual] if usual in found else likely
    if len(chosen) == 1:
        return Plan(chosen[0], gradients.each, BUCKETS_BY_CAPS(others))
    sizes = [tuple(sum(gradients.reduced[i] for i in of) for of in way) for way in found]
    return Plan(ways=tuple(zip(found, sizes, strict=True)))


def plan_by_numbers(cuts: Sequence[Cut], ways: Sequence[Sized]) -> Buckets:
    """The only one of `ways` whose buckets, those before each map, are of the sizes that the
    numbers in them bear out; () where none is, or several."""
    found = []
    for buckets, sizes in ways:
        told = [
            cut.op.work_bytes == size
            for one in _iterations(cuts, len(buckets))
            for cut, size in zip(one, sizes, strict=True)
            if cut.op.end is not None
        ]
        if told and all(told):
            found.append(buckets)
    return found[0] if len(found) == 1 else ()


def _iterations(cuts: Sequence[Cut], buckets: int) -> Iterator[Sequence[Cut]]:
    """So many all-reduces before each map of used parameters."""
    reduces = [cut for cut in cuts if cut.op.kind is CollectiveKind.ALL_REDUCE]
    for i, cut in enumerate(reduces):
        if cut.op.meaning == USED and i >= buckets:
            yield reduces[i - buckets : i]


def _of_default_caps(gradients: Gradients) -> Buckets:
    """The buckets of a trainer that sets no bucket_cap_mb."""
    kinds = {i: kind for kind, group in enumerate(gradients.groups) for i in group}
    groups = [kinds[i] for i in range(len(gradients.sizes))]
    return assign_buckets(gradients.sizes, (FIRST_CAP_BYTES, CAP_BYTES), groups=groups)[::-1]


def _of_whole_caps(buckets: Buckets, gradients: Gradients) -> bool:
    """A bucket_cap_mb that is a whole number closes all of them. Releases of torch differ in
    whether the first bucket then keeps its own cap."""
    (first_least, first_most), (least, most) = caps_of(buckets, gradients)
    own_first = first_least <= FIRST_CAP_BYTES <= first_most and _whole(least) <= most
    return own_first or _whole(max(least, first_least)) <= min(most, first_most)


def _whole(least: int) -> int:
    """The smallest cap of whole units that is no smaller."""
    return -(-max(least, 1) // UNIT_BYTES) * UNIT_BYTES


def _fit(parts: Sequence[Cut], buckets: Buckets, ring: Ring, gradients: Gradients) -> bool:
    """The buckets have the sizes of the all-reduces on the wire."""
    return len(buckets) == len(parts) and None not in _sized(parts, buckets, ring, gradients)


def _sized(
    parts: Sequence[Cut], buckets: Buckets, ring: Ring, gradients: Gradients
) -> list[Cut | None]:
    """[bucket] its all-reduce, of its own size; None where it would be another one on the wire."""
    return [
        resized(cut, sum(gradients.reduced[i] for i in own), ring, gradients.each[own[0]])
        for cut, own in zip(parts, buckets, strict=True)
    ]


def _contradicted(parts: Sequence[Cut], buckets: Buckets, ring: Ring, gradients: Gradients) -> bool:
    """Copies of what they would hold differ."""
    sized = _sized(parts, buckets, ring, gradients)
    return any(cut is None or _ends_differ(cut, ring) for cut in sized)


def _ends_differ(cut: Cut, ring: Ring) -> bool:
    """Two final copies of a chunk differ in its last line or group."""
    grain = GRAIN_BYTES[cut.op.protocol]
    ends: dict[int, NDArray[np.uint8]] = {}
    for stream, number, send in cut.sends(ring):
        seen = stream.sends.get(number)
        if seen is None or not send.final or not send.data_bytes:
            continue
        own = _end_of(seen, cut.op.protocol, (send.data_bytes - 1) % grain + 1)
        if own is not None and (own != ends.setdefault(send.start_byte, own)).any():
            return True
    return False


def _end_of(send: SendSeen, protocol: Protocol, size: int) -> NDArray[np.uint8] | None:
    """[size] its last bytes, of one line or group; None where not all of them are sure."""
    message = send.message
    start = len(message.payload) - wire_bytes(protocol, size)
    if start < 0 or any(stop > start for _, stop in (*message.missing, *message.conflicts)):
        return None
    linear = message.linear_ll128
    return nccl_wire_format.unpack(protocol, message.payload[start:], size, linear=linear)
