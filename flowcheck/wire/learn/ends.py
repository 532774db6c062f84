"""Where a tensor ends inside its last LL line, and when nothing tells.

A line holds 8 bytes; NCCL says nothing of how many of the last one it means. A tensor whose size
no plan gives, or whose plan fits others as well, may be some bytes shorter than its lines.
"""

from __future__ import annotations

from flowcheck.wire.learn.grammar import BUCKET, ELEMENT_BYTES, Habits, Stage
from flowcheck.wire.learn.place import Canvas
from flowcheck.wire.learn.search import Communicator
from flowcheck.wire.terms import LL_LINE_DATA_BYTES, Kind, Protocol, round_up

END_OPEN = "the end of the tensor inside its last line"


class Ends:
    """Which all-reduces of one communicator end nobody knows where."""

    def __init__(self, communicator: Communicator) -> None:
        self._cuts = communicator.cuts.found
        habits = communicator.habits
        sizes = {cut.op.work_bytes for cut in self._cuts if cut.op.meaning == BUCKET}
        self._rivals = {size for size in sizes if end_open(habits, size)}
        # Behind what was lost the plan may hold already, unseen, with buckets of nearly the
        # size of all parameters.
        lost = next((i for i, cut in enumerate(self._cuts) if cut.lost), len(self._cuts))
        self._hidden_from = len(self._cuts) if habits.stage is Stage.PLANNED else lost

    def open(self, i: int, canvas: Canvas) -> bool:
        """Neither a plan nor a byte tells where the result of cut `i` ends."""
        op = self._cuts[i].op
        if op.kind is not Kind.ALL_REDUCE:
            return False
        told = not op.slack_is_open
        if op.meaning == BUCKET and op.protocol is Protocol.LL:
            # A metric of one number is as large on the wire as a bucket of one line.
            told = op.work_bytes > LL_LINE_DATA_BYTES and i < self._hidden_from
            told = told and op.work_bytes not in self._rivals
        return not told and not _fills_last_line(canvas)


def uncover_end(canvas: Canvas) -> None:
    """Not one byte of the last line is sure to be the tensor's."""
    canvas.covered[(canvas.size_bytes - 1) // LL_LINE_DATA_BYTES * LL_LINE_DATA_BYTES :] = False


def end_open(habits: Habits, size: int) -> bool:
    """The tensor of `size` bytes (all parameters, or a bucket) may end elsewhere inside its last
    line, and no size on the wire tells: another bucket fills the same lines, or other shapes, or
    elements of another size, fit the start-up as well."""
    if not habits.shapes:
        return False
    tensors = (tuple(range(len(habits.shapes[0].counts))), *habits.buckets)
    ends: set[int] = set()
    for cut in habits.shapes:
        for element_bytes in ELEMENT_BYTES:
            if cut.elements * element_bytes <= _lines(habits.weights_bytes):
                ends |= {sum(cut.counts[i] for i in of) * element_bytes for of in tensors}
    return any(end != size and _lines(end) == _lines(size) for end in ends)


def _lines(size: int) -> int:
    """Data bytes of the LL lines that hold `size`."""
    return round_up(size, LL_LINE_DATA_BYTES)


def _fills_last_line(canvas: Canvas) -> bool:
    """The tensor fills its last line and what stands there looks like the rest of it."""
    if canvas.size_bytes % LL_LINE_DATA_BYTES or not canvas.covered[-4:].all():
        return False
    words = canvas.result.reshape(-1, 4)
    small_integers = bool((words[:, 2:] == 0).all(axis=1).mean() > 0.5)
    return bool(words[-1].any() and (words[-1, 2:].any() or small_integers))
