"""What torch.save writes, as pieces of memory: nothing is copied, and nothing written yet.

torch.save hands over a tensor's own memory, so that what comes is known by its address. Its archive
is told to leave check sums out, which it makes by itself at half the rate of a disk; they are put
in here. Of an entry the archive has its sum twice (PKWARE's APPNOTE.TXT): in the descriptor that
comes behind its bytes (4.3.9), and in the central directory, in the same order (4.3.12).
"""

from __future__ import annotations

import gc
import io
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from flowcheck._core import ffi, lib
from flowcheck.replica.files.pieces import Piece
from flowcheck.replica.files.sha256 import Crc

DESCRIPTOR, DIRECTORY = b"PK\x07\x08", b"PK\x01\x02"
HEADER, HEADER_BYTES = b"PK\x03\x04", 30
DESCRIPTORS = {16: "<4sIII", 24: "<4sIQQ"}
"""Bytes of one to its fields: signature, crc-32, compressed and uncompressed size."""
ENTRY = struct.Struct("<4s6H3I3H")
"""Of the directory up to the lengths of name, extra field and comment."""
ENTRY_BYTES, ENTRY_CRC = 46, 16
LARGE_BYTES = 1 << 16
"""What is smaller is summed, and put together with its neighbours, before it is written."""


class Recorder(io.RawIOBase):
    """A file to write to. tensors: (address, bytes) of memory that stays as it is as long as the
    pieces are used, to a label; one that is met has its label once, whoever else records."""

    def __init__(self, tensors: Mapping[tuple[int, int], str], met: set[str]) -> None:
        super().__init__()
        self._tensors, self._met, self._at = tensors, met, 0
        self._sizes = {size for _, size in tensors}
        self.pieces: list[Piece] = []

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, part: Any, /) -> int:
        view = memoryview(part).cast("B")
        size_bytes, piece, label = view.nbytes, None, None
        if size_bytes and size_bytes in self._sizes:
            piece = Piece(view)
            label = self._tensors.get(piece.address)
        if label is None:
            piece = Piece(bytes(view))  # the writer's own: it is another's after this call
        elif label not in self._met:
            self._met.add(label)
            piece = Piece(view, label)
        assert piece is not None
        self.pieces.append(piece)
        self._at += size_bytes
        return size_bytes


def recorded(save: Callable[[], None], of: Callable[[], Iterator[Recorder]]) -> None:
    """Runs `save`, which writes archives of torch's to recorders; `of` gives these behind it. If
    torch writes other archives than is known here, it makes their sums itself."""
    with _uncollected():
        with without_sums() as without:
            save()
        if without and not all(put_sums(recorder.pieces) for recorder in of()):
            save()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without a search of all objects there are for such as are out of use: what is made per tensor
    here sets off several, and each takes as long as 100 MB take on their way to a disk."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def put_sums(pieces: list[Piece]) -> bool:
    """Puts the sums into the archives in `pieces`, large ones' as they are made while these are
    written, and makes one piece of small ones; False: they are none that is known here."""
    entries: list[Crc] = []
    late = False
    for number, piece in enumerate(pieces):
        if piece.label:
            continue
        raw = bytes(piece.raw[:4])
        if raw == DESCRIPTOR and piece.nbytes in DESCRIPTORS and number:
            before = pieces[number - 1]
            form = DESCRIPTORS[piece.nbytes]
            _, told, *sizes = struct.unpack(form, piece.raw)
            if sizes != [before.nbytes, before.nbytes]:
                return False
            at_once = bool(told) or before.nbytes < LARGE_BYTES
            entries.append(Crc((told or _crc32(before)) if at_once else 0))
            if not at_once:
                late = True
                pieces[number - 1] = replace(before, crc=entries[-1])
                put = partial(_descriptor, form, sizes, entries[-1])
                pieces[number] = Piece(piece.raw, late=put)
            else:
                pieces[number] = Piece(_descriptor(form, sizes, entries[-1]))
        elif raw == HEADER and piece.nbytes > HEADER_BYTES:
            pieces[number] = Piece(_whole(bytes(piece.raw)))
        elif raw == DIRECTORY:
            if _filled(piece, [0] * len(entries)) is None:
                return False
            put_all = partial(_directory, piece, entries)
            pieces[number] = Piece(piece.raw, late=put_all) if late else Piece(put_all())
            entries, late = [], False
    pieces[:] = _joined(pieces)
    return not entries


def _joined(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """The same bytes in fewer pieces."""
    small: list[Piece] = []
    for piece in pieces:
        if not piece.label and piece.late is None and piece.nbytes < LARGE_BYTES:
            small.append(piece)
            continue
        if small:
            yield Piece(b"".join(one.raw for one in small))
            small = []
        yield piece
    if small:
        yield Piece(b"".join(one.raw for one in small))


def _descriptor(form: str, sizes: list[int], own: Crc) -> bytes:
    return struct.pack(form, DESCRIPTOR, own.value, *sizes)


def _directory(piece: Piece, entries: list[Crc]) -> bytes:
    filled = _filled(piece, [own.value for own in entries])
    assert filled is not None, "it was tried before"
    return filled


def _filled(directory: Piece, entries: list[int]) -> bytes | None:
    """The directory with the sums of its entries; None where there are not as many."""
    raw, at, taken = bytearray(directory.raw), 0, 0
    while at + ENTRY_BYTES <= len(raw) and taken < len(entries):
        fields = ENTRY.unpack_from(raw, at)
        if fields[0] != DIRECTORY or fields[7]:
            return None
        struct.pack_into("<I", raw, at + ENTRY_CRC, entries[taken])
        at += ENTRY_BYTES + sum(fields[10:13])
        taken += 1
    return bytes(raw) if at == len(raw) and taken == len(entries) else None


def _whole(raw: bytes) -> bytes:
    """A small archive that came at once, with its sums: DCP has plain values in such."""
    filled = bytearray(raw)
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        at = archive.start_dir
        for one in archive.infolist():
            lengths = struct.unpack_from("<2H", raw, one.header_offset + HEADER_BYTES - 4)
            begin = one.header_offset + HEADER_BYTES + sum(lengths)
            end = begin + one.file_size
            crc = _crc32(Piece(raw[begin:end]))
            if filled[end : end + 4] == DESCRIPTOR:
                struct.pack_into("<I", filled, end + 4, crc)
            struct.pack_into("<I", filled, at + ENTRY_CRC, crc)
            at += ENTRY_BYTES + sum(struct.unpack_from("<3H", raw, at + 28))
    return bytes(filled)


def _crc32(piece: Piece) -> int:
    own = ffi.from_buffer("uint8_t[]", piece.raw)
    return int(lib.fc_crc32(0, own, len(own)))


@contextmanager
def without_sums() -> Iterator[bool]:
    """False where torch has no such setting. It is of the thread in newer versions of torch, of the
    process in older ones: what another one of `recorded` has set stays set."""
    serialization: Any = torch.serialization
    if not hasattr(serialization, "set_crc32_options"):
        yield False
        return
    was = serialization.get_crc32_options()
    if not was:
        yield True
        return
    serialization.set_crc32_options(False)
    try:
        yield True
    finally:
        serialization.set_crc32_options(was)
