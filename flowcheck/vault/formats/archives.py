"""torch.save's archives of single tensors, which a DCP file has one behind the other.

Those of one dtype and shape differ in the tensor's bytes and in the sum of these alone: torch makes
one of each, and the others are put together from it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from functools import partial

import torch

from flowcheck.replica.files.pieces import Piece
from flowcheck.replica.files.sha256 import Crc
from flowcheck.vault.formats.recorded import (
    DESCRIPTOR,
    DESCRIPTOR_CRC,
    DESCRIPTORS,
    DIRECTORY,
    LARGE_BYTES,
    Recorder,
    crc_of,
    crcs_in,
    filled,
    without_sums,
)
from flowcheck.vault.formats.storages import address_of, raw_of


@dataclass(frozen=True, slots=True)
class Archive:
    """What stands around the bytes of a tensor."""

    before: bytes
    behind: bytes
    places: tuple[int, ...]
    """Of the sum of the bytes, in `behind`: of their descriptor, and of the directory."""

    def put(self, tensor: torch.Tensor, recorder: Recorder) -> None:
        """Writes the archive of a tensor of the same kind."""
        recorder.write(self.before)
        recorder.write(raw_of(tensor))
        data = recorder.pieces[-1]
        if data.nbytes < LARGE_BYTES:
            recorder.write(self.summed(Crc(crc_of(data))))
            return
        own = Crc()
        recorder.pieces[-1] = replace(data, crc=own)
        recorder.take(Piece(self.behind, late=partial(self.summed, own)))

    def summed(self, own: Crc) -> bytes:
        """What stands behind bytes of this sum."""
        raw = bytearray(self.behind)
        for place in self.places:
            struct.pack_into("<I", raw, place, own.value)
        return bytes(raw)


class Archives:
    """Of every kind of tensor that was met."""

    def __init__(self) -> None:
        self._known: dict[object, Archive | None] = {}

    def put(self, tensor: torch.Tensor, recorder: Recorder) -> None:
        """Writes the archive of a dense tensor that owns its storage. If torch writes others than
        are known here, it writes this one as well."""
        kind = (tensor.dtype, tensor.shape, tensor.stride())
        if kind not in self._known:
            self._known[kind] = archive_of(tensor)
        known = self._known[kind]
        if known is None:
            torch.save(tensor, recorder)  # type: ignore[arg-type]
        else:
            known.put(tensor, recorder)


def archive_of(tensor: torch.Tensor) -> Archive | None:
    """Of such a tensor; None where there are no bytes in it, or it is none that is known here."""
    recorder = Recorder({address_of(raw_of(tensor)): "own"} if tensor.numel() else {}, set())
    with without_sums() as bare:
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
            found, summed = crcs_in(raw), filled(piece, crcs)
            if found is None or summed is None:
                return None
            raw = bytearray(summed)
            places.append(len(behind) + found[entry])
        (before if number < own else behind).extend(raw)
    return Archive(bytes(before), bytes(behind), tuple(places)) if len(places) == 2 else None
