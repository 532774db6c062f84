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
"""Suffix of a journal's name, after the checkpoint's name."""


class SentFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was uploaded completely."""

    sha256: str
    tag: str
    """The tag that the store reported after the upload (ETag or md5)."""
    proved: bool
    """Whether the tag is a checksum of the content and is right."""


class Upload(msgspec.Struct, kw_only=True):
    """A file that is uploaded in parts and not complete."""

    id: str
    sha256: str
    part_bytes: int
    tags: dict[int, str] = {}
    """{number of the part: ETag that the store reported}."""


class _Noted(msgspec.Struct, kw_only=True):
    to: str
    files: dict[str, SentFile] = {}
    uploads: dict[str, Upload] = {}


class UploadJournal:
    """The journal of the upload of one checkpoint to one target."""

    def __init__(self, path: Path, noted: _Noted) -> None:
        """Use `UploadJournal.of` instead."""
        self._path, self._noted, self._lock = path, noted, Lock()

    @classmethod
    def of(cls, path: Path, to: str) -> UploadJournal:
        """The journal in the file `path` for the target `to`; an empty one if the file is missing,
        damaged or for another target."""
        noted = _Noted(to=to)
        with suppress(OSError, *DECODE_ERRORS):
            found = msgspec.json.decode(path.read_bytes(), type=_Noted)
            noted = found if found.to == to else noted
        return cls(path, noted)

    @property
    def uploads(self) -> dict[str, Upload]:
        return self._noted.uploads

    def sent(self, file: ListedFile) -> SentFile | None:
        """The entry of a file with this content; None if it was not uploaded completely."""
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
        """The unfinished upload of a file with this content; None if there is none."""
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
