"""Which elements of a replica rest on bytes that never came: its taint.

A step of which bytes are missing is made with zeros in their place. By a rule that steps each
element by itself (`OptimizerConfig.per_element`) only those elements are wrong from then on, in the
parameters and in every optimizer state, and all others stay exact. What was missing of each step
stands in a file beside the replica's versions, which is written before the step is committed: a
kill between the two leaves more taint than there is, never less.

Elements are counted over all parameters in registration order, inside a parameter in memory order
(param_layout.py), from 0.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowcheck.atomic_write import write_atomically
from flowcheck.errors import DECODE_ERRORS, StateError
from flowcheck.findings.catalog.replica_state_errors import TAINT_UNREADABLE
from flowcheck.findings.catalog.restored_state import NAMES, NAMES_AND_MORE, TAINTED_ELEMENTS
from flowcheck.findings.finding import Finding
from flowcheck.plane.shared_memory.merged_ranges import merged
from flowcheck.replica.element_ranges import (
    Ranges,
    cut_at,
    difference,
    elements_in,
    intersection,
    no_ranges,
    union,
)
from flowcheck.replica.param_layout import Layout, dtype_size_bytes
from flowcheck.replica.state_file.file_header import Commit

SUFFIX = ".taint"
RANGES_MAX = 1 << 16
"""Ranges that are kept apart, of all steps together. Beyond them those with the least room between
become one, which taints what lies between too. A choice: more makes the file longer, which is
written anew with each step that lacks something."""

SHOWN = 3
"""Most names of parameters in a sentence. A choice of layout."""
ByteRange = tuple[int, int]


class TaintedRange(msgspec.Struct, frozen=True, array_like=True):
    """Elements of one parameter, [start, stop) in memory order, and the first step that lacked a
    byte of them."""

    start: int
    stop: int
    since: int


NEVER = 2**62
"""Behind every step."""
TaintedRanges = dict[str, tuple[TaintedRange, ...]]
"""{parameter: its tainted elements, ascending}; {}: none."""


class Loss(msgspec.Struct, frozen=True):
    """What steps lacked."""

    first: int
    last: int
    """The step; a range of steps where several were put together."""
    elements: bytes
    """`Ranges`, as little-endian int64."""
    until: int = NEVER
    """The step whose whole state was given since: from there on nothing of this is in it."""

    @classmethod
    def of(cls, step: int, ranges: Ranges) -> Loss:
        return cls(step, step, ranges.astype("<i8").tobytes())

    def is_in(self, step: int) -> bool:
        """Whether a step rests on it."""
        return self.first <= step < self.until

    @property
    def ranges(self) -> Ranges:
        return np.frombuffer(self.elements, "<i8").astype(np.int64).reshape(-1, 2)


def tainted_elements(tainted: TaintedRanges) -> int:
    """How many elements of the parameters are tainted."""
    return sum(one.stop - one.start for ranges in tainted.values() for one in ranges)


def tainted_since(tainted: TaintedRanges) -> int:
    """The first step that lacked something which still matters. Of no taint: ValueError."""
    return min(one.since for ranges in tainted.values() for one in ranges)


def tainted_finding(tainted: TaintedRanges, layout: Layout) -> Finding:
    """What is to be told of a step's taint, which is not empty."""
    count, whole = tainted_elements(tainted), sum(p.elements for p in layout.parameters)
    shown, more = tuple(tainted)[:SHOWN], len(tainted) - SHOWN
    return TAINTED_ELEMENTS(
        elements=count,
        all=whole,
        percent=float(f"{100 * count / whole:.2g}"),
        parameters=NAMES(shown) if more <= 0 else NAMES_AND_MORE(names=shown, more=more),
        since=tainted_since(tainted),
    )


def missing_elements(layout: Layout, missing: Iterable[ByteRange]) -> Ranges:
    """The elements that byte ranges of a gradient touch. missing: [start, stop) of
    [layout.gradient_bytes], registration order; what lies behind is none of the gradient's."""
    ranges = np.array(list(missing), np.int64).reshape(-1, 2)
    kinds = [layout.gradient_dtype or layout.dtype_of(p) for p in layout.parameters]
    size = np.array([dtype_size_bytes(kind) for kind in kinds], np.int64)
    count = np.array([p.elements for p in layout.parameters], np.int64)
    at_byte = np.append(0, np.cumsum(size * count))
    at_element = np.append(0, np.cumsum(count))
    # A range touches the parameters [first, behind); each of both makes a row.
    first = np.maximum(np.searchsorted(at_byte, ranges[:, 0], side="right") - 1, 0)
    behind = np.searchsorted(at_byte[:-1], ranges[:, 1], side="left")
    behind = np.maximum(behind, first)
    of = np.repeat(np.arange(len(ranges)), behind - first)
    number = elements_in(np.stack((first, behind), axis=1))
    bytes_in = ranges[of] - at_byte[number, None]
    start = np.maximum(bytes_in[:, 0], 0) // size[number]
    stop = np.minimum(-(-bytes_in[:, 1] // size[number]), count[number])
    found = (at_element[number, None] + np.stack((start, stop), axis=1))[start < stop]
    return merged(found[np.argsort(found[:, 0], kind="stable")])


def missing_of_weights(layout: Layout, missing: Iterable[ByteRange]) -> Ranges:
    """The elements that byte ranges of what DDP's start-up broadcast sends touch: parameters back
    to back in registration order, each in index order."""
    touched = sorted(missing)
    found = []
    at = element = 0
    for p in layout.parameters:
        size = dtype_size_bytes(layout.dtype_of(p))
        stop = at + size * p.elements
        lacks = np.zeros(p.elements, np.bool_)
        for first, last in touched:
            if first < stop and last > at:
                lacks[max(0, first - at) // size : -(-(min(last, stop) - at) // size)] = True
        if lacks.any():
            in_memory = lacks.reshape(p.shape).transpose(p.order).reshape(-1)
            edges = np.flatnonzero(np.diff(in_memory, prepend=False, append=False))
            found.append(edges.reshape(-1, 2) + element)
        at, element = stop, element + p.elements
    return union(found)


def seen_of_weights(layout: Layout, missing: Iterable[ByteRange]) -> NDArray[np.bool_]:
    """[layout.elements] bool: which of the flat state's parameters that broadcast showed. missing:
    as of `missing_of_weights`."""
    seen = np.ones(layout.elements, np.bool_)
    lacks = missing_of_weights(layout, missing)
    borders = np.array(list(accumulate((p.elements for p in layout.parameters), initial=0)))
    for (start, stop), number in zip(*cut_at(lacks, borders[:-1]), strict=True):
        p, first = layout.parameters[number], int(borders[number])
        each = (p.stop - p.start) // p.elements  # of several dtypes the flat state is bytes
        seen[p.start + (start - first) * each : p.start + (stop - first) * each] = False
    return seen


def taint_of_losses(losses: Sequence[Loss], step: int, layout: Layout) -> TaintedRanges:
    """The taint of a step, where the replica lacked these."""
    parts = [(loss.ranges, loss.first) for loss in losses if loss.is_in(step)]
    if not parts:
        return {}
    ranges = np.concatenate([own for own, _ in parts])
    since = np.concatenate([np.full(len(own), first) for own, first in parts])
    starts = list(accumulate((p.elements for p in layout.parameters), initial=0))
    cuts = np.unique(np.concatenate((ranges.ravel(), np.array(starts, np.int64))))
    earliest = _earliest(cuts, ranges, since)
    found: dict[str, list[TaintedRange]] = {}
    for place in np.flatnonzero(earliest >= 0):
        first, stop = int(cuts[place]), int(cuts[place + 1])
        number = bisect_right(starts, first) - 1
        if number >= len(layout.parameters):
            break
        base, name = starts[number], layout.parameters[number].name
        own = found.setdefault(name, [])
        one = TaintedRange(first - base, stop - base, int(earliest[place]))
        if own and (own[-1].stop, own[-1].since) == (one.start, one.since):
            one = TaintedRange(own.pop().start, one.stop, one.since)
        own.append(one)
    return {name: tuple(own) for name, own in found.items()}


def _earliest(cuts: Ranges, ranges: Ranges, since: NDArray[np.int64]) -> NDArray[np.int64]:
    """[len(cuts) - 1] the first step of the ranges that cover what lies between two cuts; -1:
    none does."""
    found = np.full(max(0, len(cuts) - 1), -1, np.int64)
    bounds = np.searchsorted(cuts, ranges)
    for order in np.argsort(-since, kind="stable"):  # the earliest is written last
        found[bounds[order, 0] : bounds[order, 1]] = since[order]
    return found


def elements_of_losses(losses: Sequence[Loss], step: int) -> Ranges:
    """The tainted elements of a step, where the replica lacked these."""
    return union([loss.ranges for loss in losses if loss.is_in(step)])


def healable_elements(losses: Sequence[Loss], step: int, at: int) -> Ranges:
    """Those of them that the trainer's values at `step` make exact at the later step `at`: nothing
    of them lacked since."""
    before = union([one.ranges for one in losses if one.is_in(at) and one.last <= step])
    since = union([one.ranges for one in losses if one.is_in(at) and one.last > step])
    return difference(before, since)


class TaintLog:
    """What the steps of one replica lacked. The updater alone writes it."""

    def __init__(self, replica: Path) -> None:
        """replica: its state file. Raises StateError where the file beside it is damaged."""
        self._path = _path(replica)
        self.losses = read_losses(replica)
        self._known: tuple[list[Loss], TaintedRanges] = [], {}
        self._elements: tuple[list[Loss], Ranges] = [], no_ranges()

    def at(self, step: int, layout: Layout) -> TaintedRanges:
        """The taint of a whole step of the replica."""
        own = [loss for loss in self.losses if loss.is_in(step)]
        if own != self._known[0]:
            self._known = own, taint_of_losses(own, step, layout)
        return self._known[1]

    def elements_at(self, step: int) -> Ranges:
        """The tainted elements of a whole step; the same array while nothing changes."""
        own = [loss for loss in self.losses if loss.is_in(step)]
        if own != self._elements[0]:
            self._elements = own, elements_of_losses(own, step)
        return self._elements[1]

    def missing_of(self, step: int) -> Ranges:
        """What a step lacked that was made before, and is made again."""
        parts = [loss.ranges for loss in self.losses if loss.is_in(step) and step <= loss.last]
        return union(parts)

    def healable(self, step: int, at: int) -> Ranges:
        """Elements tainted at `step`, of which nothing lacked since: the trainer's values at
        `step` lead to exact ones at step `at`."""
        return healable_elements(self.losses, step, at)

    def record(self, step: int, missing: Ranges) -> None:
        """To be called before the step is committed, or its gradient is put away for later: what
        it lacks, in place of what was recorded of it before. It is in the file when this
        returns."""
        others = [loss for loss in self.losses if (loss.first, loss.last) != (step, step)]
        if not len(missing) and len(others) == len(self.losses):
            return
        own = [Loss.of(step, missing)] if len(missing) else []
        self._write(bounded([*others, *own]))

    def add(self, step: int, elements: Ranges) -> None:
        """Elements that a step, made or not, turned out to lack: beside what was recorded of it. It
        is in the file when this returns."""
        own = [
            one for one in self.losses if (one.first, one.last, one.until) == (step, step, NEVER)
        ]
        known = union([one.ranges for one in own])
        if len(difference(elements, known)):
            others = [one for one in self.losses if one not in own]
            self._write(bounded([*others, Loss.of(step, union([known, elements]))]))

    def forget_after(self, step: int) -> None:
        """Later steps are of another past, in which nothing was given yet."""
        self._keep(
            [
                msgspec.structs.replace(loss, until=NEVER) if loss.until > step else loss
                for loss in self.losses
                if loss.first <= step
            ]
        )

    def heal(self, step: int) -> None:
        """The state of this step was given: nothing that it or earlier ones lacked is in it, nor in
        what follows. Steps before it stay as they were recorded."""
        self._keep(
            [
                msgspec.structs.replace(loss, until=min(loss.until, step))
                if loss.last <= step
                else loss
                for loss in self.losses
            ]
        )

    def heal_elements(self, elements: Ranges, step: int, at: int) -> None:
        """These elements of the newest step, `at`, are the trainer's, as its values of `step` led
        to. To be called behind the commit of what was healed: a kill between the two leaves more
        taint than there is."""
        kept: list[Loss] = []
        for loss in self.losses:
            healed = intersection(loss.ranges, elements)
            if not (loss.is_in(at) and loss.last <= step and len(healed)):
                kept.append(loss)
                continue
            kept.append(_of_ranges(loss, healed, until=at))
            if len(left := difference(loss.ranges, elements)):
                kept.append(_of_ranges(loss, left, until=loss.until))
        if kept != self.losses:
            self._write(bounded(kept))

    def _keep(self, losses: list[Loss]) -> None:
        if losses != self.losses:
            self._write(losses)

    def _write(self, losses: list[Loss]) -> None:
        write_atomically(self._path, msgspec.msgpack.encode(losses), durable=False)
        self.losses = losses


def bounded(losses: list[Loss], most: int = RANGES_MAX) -> list[Loss]:
    """The losses in at most so many ranges, of which none is left out that is still in a step:
    first the steps of the older half are put together, then ranges that lie closest."""
    if sum(len(loss.elements) // 16 for loss in losses) > most:
        losses = [loss for loss in losses if loss.until == NEVER]
    while sum(len(loss.elements) // 16 for loss in losses) > most:
        if len(losses) > 1:
            half = sorted(losses, key=lambda loss: (loss.first, loss.last))
            older, newer = half[: -(-len(half) // 2)], half[-(-len(half) // 2) :]
            losses = [_together(older), *newer] if len(older) > 1 else [_together(half)]
            continue
        ranges = losses[0].ranges
        room = np.sort(ranges[1:, 0] - ranges[:-1, 1])
        apart = int(room[len(ranges) - most // 2 - 1]) + 1
        joined = merged(ranges, apart)
        losses = [msgspec.structs.replace(losses[0], elements=joined.astype("<i8").tobytes())]
    return losses


def _of_ranges(loss: Loss, ranges: Ranges, *, until: int) -> Loss:
    elements = ranges.astype("<i8").tobytes()
    return msgspec.structs.replace(loss, elements=elements, until=until)


def _together(losses: Sequence[Loss]) -> Loss:
    """One that is of all these steps."""
    ranges = union([loss.ranges for loss in losses])
    first, last = min(loss.first for loss in losses), max(loss.last for loss in losses)
    return Loss(first, last, ranges.astype("<i8").tobytes())


def read_losses(replica: Path) -> list[Loss]:
    """What the steps of the replica at that path lacked; []: none lacked anything. Raises
    StateError where the file is damaged: the replica's steps cannot be called exact then."""
    path = _path(replica)
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StateError(TAINT_UNREADABLE(path=path, error=error.strerror)) from error
    try:
        losses = msgspec.msgpack.decode(text, type=list[Loss])
    except DECODE_ERRORS as error:
        raise StateError(TAINT_UNREADABLE(path=path, error=error)) from error
    for loss in losses:
        if not _sound(loss):
            raise StateError(TAINT_UNREADABLE(path=path, error="its ranges contradict each other"))
    return losses


def _sound(loss: Loss) -> bool:
    if len(loss.elements) % 16 or loss.first > loss.last or loss.until < loss.last:
        return False
    flat = loss.ranges.ravel()
    return bool(len(flat)) and flat[0] >= 0 and bool((np.diff(flat) > 0).all())


def read_taint(replica: Path, commit: Commit, layout: Layout) -> TaintedRanges:
    """The taint of a step of the replica at that path. Raises StateError as `read_losses`, and
    where the file lacks what the step's commit says is there."""
    tainted = taint_of_losses(read_losses(replica), commit.step, layout)
    if commit.tainted and not tainted:
        raise StateError(TAINT_UNREADABLE(path=_path(replica), error=f"no loss of {commit.step}"))
    return tainted


def record_start(replica: Path, missing: Ranges) -> None:
    """Of a replica that is made anew: what its initial weights lack."""
    if len(missing):
        losses = bounded([Loss.of(0, missing)])
        write_atomically(_path(replica), msgspec.msgpack.encode(losses), durable=False)


def forget_taint(replica: Path) -> None:
    """Of a replica that is made anew."""
    _path(replica).unlink(missing_ok=True)


def _path(replica: Path) -> Path:
    return replica.with_name(replica.name + SUFFIX)
