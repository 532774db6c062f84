"""An object store (S3, GCS, Azure) as storage target, through fsspec."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flowcheck.errors import FlowCheckError, StateError
from flowcheck.findings.catalog import checkpoint_stores as stores
from flowcheck.replica.checkpoint_files.manifest import MANIFEST, MANIFEST_MAX_BYTES
from flowcheck.vault.persist import s3_multipart
from flowcheck.vault.persist.checkpoint_listing import CheckpointListing, ListedFile
from flowcheck.vault.persist.rate_limit import TransferPace
from flowcheck.vault.persist.store_errors import store_error_finding
from flowcheck.vault.persist.upload_journal import SENT, SentFile, UploadJournal

BLOCK_BYTES = 16 << 20
"""Bytes of an uploaded part; a smaller file is one request. S3 requires 5 MiB or more. A choice:
larger takes memory, smaller costs requests."""
SMALL_BYTES_MAX = MANIFEST_MAX_BYTES
"""Most bytes of an object that is read at once. A manifest is the longest such object."""


class ObjectStore:
    """An object store as `StorageTarget`, which describes the methods."""

    lacking, short = 0, None

    def __init__(self, url: str, fs: Any, journal: Path) -> None:
        """fs: fsspec's file system. journal: a local folder for the upload journals."""
        self.url = url.rstrip("/")
        self._fs, self._journal = fs, journal
        self._base = str(fs._strip_protocol(self.url)).rstrip("/")
        self._parts = urlsplit(url).scheme in ("s3", "s3a") and hasattr(fs, "call_s3")

    def read(self, path: str, most_bytes: int = SMALL_BYTES_MAX) -> bytes | None:
        with self._telling(path):
            try:
                self._fs.invalidate_cache()
                return read_small(self._fs, f"{self._base}/{path}", most_bytes)
            except FileNotFoundError:
                return None

    def write(self, path: str, data: bytes) -> None:
        with self._telling(path):
            self._fs.pipe_file(f"{self._base}/{path}", data)
        if self.read(path) != data:
            raise StateError(stores.NOT_READ_BACK(f"{self.url}/{path}"))

    def holds(self, name: str) -> bool:
        with self._telling(name):
            return bool(self._fs.exists(f"{self._base}/{name}"))

    def send(self, folder: Path, name: str, listing: CheckpointListing, pace: TransferPace) -> None:
        journal = self._journal_of(name)
        for file in listing.files:
            path = f"{name}/{file.name}"
            with self._telling(path):
                if self._there(path, file, journal.sent(file)):
                    pace.note_skipped(file.size_bytes)
                else:
                    journal.note(file, self._send(folder / file.name, path, file, journal, pace))

    def verify(self, name: str, listing: CheckpointListing, pace: TransferPace) -> None:
        journal = self._journal_of(name)
        for file in listing.files:
            path = f"{name}/{file.name}"
            with self._telling(path):
                sent = journal.sent(file)
                same = sent is not None and sent.proved and self._there(path, file, sent)
                if not same and self._read_back(path, pace) != file.sha256:
                    journal.forget(file)
                    raise StateError(stores.NOT_AS_SENT(f"{self.url}/{path}"))
            pace.heartbeat()

    def remove(self, name: str) -> bool:
        folder = f"{self._base}/{name}"
        with self._telling(name):
            if self._fs.exists(f"{folder}/{MANIFEST}"):
                self._fs.rm_file(f"{folder}/{MANIFEST}")
            for path in self._fs.find(folder):
                self._fs.rm_file(path)
        journal = self._journal_of(name)
        for file, upload in journal.uploads.items():  # parts cost money, and nobody sees them
            with self._telling(f"{name}/{file}"):
                s3_multipart.abort_upload(self._fs, f"{self._base}/{name}/{file}", upload)
        journal.remove()
        return True

    def _journal_of(self, name: str) -> UploadJournal:
        return UploadJournal.of(self._journal / f"{name}{SENT}", f"{self.url}/{name}")

    def _there(self, path: str, file: ListedFile, sent: SentFile | None) -> bool:
        """Whether the object at `path` is the file that was sent before, by the size and the tag
        that the store reports."""
        if sent is None:
            return False
        try:
            info = self._info(path)
        except FileNotFoundError:
            return False
        return info.get("size") == file.size_bytes and _tag(info) == sent.tag

    def _info(self, path: str) -> dict[str, Any]:
        self._fs.invalidate_cache()
        return dict(self._fs.info(f"{self._base}/{path}"))

    def _send(
        self, source: Path, path: str, file: ListedFile, journal: UploadJournal, pace: TransferPace
    ) -> SentFile:
        where = f"{self._base}/{path}"
        if self._parts and file.size_bytes > s3_multipart.PART_BYTES:
            wanted = s3_multipart.upload_in_parts(self._fs, where, source, file, journal, pace)
        else:
            wanted = self._stream(where, source, pace)
        info = self._info(path)
        if info.get("size") != file.size_bytes:
            place, stored = f"{self.url}/{path}", info.get("size")
            raise StateError(stores.SIZE_DIFFERS(place=place, stored=stored, sent=file.size_bytes))
        tag = _tag(info)
        return SentFile(sha256=file.sha256, tag=tag, proved=tag == wanted)

    def _stream(self, where: str, source: Path, pace: TransferPace) -> str:
        """Uploads a file as one stream. Returns its md5, which many stores report as the tag."""
        md5 = hashlib.md5(usedforsecurity=False)
        if source.stat().st_size <= BLOCK_BYTES:
            data = source.read_bytes()
            pace.wait_to_send(len(data))
            self._fs.pipe_file(where, data)
            pace.note_moved(len(data))
            return hashlib.md5(data, usedforsecurity=False).hexdigest()
        with source.open("rb") as reader:
            writer = self._fs.open(where, "wb", block_size=BLOCK_BYTES)
            try:
                while data := reader.read(BLOCK_BYTES):
                    pace.wait_to_send(len(data))
                    md5.update(data)
                    writer.write(data)
                    pace.note_moved(len(data))
            except BaseException:
                _discard(writer)
                raise
            writer.close()
        return md5.hexdigest()

    def _read_back(self, path: str, pace: TransferPace) -> str:
        sha256 = hashlib.sha256()
        with self._fs.open(f"{self._base}/{path}", "rb", block_size=BLOCK_BYTES) as reader:
            while data := reader.read(BLOCK_BYTES):
                pace.wait_to_send(len(data))
                sha256.update(data)
                pace.heartbeat()
        return sha256.hexdigest()

    @contextmanager
    def _telling(self, path: str) -> Iterator[None]:
        """Turns any error of fsspec and its libraries into StateError that names the target."""
        try:
            yield
        except FlowCheckError:
            raise
        except Exception as error:
            why = store_error_finding(error)
            raise StateError(stores.AT_PATH(path=f"{self.url}/{path}", why=why)) from error


def read_small(fs: Any, path: str, most_bytes: int) -> bytes:
    """The bytes of an object of at most `most_bytes`. Never requests more. Raises StateError if the
    object is longer, FileNotFoundError if there is none, or any error of `fs`."""
    info = fs.info(path)
    size = info.get("size")
    if info.get("type") == "directory":
        raise FileNotFoundError(path)
    if isinstance(size, int) and size > most_bytes:
        raise StateError(stores.TOO_LONG(place=path, bytes=size, limit=most_bytes))
    if size == 0:  # a range of nothing is an error to some stores
        return b""
    end = size if isinstance(size, int) else most_bytes + 1
    data = bytes(fs.cat_file(path, start=0, end=end))
    if len(data) > (asked := min(end, most_bytes)):
        raise StateError(stores.LONGER_THAN_ASKED(place=path, bytes=len(data), asked=asked))
    return data


def _tag(info: dict[str, Any]) -> str:
    """The tag by which a store describes an object's content: the ETag of S3, or the md5 of GCS and
    Azure in hexadecimal; "" without one."""
    if tag := info.get("ETag"):
        return str(tag).strip('"')
    encoded = info.get("md5Hash") or (info.get("content_settings") or {}).get("content_md5")
    if isinstance(encoded, str):
        return base64.b64decode(encoded).hex()
    return bytes(encoded).hex() if encoded else ""


def _discard(writer: Any) -> None:
    """Cancels an unfinished upload, so that no object appears."""
    with suppress(Exception):  # the error that ended the upload is reported instead
        writer.discard()
    writer.closed = True
