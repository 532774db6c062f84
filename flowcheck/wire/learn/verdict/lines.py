"""In which order LL128's lines hold data: before NCCL 2.10 one behind the other, since then as
registers lie. Flags and sizes are alike; only what is in them tells.

Clear-to-send entries are those of 2.11 and before, if they were seen, wherever it may be either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from flowcheck.findings.catalog.nccl_transport import LL128_ORDER_OPEN
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives import nccl_wire_format
from flowcheck.wire.collectives.nccl_parameters import NcclEra, Protocol
from flowcheck.wire.ddp_startup import ddp_messages
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.flows.roles import Sorted
from flowcheck.wire.learn.flows.streams import SendSeen
from flowcheck.wire.learn.reading import Collective, Reading, Weights
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.trainer.content import content_of
from flowcheck.wire.learn.trainer.habits import ORDER, SHAPES
from flowcheck.wire.traffic.observed_messages import ObservedMessage
from flowcheck.wire.training_job.learned_job import LearnedJob

ALIKE_BYTES = 112
"""At the start of an LL128 group, where both orders agree."""


def as_linear(messages: Sequence[ObservedMessage]) -> list[ObservedMessage]:
    """To be read as those of before 2.10."""
    return [replace(message, linear_ll128=True) for message in messages]


def may_be_linear(flows: Sorted) -> bool | None:
    """Whether the release may be from before 2.10; None: no clear-to-send was seen."""
    layouts = {grant.layout for grant in flows.grants}
    return layouts == {nccl_wire_format.CtsLayout.V2_10} if layouts else None


def makes_sense(communicators: Sequence[Communicator]) -> bool | None:
    """Start-up messages in LL128, of more than what both orders begin with, are what they ought to
    be as read, and not in the other order; or parts are those of a later release. None: nothing was
    read in LL128."""
    used = [c for c in communicators if any(_in_lines(cut) for cut in c.cuts.found)]
    if not used:
        return None
    later = all(NcclEra.V2_19 not in c.cuts.state.rules for c in used)
    return later or any(_told(c) for c in used)


def _in_lines(cut: Cut) -> bool:
    return cut.op.protocol is Protocol.LL128


def _told(own: Communicator) -> bool:
    start = [
        cut
        for cut in own.cuts.found
        if _in_lines(cut) and cut.op.meaning in (SHAPES, ORDER) and cut.op.work_bytes > ALIKE_BYTES
    ]
    if not start:
        return False
    other = _other_way(own.ring)
    parameters = own.habits.parameters
    return any(
        _sound(cut, own.ring, parameters) and not _sound(cut, other, parameters) for cut in start
    )


def _sound(cut: Cut, ring: Ring, parameters: int) -> bool:
    """It is what its name says. Values in the other order may still be cut into shapes, of odd
    strides."""
    content = content_of(cut, ring)
    if content is None:
        return False
    if cut.op.meaning == ORDER:
        return ddp_messages.parse_bucket_indices(content, parameters) is not None
    values = ddp_messages.parse_shape_values(content)
    found = () if values is None else ddp_messages.parse_shapes(values, parameters, most=1)
    return bool(found) and not found[0].cost


def _other_way(ring: Ring) -> Ring:
    """Read in the other order."""

    def of(send: SendSeen) -> SendSeen:
        return replace(
            send, message=replace(send.message, linear_ll128=not send.message.linear_ll128)
        )

    edges = tuple(
        replace(
            edge,
            streams=tuple(
                replace(s, sends={number: of(send) for number, send in s.sends.items()})
                for s in edge.streams
            ),
        )
        for edge in ring.edges
    )
    return replace(ring, edges=edges)


def in_doubt(reading: Reading) -> Reading:
    """Nothing of LL128 is sure."""
    collectives = tuple(
        replace(c, doubtful=True, assumed=(*c.assumed, LL128_ORDER_OPEN()))
        if c.protocol is Protocol.LL128
        else c
        for c in reading.collectives
    )
    parts = tuple(
        replace(p, job=None, weights=_open(p.weights), why_not=(*p.why_not, LL128_ORDER_OPEN()))
        for p in reading.parts
    )
    return replace(
        reading,
        job=None,
        weights=_open(reading.weights),
        gathered=_open(reading.gathered),
        why_not=(*reading.why_not, LL128_ORDER_OPEN()),
        collectives=collectives,
        parts=parts,
    )


def _open(weights: Weights | None) -> Weights | None:
    return weights and replace(weights, complete=False, why_not=LL128_ORDER_OPEN())


def told(
    reading: Reading,
    *,
    evidence: Finding | None = None,
    assumed: Finding | None = None,
    linear: bool,
) -> Reading:
    """The reading in its order of lines, with what that rests on."""

    def of(job: LearnedJob | None) -> LearnedJob | None:
        if job is None or not uses_ll128(job):
            return job
        seen = (*job.evidence, evidence) if evidence else job.evidence
        rests = (*job.assumed, assumed) if assumed else job.assumed
        return msgspec.structs.replace(job, linear=linear, evidence=seen, assumed=rests)

    return replace(
        reading,
        job=of(reading.job),
        parts=tuple(replace(part, job=of(part.job)) for part in reading.parts),
        collectives=tuple(_assumed(c, assumed) for c in reading.collectives),
        formats=(*reading.formats, evidence) if evidence else reading.formats,
    )


def uses_ll128(job: LearnedJob) -> bool:
    """It carries something by that protocol."""
    return any(op.protocol is Protocol.LL128 for op in (*job.first, *job.each))


def _assumed(collective: Collective, finding: Finding | None) -> Collective:
    if finding is None or collective.protocol is not Protocol.LL128:
        return collective
    return replace(collective, assumed=(*collective.assumed, finding))
