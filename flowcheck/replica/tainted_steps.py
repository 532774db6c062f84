"""What steps did to tainted elements alone: enough to make those steps again from the trainer's
values of an earlier step, without the other elements.

While a replica is tainted, each step adds a record to a file beside it: the gradient of its tainted
elements and the arguments that the C kernel made the step with. The kernel steps each element by
itself, so a replay of these elements gives the bits that the whole step would have given them. The
record is written before the step is committed: a kill between the two leaves one too many, which
the step's own record replaces. A step that torch made has no record.

The file grows with tainted elements times steps, up to BYTES_MAX; then the older half goes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from flowcheck._core import lib
from flowcheck.atomic_write import atomic_path, write_all_at
from flowcheck.errors import DECODE_ERRORS, is_disk_full
from flowcheck.private_files import open_private
from flowcheck.replica.element_patch import ElementPatch
from flowcheck.replica.element_ranges import (
    Ranges,
    count_elements,
    cut_at,
    elements_in,
    no_ranges,
)
from flowcheck.replica.optimizer_step.c_kernel_args import STEP_ROW
from flowcheck.replica.optimizer_step.c_kernel_pass import ITEM, StepArguments, step_pieces
from flowcheck.replica.optimizer_step.cuda_kernel_choice import STEP_DOUBLES
from flowcheck.replica.param_layout import Layout

SUFFIX = ".tainted-steps"
BYTES_MAX = 64 << 20
"""Bytes that the file may take. A choice: of 1,000 tainted elements in one parameter it holds some
ten thousand steps."""
ELEMENTS_MAX = 1 << 19
"""Most tainted elements whose steps are recorded. A choice: more cost each step more than it takes
itself, and where so much was lost a whole checkpoint heals better."""
ROUNDING_TURN = 2048
"""Elements of a tensor after which the pattern repeats by which a CUDA kernel rounds some of them
otherwise (CUDA_TURN in dpdk_ext/step/fc_step_cuda.h)."""
_FRAME = struct.Struct("<QQ")  # bytes of the record, its xxh3


class _Record(msgspec.Struct, frozen=True, array_like=True):
    step: int
    root: int
    elements: bytes
    """`Ranges` cut at the borders of parameters, as little-endian int64."""
    rows: bytes
    """[piece] of dtype STEP_ROW."""
    wide: bytes
    """[piece] of dtype STEP_DOUBLES; empty: the arithmetic needs none."""
    gradient: bytes
    """[elements] float32, piece after piece."""

    @property
    def table(self) -> np.ndarray:
        """[piece] of dtype STEP_ROW."""
        return np.frombuffer(self.rows, STEP_ROW)

    @property
    def pieces(self) -> Ranges:
        return np.frombuffer(self.elements, "<i8").astype(np.int64).reshape(-1, 2)


class _Place(NamedTuple):
    """Where a record lies in the file."""

    step: int
    begin: int
    end: int


class TaintedSteps:
    """The records of one replica. The updater alone writes them."""

    def __init__(self, replica: Path, layout: Layout) -> None:
        """replica: its state file. What a kill tore off at the end is left out."""
        self._path = _path(replica)
        self._borders = np.array([p.start for p in layout.parameters], np.int64)
        self._places = _whole_records(self._path)
        self._cut = no_ranges(), no_ranges(), np.zeros(0, np.int64), np.zeros(0, np.int64)
        """The tainted elements of the last record, cut at the borders of parameters, which
        parameter each piece is of, and the place of each element."""

    def record(self, step: int, elements: Ranges, arguments: StepArguments | None) -> None:
        """To be called before the step is committed. elements: those that are tainted now; none, or
        more than ELEMENTS_MAX: all records go. arguments: of the step, whose gradient is still
        there; None: torch made it, and no record of an earlier step is of use any more."""
        if arguments is None or not 0 < count_elements(elements) <= ELEMENTS_MAX:
            if self._places:  # of most steps there is nothing to forget
                self.clear()
            return
        if elements is not self._cut[0]:
            pieces, owners = cut_at(elements, self._borders)
            self._cut = elements, pieces, owners, elements_in(pieces)
        _, pieces, owners, places_of_all = self._cut
        record = _Record(
            step,
            arguments.root,
            pieces.astype("<i8").tobytes(),
            arguments.table[owners].tobytes(),
            b"" if arguments.wide is None else arguments.wide[owners].tobytes(),
            arguments.gradient.take(places_of_all).tobytes(),
        )
        self.forget_after(step - 1)
        self._append(step, msgspec.msgpack.encode(record))

    def forget_after(self, step: int) -> None:
        """Later steps are of another past."""
        self._places = [place for place in self._places if place.step <= step]

    def clear(self) -> None:
        """Forgets all steps."""
        self._places = []
        self._path.unlink(missing_ok=True)

    def replayed(
        self, patch: ElementPatch, steps: range, sections: Sequence[str]
    ) -> ElementPatch | None:
        """The patch, of before the first of these steps, behind the last one. None: not all of the
        steps are recorded for all of its elements, or the kernel does not step all that it has.

        sections: those that the kernel steps, parameters first; float32.
        """
        places = {place.step: place for place in self._places}
        if {*sections} != patch.parts.keys() or not all(step in places for step in steps):
            return None
        first = self._read(places[steps[0]]) if len(steps) else None
        pieces = _Pieces(
            patch.elements, self._borders, leads=first is not None and _in_lanes(first.table)
        )
        source = {name: pieces.spread(patch.parts[name].view(np.float32)) for name in sections}
        target = {name: np.zeros_like(array) for name, array in source.items()}
        for step in steps:
            arguments = self._arguments(places[step], pieces)
            if arguments is None:
                return None
            step_pieces(arguments, pieces.items, sections, source, target)
            source, target = target, source
        parts = {name: pieces.gathered(array).view(np.uint8) for name, array in source.items()}
        return ElementPatch(patch.elements, parts)

    def _arguments(self, place: _Place, own: _Pieces) -> StepArguments | None:
        """Of the step whose record lies there, for these pieces; None: it lacks one."""
        record = self._read(place)
        if record is None or (_in_lanes(record.table) and not own.have_leads):
            return None
        held = record.pieces
        at = np.searchsorted(held[:, 0], own.bounds[:, 0], side="right") - 1
        if (at < 0).any() or (own.bounds[:, 1] > held[at, 1]).any():
            return None
        sizes = held[:, 1] - held[:, 0]
        begins = (np.cumsum(sizes) - sizes)[at] + own.bounds[:, 0] - held[at, 0]
        flat = np.frombuffer(record.gradient, np.float32)
        parts = [flat[begin : begin + n] for begin, n in zip(begins, own.sizes, strict=True)]
        table = record.table[at]
        wide = np.frombuffer(record.wide, STEP_DOUBLES)[at] if record.wide else None
        gradient = own.spread(np.concatenate(parts))
        return StepArguments(table, record.root, gradient, wide)

    def _read(self, place: _Place) -> _Record | None:
        with self._path.open("rb") as file:
            file.seek(place.begin)
            return _decoded(file.read(place.end - place.begin))

    def _append(self, step: int, raw: bytes) -> None:
        framed = _FRAME.pack(len(raw), xxhash.xxh3_64_intdigest(raw)) + raw
        try:
            if self._end + len(framed) > BYTES_MAX:
                self._drop_older(BYTES_MAX // 2 - len(framed))
            begin = self._end
            descriptor = open_private(self._path, os.O_WRONLY | os.O_CREAT)
            try:
                os.ftruncate(descriptor, begin)
                if len(framed) <= BYTES_MAX // 2:
                    write_all_at(descriptor, framed, begin)
                    self._places.append(_Place(step, begin + _FRAME.size, begin + len(framed)))
            finally:
                os.close(descriptor)
        except OSError as error:
            if not is_disk_full(error):
                raise
            self.clear()  # elements then heal from a value of the newest step alone

    @property
    def _end(self) -> int:
        return self._places[-1].end if self._places else 0

    def _drop_older(self, most_bytes: int) -> None:
        """Keeps the newest records that fit into so many bytes."""
        first = next(
            (p for p in self._places if self._end - p.begin + _FRAME.size <= most_bytes), None
        )
        if first is None:
            self.clear()
            return
        raw = self._path.read_bytes()[first.begin - _FRAME.size : self._end]
        with atomic_path(self._path, durable=False) as place:
            place.write_bytes(raw)
        self._places = _whole_records(self._path)


class _Pieces:
    """Pieces of tensors, back to back in flat arrays of their own."""

    def __init__(self, elements: Ranges, borders: NDArray[np.int64], *, leads: bool) -> None:
        """leads: with room before each, so that it lies as in its tensor for a kernel that rounds
        some elements otherwise."""
        self.bounds, owners = cut_at(elements, borders)
        self.sizes = self.bounds[:, 1] - self.bounds[:, 0]
        self.have_leads = leads
        before = (self.bounds[:, 0] - borders[owners]) % (ROUNDING_TURN if leads else 1)
        ends = np.cumsum(before + self.sizes)
        self._begins = ends - self.sizes
        self._elements = int(ends[-1]) if len(ends) else 0
        self.items = np.zeros(len(ends), ITEM)
        self.items["first"] = self._begins - before
        self.items["elements"] = before + self.sizes
        self.items["row"] = np.arange(len(ends))

    def spread(self, values: np.ndarray) -> np.ndarray:
        """[elements] float32, piece after piece, where the kernel takes them."""
        flat = np.zeros(self._elements, np.float32)
        at = 0
        for begin, size in zip(self._begins.tolist(), self.sizes.tolist(), strict=True):
            flat[begin : begin + size] = values[at : at + size]
            at += size
        return flat

    def gathered(self, flat: np.ndarray) -> np.ndarray:
        """The other way round."""
        places = zip(self._begins.tolist(), self.sizes.tolist(), strict=True)
        parts = [flat[begin : begin + size] for begin, size in places]
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def _in_lanes(table: np.ndarray) -> bool:
    """Whether the kernel rounds some elements otherwise, by their place in their tensor."""
    return bool((table["flags"] & lib.FC_STEP_LANES).any())


def _whole_records(path: Path) -> list[_Place]:
    """The records of a file in ascending steps, up to the first that is torn."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return []
    found: list[_Place] = []
    at = 0
    while at + _FRAME.size <= len(raw):
        size, checksum = _FRAME.unpack_from(raw, at)
        begin, end = at + _FRAME.size, at + _FRAME.size + size
        body = raw[begin:end]
        if len(body) != size or xxhash.xxh3_64_intdigest(body) != checksum:
            break
        record = _decoded(body)
        if record is None or (found and record.step <= found[-1].step):
            break
        found.append(_Place(record.step, begin, end))
        at = end
    return found


def _decoded(raw: bytes) -> _Record | None:
    try:
        record = msgspec.msgpack.decode(raw, type=_Record)
        pieces = record.pieces
    except (*DECODE_ERRORS, ValueError):
        return None
    flat = pieces.ravel()
    elements = int((pieces[:, 1] - pieces[:, 0]).sum())
    sound = len(flat) and flat[0] >= 0 and bool((np.diff(flat) >= 0).all())
    sound = sound and len(record.rows) == len(pieces) * STEP_ROW.itemsize
    sound = sound and len(record.gradient) == 4 * elements
    wide = len(record.wide)
    return record if sound and wide in (0, len(pieces) * STEP_DOUBLES.itemsize) else None


def forget_tainted_steps(replica: Path) -> None:
    """Of a replica that is made anew."""
    _path(replica).unlink(missing_ok=True)


def _path(replica: Path) -> Path:
    return replica.with_name(replica.name + SUFFIX)
