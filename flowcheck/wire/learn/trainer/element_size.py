"""Whether something that was seen bears out how many bytes a parameter's element has.

A trainer's plan gives every size in elements. Where the sends of the weights were not seen the
first guess fits, and so does every other one: what holds nothing is as long as anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.trainer.habits import (
    BUCKET,
    BUFFERS,
    COMPRESSED_BYTES,
    PART,
    WEIGHTS,
    Habits,
)
from flowcheck.wire.training_job.gradient_buckets import BROADCAST_CAP_BYTES

SIZED = (WEIGHTS, PART, BUCKET)
"""As large as so many elements."""


def element_size_told(habits: Habits, cuts: Sequence[Cut], ring: Ring) -> bool:
    """By the model that is stated, by a broadcast of weights, or by a bucket of gradients that are
    not as long as a hook would make those of any parameter."""
    if habits.own is not None or (habits.types is not None and habits.types.stated):
        return True
    as_parameters = habits.reduced == habits.each and COMPRESSED_BYTES not in habits.each
    telling = [cut for cut in in_start_up(habits, cuts) if cut.op.meaning == WEIGHTS]
    if as_parameters:
        telling += [cut for cut in cuts if cut.op.meaning in (BUCKET, PART)]
    return any(_seen(cut, ring) for cut in telling)


def in_start_up(habits: Habits, cuts: Sequence[Cut]) -> tuple[Cut, ...]:
    """The cuts, those named initial weights as what they are. Of the broadcasts before the first
    sum some hold parameters: all that are left of a type, or as much as torch sends at once. What
    comes behind these is buffers: of other types, and of the first forward. Others are none of the
    trainer's start-up."""
    sent = [cut.op.work_bytes for cut in cuts if cut.op.meaning == WEIGHTS]
    meanings = iter(_meanings(habits, sent))
    return tuple(_meant(cut, next(meanings)) if cut.op.meaning == WEIGHTS else cut for cut in cuts)


def _meant(cut: Cut, meaning: str) -> Cut:
    """With that meaning; without one it is known by its size alone."""
    licensed = cut.op.licensed if meaning else ""
    return replace(cut, op=replace(cut.op, meaning=meaning, licensed=licensed))


def _meanings(habits: Habits, sizes: Sequence[int]) -> Iterator[str]:
    """Of start-up broadcasts of so many bytes (torch/nn/parallel/distributed.py:
    _sync_module_states, _sync_buffers)."""
    if habits.types is not None or habits.own is not None:
        pieces = len(sizes) if habits.types is None else len(habits.pieces)
        yield from (WEIGHTS if i < pieces else BUFFERS for i in range(len(sizes)))
        return
    if not habits.each:
        # Of several types, if they can hold them all.
        yield from [WEIGHTS if sum(sizes) >= habits.elements else ""] * len(sizes)
        return
    left = habits.state_bytes
    for size in sizes:
        if left <= 0:
            yield BUFFERS
        elif size >= min(left, BROADCAST_CAP_BYTES):
            left -= size
            yield WEIGHTS
        else:
            yield ""


def _seen(cut: Cut, ring: Ring) -> bool:
    """A send of it that holds something."""
    return cut.matched > 0 and any(
        send.wire_bytes and number in stream.sends for stream, number, send in cut.sends(ring)
    )
