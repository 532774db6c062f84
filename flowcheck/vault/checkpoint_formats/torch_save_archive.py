"""The zip archives of torch.save as pieces of memory, with crc-32 checksums filled in while they
are written.

torch.save writes from a tensor's own memory, so that this module recognises the tensor by its
address. torch computes checksums at half the rate of a disk; so it is told to leave them out, and
they are filled in here. An archive has the checksum of an entry twice (PKWARE's APPNOTE.TXT): in
the descriptor after the entry's bytes (4.3.9), and in the central directory, in the same order
(4.3.12).

Archives of tensors with the same dtype and shape differ only in the tensor's bytes and their
checksum. torch makes one archive of each kind, and the others are derived from it.
"""

from __future__ import annotations

import gc
import io
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from flowcheck._core import ffi, lib
from flowcheck.replica.checkpoint_files.file_read_ahead import FilePiece
from flowcheck.replica.checkpoint_files.sha256 import BLOCK_BYTES, Crc
from flowcheck.vault.checkpoint_formats.tensor_storage import address_of, tensor_memory

DESCRIPTOR, DIRECTORY = b"PK\x07\x08", b"PK\x01\x02"
DESCRIPTORS = {16: "<4sIII", 24: "<4sIQQ"}
"""{bytes of a descriptor: its fields}: signature, crc-32, compressed and uncompressed size."""
ENTRY = struct.Struct("<4s6H3I3H")
"""An entry of the directory, up to the lengths of name, extra field and comment."""
ENTRY_BYTES, ENTRY_CRC = 46, 16
DESCRIPTOR_CRC = 4
LARGE_BYTES = 1 << 16
"""Bytes of the smallest piece that is written by itself. Smaller ones are summed and joined with
their neighbours first. A choice: smaller costs calls."""


class PieceRecorder(io.RawIOBase):
    """A file object that records what is written to it as pieces.

    tensors: {(address, bytes): label} of memory that must not change while the pieces are used.
    met: labels already given to a piece by any recorder, each of which is given once.
    """

    def __init__(self, tensors: Mapping[tuple[int, int], str], met: set[str]) -> None:
        super().__init__()
        self._tensors, self._met, self._at = tensors, met, 0
        self._sizes = {size for _, size in tensors}
        self.pieces: list[FilePiece] = []

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def aligned(self) -> int:
        """Adds zeros up to the next whole sha256 block, and returns the position. torch aligns
        tensors within an archive, so that blocks of the file and of the tensor begin at the same
        bytes, and their checksums share work (sha256.py)."""
        if self._at % BLOCK_BYTES:
            self.add(FilePiece(bytes(-self._at % BLOCK_BYTES)))
        return self._at

    def add(self, piece: FilePiece) -> None:
        """Adds a piece at the end."""
        self.pieces.append(piece)
        self._at += piece.nbytes

    def write(self, part: Any, /) -> int:
        view = memoryview(part).cast("B")
        size_bytes, piece, label = view.nbytes, None, None
        if size_bytes and size_bytes in self._sizes:
            piece = FilePiece(view)
            label = self._tensors.get(piece.address)
        if label is None:
            piece = FilePiece(bytes(view))  # the writer's own: it is another's after this call
        elif label not in self._met:
            self._met.add(label)
            piece = FilePiece(view, label)
        assert piece is not None
        self.add(piece)
        return size_bytes


def record_torch_save(save: Callable[[], PieceRecorder]) -> list[FilePiece]:
    """The pieces that `save` makes torch.save write to a recorder, with checksums. If torch writes
    archives of an unknown form, torch computes their checksums itself."""
    with gc_paused():
        with crc_disabled() as without:
            pieces = save().pieces
        if without and not fill_crcs(pieces):
            pieces = save().pieces
        return pieces


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pauses Python's garbage collection. The objects made per tensor here would start it several
    times, and each run takes as long as writing 100 MB to a disk."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def fill_crcs(pieces: list[FilePiece]) -> bool:
    """Puts checksums into the archives in `pieces`, and joins small pieces. The checksums of large
    pieces are filled in while these are written. False: the archives have an unknown form."""
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
            entries.append(Crc((told or crc_of(before)) if at_once else 0))
            if not at_once:
                late = True
                pieces[number - 1] = replace(before, crc=entries[-1])
                put = partial(_descriptor, form, sizes, entries[-1])
                pieces[number] = FilePiece(piece.raw, deferred_bytes=put)
            else:
                pieces[number] = FilePiece(_descriptor(form, sizes, entries[-1]))
        elif raw == DIRECTORY:
            if directory_with_crcs(piece, [0] * len(entries)) is None:
                return False
            put_all = partial(_directory, piece, entries)
            pieces[number] = (
                FilePiece(piece.raw, deferred_bytes=put_all) if late else FilePiece(put_all())
            )
            entries, late = [], False
    pieces[:] = merge_small_pieces(pieces)
    return not entries


def merge_small_pieces(pieces: Iterable[FilePiece]) -> Iterator[FilePiece]:
    """The same bytes in fewer pieces: neighbouring small ones are joined."""
    small: list[FilePiece] = []
    for piece in pieces:
        if not piece.label and piece.deferred_bytes is None and piece.nbytes < LARGE_BYTES:
            small.append(piece)
            continue
        if small:
            yield FilePiece(b"".join(one.raw for one in small))
            small = []
        yield piece
    if small:
        yield FilePiece(b"".join(one.raw for one in small))


def _descriptor(form: str, sizes: list[int], own: Crc) -> bytes:
    return struct.pack(form, DESCRIPTOR, own.value, *sizes)


def _directory(piece: FilePiece, entries: list[Crc]) -> bytes:
    whole = directory_with_crcs(piece, [own.value for own in entries])
    assert whole is not None, "it was tried before"
    return whole


def directory_with_crcs(directory: FilePiece, entries: list[int]) -> bytes | None:
    """The directory with these checksums of its entries; None if it has another number of entries
    or an unknown form."""
    raw = bytearray(directory.raw)
    places = crcs_in(raw)
    if places is None or len(places) != len(entries):
        return None
    for place, crc in zip(places, entries, strict=True):
        struct.pack_into("<I", raw, place, crc)
    return bytes(raw)


def crcs_in(directory: bytes | bytearray) -> list[int] | None:
    """The offset of each entry's checksum; None if this is no directory of an archive without
    checksums."""
    places: list[int] = []
    at = 0
    while at + ENTRY_BYTES <= len(directory):
        fields = ENTRY.unpack_from(directory, at)
        if fields[0] != DIRECTORY or fields[7]:
            return None
        places.append(at + ENTRY_CRC)
        at += ENTRY_BYTES + sum(fields[10:13])
    return places if at == len(directory) else None


def crc_of(piece: FilePiece) -> int:
    """The crc-32 of a piece's bytes."""
    own = ffi.from_buffer("uint8_t[]", piece.raw)
    return int(lib.fc_crc32(0, own, len(own)))


@contextmanager
def crc_disabled() -> Iterator[bool]:
    """Within the `with`, torch.save computes no crc-32. Yields False if torch has no such setting.
    The setting belongs to the thread in newer versions of torch, to the process in older ones; if
    another call of `record_torch_save` has changed it already, it stays changed."""
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


@dataclass(frozen=True, slots=True)
class TensorArchive:
    """The archive of a tensor without the tensor's bytes."""

    before: bytes
    behind: bytes
    places: tuple[int, ...]
    """Offsets of the tensor's checksum in `behind`: in the descriptor and in the directory."""

    def put(self, tensor: torch.Tensor, recorder: PieceRecorder) -> None:
        """Writes the archive of a tensor of the same kind."""
        recorder.write(self.before)
        recorder.write(tensor_memory(tensor))
        data = recorder.pieces[-1]
        if data.nbytes < LARGE_BYTES:
            recorder.write(self.summed(Crc(crc_of(data))))
            return
        own = Crc()
        recorder.pieces[-1] = replace(data, crc=own)
        recorder.add(FilePiece(self.behind, deferred_bytes=partial(self.summed, own)))

    def summed(self, own: Crc) -> bytes:
        """The bytes after the tensor, with its checksum."""
        raw = bytearray(self.behind)
        for place in self.places:
            struct.pack_into("<I", raw, place, own.value)
        return bytes(raw)


class TensorArchives:
    """The archives of all kinds of tensors, by dtype, shape and stride."""

    def __init__(self) -> None:
        self._known: dict[object, TensorArchive | None] = {}

    def put(self, tensor: torch.Tensor, recorder: PieceRecorder) -> None:
        """Writes the archive of a dense tensor that owns its storage. If torch's archives have an
        unknown form, torch writes it."""
        kind = (tensor.dtype, tensor.shape, tensor.stride())
        if kind not in self._known:
            self._known[kind] = archive_of(tensor)
        known = self._known[kind]
        if known is None:
            torch.save(tensor, recorder)  # type: ignore[arg-type]
        else:
            known.put(tensor, recorder)


def archive_of(tensor: torch.Tensor) -> TensorArchive | None:
    """The archive of a tensor without its bytes; None for a tensor without bytes or an archive of
    an unknown form."""
    recorder = PieceRecorder(
        {address_of(tensor_memory(tensor)): "own"} if tensor.numel() else {}, set()
    )
    with crc_disabled() as bare:
        torch.save(tensor, recorder)  # type: ignore[arg-type]
    pieces = recorder.pieces
    own = next((number for number, piece in enumerate(pieces) if piece.label), 0)
    if not bare or not own or pieces[own + 1].raw[:4] != DESCRIPTOR:
        return None
    crcs: list[int] = []
    before, behind, places, entry = bytearray(), bytearray(), list[int](), 0
    for number, piece in enumerate(pieces):
        if number == own:
            continue
        raw = bytearray(piece.raw)
        if raw[:4] == DESCRIPTOR and len(raw) in DESCRIPTORS:
            if number == own + 1:
                places.append(len(behind) + DESCRIPTOR_CRC)
                entry = len(crcs)
            crcs.append(0 if number == own + 1 else crc_of(pieces[number - 1]))
            struct.pack_into("<I", raw, DESCRIPTOR_CRC, crcs[-1])
        elif raw[:4] == DIRECTORY:
            found, summed = crcs_in(raw), directory_with_crcs(piece, crcs)
            if found is None or summed is None:
                return None
            raw = bytearray(summed)
            places.append(len(behind) + found[entry])
        (before if number < own else behind).extend(raw)
    return TensorArchive(bytes(before), bytes(behind), tuple(places)) if len(places) == 2 else None
