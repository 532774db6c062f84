"""A file of torch.save: {"model", "optimizer", "scheduler", "scaler", "step"}, under the trainer's
own keys."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import IO, Any

from flowcheck.errors import StateError, naming
from flowcheck.replica.files.manifest import Piece
from flowcheck.replica.files.sums import Sums
from flowcheck.vault.foreign import load_tree
from flowcheck.vault.formats.parts import Options, Parts, tree_of
from flowcheck.vault.formats.storages import alone, labelled, raw_of
from flowcheck.vault.restore import save_into
from flowcheck.whole import sync

LOCAL_HEADER_BYTES = 30
"""Of a zip archive, before its name and extra field (APPNOTE.TXT, 4.3.7)."""


def write(parts: Parts, path: Path, options: Options, sums: Sums) -> str:
    """Writes and syncs the file; why it is no full resume."""
    write_tree(alone(tree_of(parts, options.keys, named=False)), path, path.name, sums)
    return parts.lacks


def read(path: Path) -> Any:
    """What torch.save put there, of tensors and plain values."""
    return load_tree(path)


def write_tree(tree: Any, path: Path, name: str, sums: Sums) -> None:
    """torch.save of `tree`, whose tensors have storages of their own; name: in the manifest."""
    with naming(path), path.open("wb") as file:
        save_into(tree, file)
    with path.open("rb") as file:
        at = records_of(file, path)
    for label, tensor, number in labelled(tree):
        raw = raw_of(tensor)
        first, held = at.get(number, (0, -1))
        if held != raw.nbytes:
            raise StateError(f"{path}: {label} does not lie in the archive as it should")
        place: Piece = (name, first, raw.nbytes)
        sums.tensor(label, tensor, [place], [raw])
    sums.file(name, path)
    sync(path)


def records_of(file: IO[bytes], path: Path, begin: int = 0) -> dict[int, tuple[int, int]]:
    """{number of a storage: (first byte, bytes)} in an archive that torch.save wrote: records
    .../data/NUMBER, stored without compression (torch/serialization.py, _save)."""
    found = {}
    with zipfile.ZipFile(file) as archive:
        for record in archive.infolist():
            above, _, number = record.filename.rpartition("/data/")
            if not above or not number.isdigit():
                continue
            if record.compress_type != zipfile.ZIP_STORED:
                raise StateError(f"{path}: a storage in it is compressed")
            file.seek(record.header_offset)
            head = file.read(LOCAL_HEADER_BYTES)
            more = int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
            first = record.header_offset + LOCAL_HEADER_BYTES + more
            found[int(number)] = (begin + first, record.file_size)
    return found
