"""A communicator whose trainer has parameters of several dtypes, read again by the stated model.

The wire tells shapes, and of dtypes no more than sizes of elements, where the bucket plan and the
sizes of all that is sent leave one way only: not with find_unused_parameters, which sends no plan,
and not of float16 beside bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from flowcheck.wire import ddp
from flowcheck.wire.learn.cuts.cut import Cut, Cuts, Purse, cut_stream
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.search.dtypes import holds, is_as_large
from flowcheck.wire.learn.search.tighten import tightened
from flowcheck.wire.learn.trainer.grammar import WEIGHTS, Habits, Trainer, Types
from flowcheck.wire.learn.trainer.habits import GRADIENTS
from flowcheck.wire.learn.trainer.iteration import named
from flowcheck.wire.learn.trainer.stages import Stage
from flowcheck.wire.stated import Stated


def typed_again(known: Communicator, stated: Stated, purse: Purse) -> Communicator | None:
    """By the stated model's dtypes; None where it has one only, or is not the trainer's: weights
    must have the sizes that these dtypes give, and gradients, which a hook may have made alike; and
    what the wire told without it must not explain both."""
    types = _types(known.habits, stated)
    if types is None:
        return None
    cuts = cut_stream(known.ring, Trainer(types), purse=purse)
    habits = Trainer(types).habits(cuts.ring, cuts.found)
    if cuts.unread > known.cuts.unread or habits.stage is not Stage.PLANNED:
        return None
    cuts = replace(cuts, found=named(cuts.found, habits, cuts.ring))
    if not _broadcast(habits, cuts, holds):
        return None
    more = _gradients(cuts) - _gradients(known.cuts)
    if more < 0 or (more == 0 and _broadcast(known.habits, known.cuts, is_as_large)):
        return None
    return replace(known, cuts=tightened(cuts), habits=habits)


def _gradients(cuts: Cuts) -> int:
    return sum(cut.op.meaning in GRADIENTS for cut in cuts.found)


def _broadcast(habits: Habits, cuts: Cuts, fits: Callable[[Cut, int], bool]) -> bool:
    """The start-up broadcasts hold the weights of each dtype."""
    sent = [cut for cut in cuts.found if cut.op.meaning == WEIGHTS]
    pieces = [size for _, size in habits.pieces]
    return 0 < len(pieces) <= len(sent) and all(map(fits, sent, pieces))


def _types(told: Habits, stated: Stated) -> Types | None:
    """Of the stated model, where it has several and the shapes that the trainer told."""
    own = stated.parameters
    kinds = tuple(p.dtype for p in own if p.dtype is not None)
    shapes = tuple((p.sizes, p.strides) for p in own)
    if len(set(kinds)) < 2 or len(kinds) < len(own) or not told.shapes:
        return None
    # The list that was sent may be cut in many ways; whether the stated one is among them it tells.
    if told.parameters != len(own) or _sent(shapes) != _sent(told.shapes[0].shapes):
        return None
    return Types(ddp.Shapes(shapes, 0), tuple(p.element_bytes for p in own), kinds)


def _sent(shapes: Sequence[ddp.Shape]) -> list[int]:
    return [value for sizes, strides in shapes for value in (*sizes, *strides)]
