"""Reads safetensors files, and writes them from memory without a copy.

Format (safetensors' README, "Format"): the header's length as 8 bytes, little-endian; the header,
JSON of {name: {dtype, shape, data_offsets}} and "__metadata__", padded with spaces; the tensors
back to back. Tensors with larger elements come first, as in safetensors' own writer, so that all
are aligned. Among equal element sizes, tensors whose bytes fill whole sha256 blocks come first:
blocks of the file and of the tensor then begin at the same bytes (sha256.py, BLOCK_BYTES).
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from flowcheck.errors import StateError
from flowcheck.findings.catalog.unloadable_checkpoints import (
    DTYPE_NOT_WRITABLE,
    NOT_SAFETENSORS,
    TENSORS_MISSING,
)
from flowcheck.foreign_messages import SAFETENSORS_ERRNO
from flowcheck.replica.checkpoint_files.checksummed_writer import ChecksummedWriter, bytes_of
from flowcheck.replica.checkpoint_files.file_read_ahead import FilePiece
from flowcheck.replica.checkpoint_files.sha256 import BLOCK_BYTES
from flowcheck.untrusted_paths import refuse_special_file

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
ALIGN = BLOCK_BYTES
"""Bytes to which the header's end is aligned. The format requires 8."""
LENGTH_BYTES = 8
PYTORCH_METADATA = {"format": "pt"}
"""Metadata that transformers requires in a file (modeling_utils.py, load_state_dict)."""


def write_tensors(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    sums: ChecksummedWriter,
    *,
    part: str = "",
    metadata: Mapping[str, str] = PYTORCH_METADATA,
    name: str = "",
) -> None:
    """Begins to write the file, as `ChecksummedWriter.write_file` does.

    part: prefix of each tensor's label in the manifest. name: the file's name in the manifest;
    empty: the name in `path`. Raises StateError for a dtype that the format does not have, OSError
    if an earlier file found no room.
    """
    ordered = sorted(
        tensors.items(),
        key=lambda one: (-one[1].element_size(), one[1].nbytes % BLOCK_BYTES != 0),
    )
    pieces = [FilePiece(_header(path, ordered, metadata))]
    pieces += [FilePiece(bytes_of(tensor), part + own) for own, tensor in ordered if tensor.numel()]
    sums.write_file(name or path.name, path, pieces, {part + own: value for own, value in ordered})


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Every tensor of the file, as a private mapping: writing to a tensor does not change the file.
    Raises StateError if the file is missing, incomplete or not in this format."""
    refuse_special_file(path)
    try:
        found: dict[str, torch.Tensor] = load_file(path)
    except FileNotFoundError as error:
        raise StateError(TENSORS_MISSING(path)) from error
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise StateError(NOT_SAFETENSORS(path=path, error=error)) from error
    return found


@contextmanager
def safetensors_errors_as_os_errors(path: Path) -> Iterator[None]:
    """Turns errors of safetensors' own writer into OSError. The writer states the errno only in its
    message; without one EIO is raised."""
    try:
        yield
    except SafetensorError as error:
        number = SAFETENSORS_ERRNO.search(str(error))
        code = int(number[1]) if number else errno.EIO
        raise OSError(code, os.strerror(code), str(path)) from error


def _header(
    path: Path, ordered: list[tuple[str, torch.Tensor]], metadata: Mapping[str, str]
) -> bytes:
    """The bytes before the first tensor: length and header. Raises StateError for a dtype that the
    format does not have."""
    told: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, tensor in ordered:
        if tensor.dtype not in DTYPES:
            dtype = str(tensor.dtype)
            raise StateError(DTYPE_NOT_WRITABLE(path=path, tensor=name, dtype=dtype))
        end = at + tensor.numel() * tensor.element_size()
        told[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(told, separators=(",", ":")).encode()
    text += b" " * (-(LENGTH_BYTES + len(text)) % ALIGN)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text
