"""What a job began with: the weights among its start-up broadcasts, and what lies beside them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from flowcheck.findings.catalog.collective_evidence import WEIGHTS_END_OPEN, WEIGHTS_IN_ONE_LINE
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_parameters import GRAIN_BYTES, LL_LINE_DATA_BYTES, Protocol
from flowcheck.wire.learn.reading import Collective, Deferred, Weights
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.trainer.element_size import element_size_told
from flowcheck.wire.learn.trainer.grammar import BUCKET, WEIGHTS, Habits
from flowcheck.wire.learn.trainer.habits import BUFFERS
from flowcheck.wire.learn.trainer.scalars import places_open, places_unsure
from flowcheck.wire.learn.verdict import apart
from flowcheck.wire.learn.verdict.collect import Found
from flowcheck.wire.learn.verdict.ends import end_open
from flowcheck.wire.learn.verdict.pads import hidden
from flowcheck.wire.training_job.gradient_buckets import BROADCAST_CAP_BYTES


def _in_whole_pieces(parts: Sequence[Collective], size: int, cap_bytes: int) -> bool:
    """The broadcasts are those torch makes of `size` bytes, of `cap_bytes` or more but the last,
    and nothing about them is in doubt."""
    at = 0
    for part in parts:
        if part.doubtful or part.conflicts:
            return False
        at += part.bytes
        if at >= size:
            return True
        if part.bytes < cap_bytes:
            return False
    return False


def beside(communicators: Sequence[Communicator], found: Sequence[Found]) -> tuple[int, bool]:
    """(bytes among the weights that are neither parameters nor the buffers that the first forward
    broadcasts by themselves, whether the wire tells that they are there: LL128 pads).

    torch/nn/parallel/distributed.py: _sync_module_states sends frozen parameters in their place,
    before and between the others; _sync_buffers sends buffers, which come behind them all.
    """
    for communicator, collected in zip(communicators, found, strict=True):
        size = communicator.habits.state_bytes
        if communicator.habits.own:
            continue
        sent = [c for c in collected.collectives if c.meaning in (WEIGHTS, BUFFERS)]
        if communicator.habits.types is not None and communicator.habits.types.sent:
            continue  # all of it is stated
        if communicator.habits.types is not None and size:
            rest = apart.beside(communicator.habits, sent, LL_LINE_DATA_BYTES)
            return (rest, True) if rest else hidden(communicator)
        held = at = 0
        while at < len(sent) and held < size:
            held, at = held + sent[at].bytes, at + 1
        rest = held - size
        if not size or not sent or rest < 0:
            continue
        whole = all(part.protocol is Protocol.SIMPLE for part in sent[:at])
        if rest < (1 if whole else LL_LINE_DATA_BYTES):
            return hidden(communicator)
        padded = any(part.protocol is Protocol.LL128 for part in sent[:at])
        grain = GRAIN_BYTES[Protocol.LL128] if padded else LL_LINE_DATA_BYTES
        if padded and rest < grain:
            return rest, False
        unlike = [abs(later.bytes - rest) for later in sent[at:]]
        if min(unlike, default=grain) >= grain:
            return rest, True
        return min(unlike), False
    return 0, False


def weights_of(communicators: Sequence[Communicator], found: Sequence[Found]) -> Weights | None:
    """What the start-up broadcasts held, cut to the parameters."""
    for communicator, collected in zip(communicators, found, strict=True):
        habits = communicator.habits
        parts: list[Collective] = [c for c in collected.collectives if c.meaning == WEIGHTS]
        size = habits.state_bytes
        own = habits, communicator.cuts.found, communicator.ring
        if not parts or not size or not element_size_told(*own):
            continue
        if habits.types is not None:
            every = [c for c in collected.collectives if c.meaning in (WEIGHTS, BUFFERS)]
            return _apart(habits, parts, every[len(habits.pieces) :])
        later = any(part.deferred is not None for part in parts)
        result = np.zeros(0, np.uint8) if later else _joined(parts, size, None)[0]
        missing = []
        at = 0
        for part in parts:
            missing += [(a + at, min(b + at, size)) for a, b in part.missing if a + at < size]
            at += part.bytes
        protocol = parts[-1].protocol
        grain = 1 if habits.own else GRAIN_BYTES[protocol]
        exact = 0 <= sum(part.bytes for part in parts) - size < grain
        reduced = habits.bytes_of(range(habits.parameters), habits.reduced) if habits.reduced else 0
        sums = [c.bytes for c in collected.collectives if c.meaning == BUCKET]
        # Of the first iteration, which has one bucket but with find_unused_parameters.
        first = sum(sums[: len(habits.buckets)]) if habits.mapped else 0
        agreed = exact or (reduced > 0 and reduced in (*sums, first))
        # In one line nothing tells the size of an element, nor which cut of the shapes it is.
        told = bool(habits.own)  # by the model that was stated
        open_end = not told and end_open(habits, size, protocol, named=True)
        why_not = WEIGHTS_END_OPEN() if open_end else None
        if not told and size <= max(grain, LL_LINE_DATA_BYTES):
            why_not = WEIGHTS_IN_ONE_LINE(size)
        pieces = _in_whole_pieces(parts, size, 0 if habits.own else BROADCAST_CAP_BYTES)
        whole = agreed and why_not is None and not missing and pieces
        return Weights(
            shapes=tuple(sizes for sizes, _ in habits.shapes[0].shapes),
            result=result,
            missing=tuple(missing),
            complete=whole,
            why_not=why_not or places_unsure(habits),
            assumed=_assumed(habits, parts),
            deferred=Deferred(size, partial(_joined, tuple(parts), size)) if later else None,
        )
    return None


def _joined(
    parts: Sequence[Collective], size: int, _: NDArray[np.uint8] | None
) -> tuple[NDArray[np.uint8], bool]:
    """(the first `size` bytes of what they hold, whether no two copies of a byte differ)."""
    whole, at, sound = np.empty(sum(part.bytes for part in parts), np.uint8), 0, True
    for part in parts:
        room = whole[at : at + part.bytes]
        data, own = (part.result, True) if part.deferred is None else part.deferred.made(room)
        if data is not room:
            room[len(data) :] = 0  # of a part on its way nothing is put together yet
            room[: len(data)] = data
        at, sound = at + part.bytes, sound and own
    return whole[:size], sound


def _assumed(habits: Habits, parts: Sequence[Collective]) -> tuple[Finding, ...]:
    """What the broadcasts rest on, and where parameters of one number are taken to stand."""
    told = dict.fromkeys(finding for part in parts for finding in part.assumed)
    open_places = places_open(habits)
    return (*told, open_places) if open_places else tuple(told)


def _apart(habits: Habits, parts: Sequence[Collective], later: Sequence[Collective]) -> Weights:
    """Weights of several dtypes, or among other tensors of the stated model."""
    sent = apart.in_registration_order(habits, parts)
    still, forwards = apart.still(habits, sent.beside, later)
    return Weights(
        shapes=tuple(sizes for sizes, _ in habits.shapes[0].shapes),
        result=sent.parameters,
        missing=sent.missing,
        complete=not sent.missing and sent.whole and apart.whole(habits, parts),
        why_not=places_unsure(habits),
        assumed=_assumed(habits, parts[: len(habits.pieces)]),
        beside=sent.beside,
        still=still,
        forwards=forwards,
    )
