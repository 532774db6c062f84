"""What a job began with: the weights among its start-up broadcasts, and what lies beside them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from flowcheck.findings.catalog.collective_evidence import (
    WEIGHTS_END_OPEN,
    WEIGHTS_IN_ONE_LINE,
    WEIGHTS_SPREAD_OPEN,
)
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_parameters import GRAIN_BYTES, LL_LINE_DATA_BYTES, Protocol
from flowcheck.wire.learn.reading import Collective, Deferred, Put, Weights
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.trainer.element_size import element_size_told
from flowcheck.wire.learn.trainer.grammar import BUCKET, WEIGHTS, Habits
from flowcheck.wire.learn.trainer.habits import BUFFERS
from flowcheck.wire.learn.trainer.scalars import places_open, places_unsure
from flowcheck.wire.learn.verdict import apart
from flowcheck.wire.learn.verdict.collect import Found
from flowcheck.wire.learn.verdict.ends import end_open
from flowcheck.wire.learn.verdict.pads import hidden
from flowcheck.wire.traffic.observed_messages import Range
from flowcheck.wire.training_job.gradient_buckets import BROADCAST_CAP_BYTES


def _in_whole_pieces(parts: Sequence[Collective], size: int, cap_bytes: int) -> bool:
    """The broadcasts are those torch makes of `size` bytes, of `cap_bytes` or more but the last,
    and nothing about them is in doubt."""
    at = 0
    for part in parts:
        if part.doubtful or part.contradictory:
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
        later = any(part.deferred is not None or len(part.result) < part.bytes for part in parts)
        joined = _joined(parts, size)
        missing, differing = [], []
        at = 0
        for part in parts:
            missing += [(a + at, min(b + at, size)) for a, b in part.missing if a + at < size]
            differing += [one.within(at, size) for one in part.differing if one.start + at < size]
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
        if any(one.is_any_of(WEIGHTS_SPREAD_OPEN) for part in parts for one in part.assumed):
            why_not = WEIGHTS_SPREAD_OPEN()
        if not told and size <= max(grain, LL_LINE_DATA_BYTES):
            why_not = WEIGHTS_IN_ONE_LINE(size)
        pieces = _in_whole_pieces(parts, size, 0 if habits.own else BROADCAST_CAP_BYTES)
        certain = agreed and why_not is None and pieces
        return Weights(
            shapes=tuple(sizes for sizes, _ in habits.shapes[0].shapes),
            result=np.zeros(0, np.uint8) if later else joined.made()[0],
            missing=tuple(missing),
            complete=certain and not missing,
            why_not=why_not or places_unsure(habits),
            assumed=_assumed(habits, parts),
            differing=tuple(differing),
            deferred=joined if later else None,
            element_bytes=min(habits.each),
            only_lacks=certain and _some_of(missing, size),
        )
    return None


def _some_of(missing: Sequence[Range], size: int) -> bool:
    """Something is missing, and not all."""
    return 0 < sum(stop - start for start, stop in missing) < size


def _joined(parts: Sequence[Collective], size: int) -> Deferred:
    """The first `size` bytes of what they hold; of a part on its way, zeros."""

    def make(put: Put) -> bool:
        at, sound = 0, True
        for part in parts:
            own = partial(_put_before, put, size, at)
            if part.deferred is not None:
                sound &= part.deferred.give(own)
            else:
                whole = np.zeros(part.bytes, np.uint8)
                whole[: len(part.result)] = part.result
                own(0, whole)
            at += part.bytes
        return sound

    def sources() -> bytes:
        told = hashlib.sha256(repr((size, [part.bytes for part in parts])).encode())
        for part in parts:
            told.update(part.result.data if part.deferred is None else part.deferred.sources)
        return told.digest()

    return Deferred(size, make, sources)


def _put_before(put: Put, size: int, at: int, start: int, data: NDArray[np.uint8]) -> None:
    """Puts `data` at `at` + `start`, as far as it lies before `size`."""
    if (left := size - at - start) > 0:
        put(at + start, data[:left])


def _assumed(habits: Habits, parts: Sequence[Collective]) -> tuple[Finding, ...]:
    """What the broadcasts rest on, and where parameters of one number are taken to stand."""
    told = dict.fromkeys(finding for part in parts for finding in part.assumed)
    open_places = places_open(habits)
    return (*told, open_places) if open_places else tuple(told)


def _apart(habits: Habits, parts: Sequence[Collective], later: Sequence[Collective]) -> Weights:
    """Weights of several dtypes, or among other tensors of the stated model."""
    sent = apart.in_registration_order(habits, parts)
    still, forwards = apart.still(habits, sent.beside, later)
    certain = sent.whole and apart.whole(habits, parts)
    return Weights(
        shapes=tuple(sizes for sizes, _ in habits.shapes[0].shapes),
        result=sent.parameters,
        missing=sent.missing,
        complete=certain and not sent.missing,
        only_lacks=certain and _some_of(sent.missing, len(sent.parameters)),
        why_not=places_unsure(habits),
        assumed=_assumed(habits, parts[: len(habits.pieces)]),
        differing=sent.differing,
        beside=sent.beside,
        still=still,
        forwards=forwards,
    )
