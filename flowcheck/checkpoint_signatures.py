"""Tells from a file's first bytes that it is a checkpoint, where a file of another kind is asked
for."""

from __future__ import annotations

import struct

ZIP = b"PK\x03\x04"
ZIP_NAME_AT = 30
"""Byte at which the name of a zip archive's first file begins; its length stands at byte 26."""
TORCH_ENTRY = "/data.pkl"
"""Ends the name of the first file in a zip archive of torch.save."""
SAFETENSORS_HEADER_MAX = 100_000_000
"""Bytes of the longest header that safetensors reads."""
PICKLE_BEGINS = {2: b"}](\x8ac", 3: b"}](\x8ac", 4: b"\x95", 5: b"\x95"}
"""{protocol: the first opcode behind it, of a dict, a list, a tuple, the number that old releases
of torch begin with, or a class; of newer protocols a frame}."""
OTHERS = (
    (b"\x93NUMPY", "an array of numpy (.npy)"),
    (b"\x89HDF\r\n\x1a\n", "HDF5"),
)


def checkpoint_kind(begin: bytes) -> str | None:
    """What wrote the checkpoint that begins with these bytes, in words; None: it is none, or of a
    kind that is not known. Only the beginning is looked at: the rest may be damaged."""
    if begin.startswith(ZIP):
        return _kind_of_zip(begin)
    for first, kind in OTHERS:
        if begin.startswith(first):
            return kind
    if len(begin) > 9:
        header_bytes = struct.unpack_from("<Q", begin)[0]
        if begin[8:9] == b"{" and 2 <= header_bytes <= SAFETENSORS_HEADER_MAX:
            return "safetensors"
    if len(begin) > 2 and begin[0] == 0x80 and begin[2] in PICKLE_BEGINS.get(begin[1], b""):
        return "a pickle, as torch.save wrote before release 1.6"
    return None


def _kind_of_zip(begin: bytes) -> str | None:
    if len(begin) < ZIP_NAME_AT:
        return None
    length = struct.unpack_from("<H", begin, ZIP_NAME_AT - 4)[0]
    name = begin[ZIP_NAME_AT : ZIP_NAME_AT + length].decode(errors="replace")
    if name.endswith(TORCH_ENTRY):
        return "torch.save"
    return "arrays of numpy (.npz)" if name.endswith(".npy") else None
