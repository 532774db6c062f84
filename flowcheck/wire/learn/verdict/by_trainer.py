"""What is told of collectives by the trainer's program alone, where nothing bears that program out.

DDP's start-up gives every later size. On the wire a tensor in LL128 is as large as any that ends in
the same group of lines, so sizes that a program gives fit there though the trainer is another one:
one with parameters of several dtypes, or with other buckets. A job that was learned bears them out,
and so does one that is refused for what it does besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flowcheck.findings.catalog.collective_evidence import (
    KIND_FROM_SIZES,
    SIZE_BY_TRAINER,
    WEIGHTS_END_OPEN,
    WEIGHTS_IN_ONE_LINE,
)
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, Protocol
from flowcheck.wire.learn.reading import Collective, Part
from flowcheck.wire.learn.trainer.habits import BUCKET, COUNT, PART, SHAPES, WEIGHTS

SIZED = (SHAPES, WEIGHTS, BUCKET, PART)
"""As many bytes as the program says."""
BEHIND = {COUNT: SHAPES, SHAPES: WEIGHTS}
"""{message of the start-up: the one that bears out that it is one}"""


def with_assumptions(
    collectives: Sequence[Collective], parts: Sequence[Part]
) -> tuple[Collective, ...]:
    """The collectives, with what those rest on that only a program speaks for."""
    of = {part.communicator: part for part in parts}
    seen = {(c.communicator, c.meaning) for c in collectives}
    found = []
    for one in collectives:
        told = _assumed(one, of.get(one.communicator), seen)
        told = tuple(each for each in told if each not in one.assumed)
        found.append(replace(one, assumed=(*one.assumed, *told)) if told else one)
    return tuple(found)


def weights_with_assumptions(part: Part, collectives: Sequence[Collective]) -> Part:
    """The same of the weights of a job that is refused."""
    weights = part.weights
    if weights is None or _borne_out(part):
        return part
    sent = (c for c in collectives if c.meaning == WEIGHTS)
    told = (each for c in sent for each in c.assumed if each.is_any_of(SIZE_BY_TRAINER))
    assumed = tuple(dict.fromkeys((*weights.assumed, *told)))
    return replace(part, weights=replace(weights, assumed=assumed))


def _assumed(one: Collective, part: Part | None, seen: set[tuple[int, str]]) -> tuple[Finding, ...]:
    kind = CollectiveKind(one.kind) if one.meaning in (*SIZED, *BEHIND) else None
    if kind is None:
        return ()
    told: list[Finding] = []
    behind = BEHIND.get(one.meaning)
    if behind is not None and (one.communicator, behind) not in seen:
        told.append(KIND_FROM_SIZES(kind))
    open_end = part.weights.why_not if part is not None and part.weights is not None else None
    lines = one.protocol is not Protocol.SIMPLE
    if one.meaning in SIZED and one.meaning != SHAPES and open_end is not None and lines:
        told += [open_end] * open_end.is_any_of(WEIGHTS_END_OPEN, WEIGHTS_IN_ONE_LINE)
    if one.meaning in SIZED and one.protocol is Protocol.LL128 and not _borne_out(part):
        told.append(SIZE_BY_TRAINER())
    return tuple(told)


def _borne_out(part: Part | None) -> bool:
    return part is not None and part.job is not None
