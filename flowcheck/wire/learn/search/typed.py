"""A communicator whose trainer has parameters of several dtypes, read again by the stated model.

The wire tells shapes, and of dtypes no more than sizes of elements, where the bucket plan and the
sizes of all that is sent leave one way only: not with find_unused_parameters, which sends no plan,
and not of float16 beside bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from flowcheck.wire.ddp_startup import ddp_messages
from flowcheck.wire.learn.cuts.cut import Cut, Cuts, Purse, cut_again
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.search.dtypes import holds, is_as_large
from flowcheck.wire.learn.search.tighten import tightened
from flowcheck.wire.learn.trainer.grammar import WEIGHTS, Habits, Trainer, Types
from flowcheck.wire.learn.trainer.habits import COUNT, GRADIENTS
from flowcheck.wire.learn.trainer.iteration import named
from flowcheck.wire.learn.trainer.stages import Stage
from flowcheck.wire.training_job.operator_statements import OperatorStatement

BEGUN = (Stage.STEPPED, Stage.ORDERED, Stage.PLANNED)


def typed_again(
    known: Communicator, stated: OperatorStatement, purse: Purse
) -> Communicator | None:
    """By the stated model's dtypes, frozen parameters and buffers; None where it has one dtype and
    none of these, or is not the trainer's: weights must have the sizes that these give, and
    gradients, which a hook may have made alike; and of dtypes alone, what the wire told without
    them must not explain both."""
    counted = any(cut.op.meaning == COUNT for cut in known.cuts.found)
    for types in _types(known.habits, stated, counted=counted):
        found = _by(types, known, purse)
        if found is not None:
            return found
    return None


def _by(types: Types, known: Communicator, purse: Purse) -> Communicator | None:
    cuts = cut_again(known.ring, Trainer(types), purse)
    habits = Trainer(types).habits(cuts.ring, cuts.found)
    # What is sent beside the weights tells more than they do: also of a life that ends early.
    enough = BEGUN if types.beside else (Stage.PLANNED,)
    if cuts.unread > known.cuts.unread or habits.stage not in enough:
        return None
    cuts = replace(cuts, found=named(cuts.found, habits, cuts.ring))
    if not _broadcast(habits, cuts, is_as_large if types.sent else holds):
        return None
    more = _gradients(cuts) - _gradients(known.cuts)
    alike = not types.beside and _broadcast(known.habits, known.cuts, is_as_large)
    if more < 0 or (more == 0 and alike):
        return None
    return replace(known, cuts=tightened(cuts), habits=habits)


def _gradients(cuts: Cuts) -> int:
    return sum(cut.op.meaning in GRADIENTS for cut in cuts.found)


def _broadcast(habits: Habits, cuts: Cuts, fits: Callable[[Cut, int], bool]) -> bool:
    """The start-up broadcasts hold the weights of each dtype."""
    sent = [cut for cut in cuts.found if cut.op.meaning == WEIGHTS]
    pieces = [size for _, size in habits.pieces]
    return 0 < len(pieces) <= len(sent) and all(map(fits, sent, pieces))


def _types(told: Habits, stated: OperatorStatement, *, counted: bool) -> Iterator[Types]:
    """Of the stated model, where it has the shapes that the trainer told; with the buffers among
    the weights, and without (broadcast_buffers=False). counted: a DDP told how many parameters
    there are, and where their shapes end, LL128 need not tell."""
    own = stated.parameters
    kinds = tuple(p.dtype for p in own if p.dtype is not None)
    shapes = ddp_messages.ParsedShapes(tuple((p.sizes, p.strides) for p in own), 0)
    unread = counted and not told.shapes
    if len(kinds) < len(own) or not (told.shapes or unread):
        return
    # The list that was sent may be cut in many ways; whether the stated one is among them it tells.
    if not unread and (told.parameters != len(own) or shapes.sent != told.shapes[0].sent):
        return
    types = Types(shapes, tuple(p.element_bytes for p in own), kinds)
    several = len(set(kinds)) > 1
    parameters = tuple(tensor for tensor in stated.module_tensors if not tensor.buffer)
    for sent in dict.fromkeys((stated.module_tensors, parameters)):
        typed = replace(types, sent=sent)
        if typed.beside or (sent and (several or unread)):
            yield typed
    if several:
        yield types  # another module is stated, or one that ignores some of its tensors
