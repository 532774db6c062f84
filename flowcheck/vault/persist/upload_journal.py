"""A journal on local disk of which files and parts were uploaded, so that an upload can be
resumed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from threading import Lock

import msgspec

from flowcheck.atomic_write import write_atomically
from flowcheck.errors import DECODE_ERRORS
from flowcheck.private_files import make_folder
from flowcheck.vault.persist.checkpoint_listing import ListedFile

SENT = ".sent.json"
"""Behind the checkpoint's name."""


class SentFile(msgspec.Struct, frozen=True, kw_only=True):
    """A whole file."""

    sha256: str
    tag: str
    """What the store told of it when it was there."""
    proved: bool
    """The tag is a sum of the content, and the right one."""


class Upload(msgspec.Struct, kw_only=True):
    """A file of which parts are there."""

    id: str
    sha256: str
    part_bytes: int
    tags: dict[int, str] = {}
    """By the part's number, as the store told them."""


class _Noted(msgspec.Struct, kw_only=True):
    to: str
    files: dict[str, SentFile] = {}
    uploads: dict[str, Upload] = {}


class UploadJournal:
    """Of one checkpoint to one place; what is noted elsewhere is forgotten."""

    def __init__(self, path: Path, noted: _Noted) -> None:
        """Use `of`."""
        self._path, self._noted, self._lock = path, noted, Lock()

    @classmethod
    def of(cls, path: Path, to: str) -> UploadJournal:
        noted = _Noted(to=to)
        with suppress(OSError, *DECODE_ERRORS):
            found = msgspec.json.decode(path.read_bytes(), type=_Noted)
            noted = found if found.to == to else noted
        return cls(path, noted)

    @property
    def uploads(self) -> dict[str, Upload]:
        return self._noted.uploads

    def sent(self, file: ListedFile) -> SentFile | None:
        """What was noted of a file with this content."""
        found = self._noted.files.get(file.name)
        return found if found is not None and found.sha256 == file.sha256 else None

    def note(self, file: ListedFile, sent: SentFile) -> None:
        self._noted.files[file.name] = sent
        self._noted.uploads.pop(file.name, None)
        self._write()

    def forget(self, file: ListedFile) -> None:
        self._noted.files.pop(file.name, None)
        self._write()

    def upload(self, file: ListedFile) -> Upload | None:
        """The parts that were begun of a file with this content."""
        found = self._noted.uploads.get(file.name)
        return found if found is not None and found.sha256 == file.sha256 else None

    def begin(self, file: ListedFile, upload: Upload) -> None:
        self._noted.uploads[file.name] = upload
        self._write()

    def note_part(self, upload: Upload, number: int, tag: str) -> None:
        with self._lock:
            upload.tags[number] = tag
            self._write()

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        make_folder(self._path.parent)
        write_atomically(self._path, msgspec.json.encode(self._noted), durable=False)
