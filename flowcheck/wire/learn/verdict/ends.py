"""Where a tensor ends inside its last LL line or LL128 group, and when nothing tells.

A line holds 8 bytes, a group 1920; NCCL says nothing of how many of the last one it means. A
tensor whose size no plan gives, or whose plan fits others as well, may be some bytes shorter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flowcheck.findings.catalog.collective_evidence import END_OPEN
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_parameters import (
    GRAIN_BYTES,
    LL_LINE_DATA_BYTES,
    CollectiveKind,
    Protocol,
    round_up,
)
from flowcheck.wire.collectives.send_table import Schedule, same_sizes
from flowcheck.wire.learn.cuts.candidates import Op, schedules_of
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.cuts.match import beyond_end
from flowcheck.wire.learn.cuts.place import Canvas, result_bytes
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.search.exponents import is_one_of, odd_end
from flowcheck.wire.learn.search.fills import CHUNK_GRAIN_BYTES, least_size, most_size
from flowcheck.wire.learn.trainer.grammar import BUCKET, ELEMENT_BYTES, Habits
from flowcheck.wire.learn.trainer.habits import BUFFERS, GRADIENTS, WEIGHTS
from flowcheck.wire.learn.trainer.iteration import begun_at, disputed, planned_at
from flowcheck.wire.learn.trainer.stages import Stage


class Ends:
    """Which all-reduces of one communicator end nobody knows where."""

    def __init__(self, communicator: Communicator) -> None:
        self._cuts = communicator.cuts.found
        habits = communicator.habits
        self._typed = habits.types is not None
        self._stated = self._typed or habits.own is not None
        self._buffers = any(cut.op.meaning == BUFFERS for cut in self._cuts)
        sizes = {(c.op.work_bytes, c.op.protocol) for c in self._cuts if c.op.meaning == BUCKET}
        # Where nothing was lost but what comes after the capture, and nothing as large came
        # between, order tells which bucket it is.
        ring = self._ring = communicator.ring
        self._odd: dict[Op, bool] = {}
        lost = next((i for i, cut in enumerate(self._cuts) if cut.lost), len(self._cuts))
        self._counted = all(cut.lost == beyond_end(ring, cut) for cut in self._cuts[lost:])
        self._either = disputed(self._cuts, habits.reduces)
        self._planned = _ordered_from(habits, self._cuts)
        self._rivals = {
            named: {one for one in sizes if end_open(habits, *one, named=named)}
            for named in (False, True)
        }
        # Behind what was lost the plan may hold already, unseen, with buckets of nearly the
        # size of all parameters.
        self._hidden_from = len(self._cuts) if habits.stage is Stage.PLANNED else lost

    def open(self, i: int, canvas: Canvas) -> bool:
        """Neither a plan nor a byte tells where the result of cut `i` ends."""
        return not self.told(i) and not self._by_content(i, canvas)

    def group_open(self, cut: Cut) -> bool:
        """It passes on a tensor of which not even the stated model says how much of its last group
        of lines it fills. A line of LL, of 8 bytes, is mostly full."""
        op = cut.op
        buffers = op.from_wire and op.meaning == BUFFERS
        return buffers and op.protocol is Protocol.LL128 and not self._typed

    def spread_open(self, cut: Cut) -> bool:
        """Weights that may have been broadcast with buffers behind them: another total is as large
        on the wire, and has what later channels carry at other places. Forwards that send buffers
        say that there are some; the wire does not say of which type."""
        op, ring = cut.op, self._ring
        if op.meaning != WEIGHTS or self._stated or GRAIN_BYTES[op.protocol] == 1:
            return False
        by_wire = op.from_wire or op.slack_is_open
        if not (self._buffers or by_wire) or _used(cut.schedules) < 2:
            return False
        sizes = [most_size(op, cut, ring)] + [least_size(op, cut, ring)] * by_wire
        others = (schedules_of(replace(op, work_bytes=s), cut.rules[0], ring) for s in sizes)
        return any(_first_bytes(one) != _first_bytes(cut.schedules) for one in others)

    def assumed(self, i: int, canvas: Canvas) -> bool:
        """Only what stands in its last line tells where the result of cut `i` ends."""
        return not self.told(i) and self._by_content(i, canvas)

    def _by_content(self, i: int, canvas: Canvas) -> bool:
        # What fills up a group may be anything: of another tensor, even of the same kind.
        op = self._cuts[i].op
        if op.protocol is Protocol.LL128 or not _fills_last_line(canvas):
            return False
        if op not in self._odd:
            self._odd[op] = any(odd_end(cut, self._ring) for cut in self._cuts if cut.op == op)
        return not self._odd[op]

    def _placed(self, i: int) -> bool:
        """Its place in an iteration of the plan tells that cut `i` is the bucket it passes for."""
        return i >= self._planned and self._known(i)

    def _known(self, i: int) -> bool:
        """Nothing came between, or was lost, that may be the bucket in place of cut `i`."""
        return self._counted and i not in self._either

    def told(self, i: int) -> bool:
        """The plan, or its kind, tells where the result of cut `i` ends."""
        op = self._cuts[i].op
        if op.kind is not CollectiveKind.ALL_REDUCE:
            return True
        told = not op.slack_is_open or op.end is not None
        grain = GRAIN_BYTES[op.protocol]
        if op.meaning == BUCKET and grain > 1:
            # A metric of one number is as large on the wire as a bucket of one line or group.
            told = (op.work_bytes > grain or self._placed(i)) and i < self._hidden_from
            told = told and (op.work_bytes, op.protocol) not in self._rivals[self._known(i)]
        return told


def _ordered_from(habits: Habits, cuts: Sequence[Cut]) -> int:
    """Index from which on order tells which bucket an all-reduce is: of iteration 0, if it had its
    buckets and nothing else."""
    begin, planned = begun_at(cuts), planned_at(cuts)
    first = [c for c in cuts[begin:planned] if c.op.kind is CollectiveKind.ALL_REDUCE]
    buckets = sum(cut.op.meaning == BUCKET for cut in first)
    due = len(habits.buckets if habits.mapped else habits.first_buckets) * (1 + habits.static)
    alone = all(cut.op.meaning in GRADIENTS for cut in first) and buckets == due
    return begin if alone else planned


def places_open(cut: Cut, ring: Ring) -> bool:
    """An all-reduce of other bytes, as large on the wire, has its chunks at other places: a group
    of LL128 does not tell how much of it a chunk fills."""
    op = cut.op
    if op.protocol is not Protocol.LL128 or op.kind is not CollectiveKind.ALL_REDUCE:
        return False
    each = op.element_bytes
    for less in (CHUNK_GRAIN_BYTES, CHUNK_GRAIN_BYTES * ring.ranks, GRAIN_BYTES[op.protocol] // 2):
        size = (op.work_bytes - less) // each * each
        if size <= 0:
            continue
        other = schedules_of(replace(op, work_bytes=size), cut.rules[0], ring)
        if same_sizes(other, cut.schedules) and _first_bytes(other) != _first_bytes(cut.schedules):
            return True
    return False


def _used(schedules: Sequence[Schedule]) -> int:
    """Channels that carry something."""
    return max(sum(1 for sends in edge if len(sends)) for edge in schedules)


def _first_bytes(schedules: Sequence[Schedule]) -> list[list[list[int]]]:
    """[edge][channel][send]."""
    return [[[s.start_byte for s in channel] for channel in edge] for edge in schedules]


def open_range(cut: Cut, ring: Ring) -> Finding:
    """Of how many bytes the result may be: all that are as large on the wire."""
    op, each = replace(cut.op, type_bytes=0), cut.op.type_bytes or 1
    least = round_up(least_size(op, cut, ring), each)
    most = most_size(op, cut, ring) // each * each
    least, most = (
        result_bytes(replace(cut, op=replace(op, work_bytes=size)), ring) for size in (least, most)
    )
    return END_OPEN(least=least, most=most)


def uncover_end(canvas: Canvas, protocol: Protocol) -> None:
    """Not one byte of the last line or group is sure to be the tensor's."""
    grain = GRAIN_BYTES[protocol]
    canvas.covered[(canvas.size_bytes - 1) // grain * grain :] = False


def end_open(habits: Habits, size: int, protocol: Protocol, *, named: bool = False) -> bool:
    """The tensor of `size` bytes (all parameters, or a bucket) may end elsewhere inside its last
    line, and no size on the wire tells: another bucket fills the same lines, or other shapes, or
    elements of another size, fit the start-up as well. named: which tensor it is, is known."""
    grain = GRAIN_BYTES[protocol]
    if not habits.shapes or grain == 1:
        return False
    tensors = (tuple(range(len(habits.shapes[0].counts))), *habits.buckets)
    if named:
        types = {habits.each, habits.reduced} - {()}
        own = (of for of in tensors if any(habits.bytes_of(of, each) == size for each in types))
        tensors = tuple(own) or tensors
    ends: set[int] = set()
    for cut in habits.shapes:
        for element_bytes in _types(habits, grain) if named else ELEMENT_BYTES:
            if cut.elements * element_bytes <= round_up(habits.weights_bytes, grain):
                ends |= {sum(cut.counts[i] for i in of) * element_bytes for of in tensors}
    return any(end != size and round_up(end, grain) == round_up(size, grain) for end in ends)


def _types(habits: Habits, grain: int) -> tuple[int, ...]:
    """Bytes an element may have: buckets of one type all have, on the wire, the sizes it gives."""
    own = set(habits.reduced or habits.each)
    if len(own) != 1 or len(habits.shapes) != 1:
        return ELEMENT_BYTES
    counts = habits.shapes[0].counts
    tensors = habits.buckets
    if habits.reduced:
        # Iteration 0 reduced them all in one.
        tensors = (*tensors, *habits.first_buckets)
    buckets = [sum(counts[i] for i in of) for of in tensors]
    [told] = own
    sizes = [round_up(count * told, grain) for count in buckets]
    return tuple(
        each
        for each in ELEMENT_BYTES
        if [round_up(count * each, grain) for count in buckets] == sizes
    )


def _fills_last_line(canvas: Canvas) -> bool:
    """The tensor fills its last line and what stands there looks like the rest of it. A tensor of
    one line has no rest."""
    if canvas.size_bytes <= LL_LINE_DATA_BYTES:
        return False
    if canvas.size_bytes % LL_LINE_DATA_BYTES or not canvas.covered[-4:].all():
        return False
    words = canvas.result.reshape(-1, 4)
    small_integers = bool((words[:, 2:] == 0).all(axis=1).mean() > 0.5)
    if small_integers:
        return bool(words[-1].any())
    return bool(words[-1, 2:].any()) and is_one_of(words[-1], words[:-1])
