"""Where a step is downloaded from: a FlowCheck server over HTTP, or a store that fsspec opens.

Several threads fetch pieces of files, each piece by itself.
"""

from __future__ import annotations

import http.client
import io
import math
import socket
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from threading import Event
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from flowcheck.errors import DECODE_ERRORS, ConfigError, FlowCheckError, StateError
from flowcheck.findings.catalog import checkpoint_downloads as downloads
from flowcheck.findings.catalog import checkpoint_stores as stores
from flowcheck.findings.finding import Finding, entries
from flowcheck.replica.checkpoint_files.latest_pointer import LATEST, TEXT_BYTES_MAX, latest_name
from flowcheck.replica.checkpoint_files.manifest import MANIFEST
from flowcheck.step_numbers import Step
from flowcheck.terminal_escape import printable
from flowcheck.untrusted_paths import (
    checked_checkpoint_name,
    digest_in_name,
    step_in_name,
    step_number,
)
from flowcheck.vault.http_support.http_ranges import content_range
from flowcheck.vault.http_support.socket_deadline import DeadlineReader
from flowcheck.vault.http_support.tls_context import client_tls_context
from flowcheck.vault.persist import checkpoint_ledger
from flowcheck.vault.persist.checkpoint_listing import (
    CheckpointListing,
    ListedFile,
    checked_listing,
    listing_of_manifest,
)
from flowcheck.vault.persist.object_store import SMALL_BYTES_MAX, read_small
from flowcheck.vault.persist.storage_target import open_file_system
from flowcheck.vault.persist.store_errors import refusal_of

WRITING_S = 600.0
"""Seconds that a server may write a step out of its memory. A choice: longer delays the error,
shorter fails for large models."""
WAIT_MIN_S, WAIT_MAX_S = 0.1, 5.0
"""Seconds between two looks whether it has, at least and at most, whatever the server asks for. A
choice: shorter loads the server, longer begins later."""
LISTING_BYTES_MAX = 32 << 20
"""Bytes of a server's answer that lists the files of a step: some 150 each (FILES_MAX), 10 MB;
three times as many for long names."""
REFUSAL_BYTES_MAX = 64 << 10
"""Bytes of an answer that refuses: a sentence in JSON. A choice that bounds memory."""
SHOWN_MAX = 500
"""Characters of a server's sentence that are shown. A choice of layout."""
HEAD_S = 60.0
"""Seconds for all of an answer's head; a step that is still in memory takes a server a while. A
choice: longer delays the error."""
LEAST_BYTES_S = 16 << 10
"""Bytes a second. A server that gives less, over all of an answer, is let go. A choice: a gigabyte
would take 18 hours."""
READ_BYTES = 1 << 20
"""Bytes read at once. A choice: smaller costs calls."""
Told = TypeVar("Told")


class TransientError(Exception):
    """A request failed; the next try may succeed."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding)
        self.finding = finding


class ServerBusy(TransientError):
    """The server has too many requests at the moment."""


class _File(msgspec.Struct):
    name: str
    bytes: int
    sha256: str


class _Step(msgspec.Struct):
    """What `GET /steps/N` answers."""

    step: Step
    digest: str
    files: tuple[_File, ...]


class _Writing(msgspec.Struct):
    """What it answers while the step is written."""

    step: Step


class _Refusal(msgspec.Struct):
    """What `flowcheck serve` says of a request that it refuses."""

    finding: Finding | None = None


class _RefusalText(msgspec.Struct):
    """The same of other servers, and of earlier releases."""

    error: str = ""


@dataclass(frozen=True, slots=True)
class AvailableStep:
    """A step that is there."""

    name: str
    """Of its folder."""
    listing: CheckpointListing


class DownloadSource(Protocol):
    """What is not there, or not allowed, is a StateError; what may pass is Transient."""

    url: str

    def find(self, step: Step | str) -> AvailableStep:
        """step: a number or "latest"."""

    def read(self, offer: AvailableStep, file: ListedFile, begin: int, size: int) -> bytes:
        """Exactly these bytes."""

    def close(self) -> None:
        """Nothing more is asked for."""


def open_source(
    url: str, token: str | None, options: dict[str, Any] | None, timeout_s: float, ca: str | None
) -> DownloadSource:
    """By the URL's scheme. ca: see `client_tls_context`. Raises ConfigError for one
    nothing here can open."""
    tls = client_tls_context(url, ca)
    if urlsplit(url).scheme in ("http", "https"):
        return HttpSource(url, token, timeout_s, tls)
    return ObjectStoreSource(url, open_file_system(url, options or {}, timeout_s, "--from"))


class HttpSource:
    """`flowcheck serve`, or whatever answers as it does."""

    def __init__(
        self, url: str, token: str | None, timeout_s: float, tls: ssl.SSLContext | None = None
    ) -> None:
        self.url, self._tls = url.rstrip("/"), tls
        self._parts, self._timeout_s = urlsplit(self.url), timeout_s
        self._headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        self._own = threading.local()
        self._made: list[http.client.HTTPConnection] = []
        if not self._parts.hostname:
            raise ConfigError("--from", url, downloads.NO_HOST())

    def find(self, step: Step | str) -> AvailableStep:
        until_s, asked = time.monotonic() + WRITING_S, step
        while time.monotonic() < until_s:
            status, headers, body = self._get(f"/steps/{step}", {}, LISTING_BYTES_MAX)
            self._refuse(status, body)
            if status == 202:
                step = step_number(self._told(body, _Writing).step, self.url)
                Event().wait(wait_s(headers.get("Retry-After", "1")))
                continue
            told = self._told(body, _Step)
            files = tuple(ListedFile(one.name, one.bytes, one.sha256) for one in told.files)
            found = checked_listing(told.step, told.digest, files, self.url)
            if MANIFEST not in [file.name for file in files]:
                raise StateError(
                    downloads.NO_MANIFEST_THERE(url=self.url, step=found.step, manifest=MANIFEST)
                )
            if asked not in (LATEST, found.step):
                raise StateError(downloads.OTHER_STEP(url=self.url, step=found.step, asked=asked))
            return AvailableStep(checked_checkpoint_name(f"step-{found.step}", self.url), found)
        raise StateError(
            downloads.NOT_WRITTEN_IN_TIME(url=self.url, step=step, seconds=round(WRITING_S))
        )

    def read(self, offer: AvailableStep, file: ListedFile, begin: int, size: int) -> bytes:
        path = f"/steps/{offer.listing.step}/files/{quote(file.name)}"
        asked = {"Range": f"bytes={begin}-{begin + size - 1}", "If-Range": f'"{file.sha256}"'}
        status, headers, body = self._get(path, asked if size else {}, size)
        if status == 206 and body is None:
            raise StateError(downloads.MORE_THAN_ASKED(url=self.url, file=file.name, bytes=size))
        if body is not None and (status == 206 or (status == 200 and size == file.size_bytes)):
            place = headers.get("Content-Range") if status == 206 else None
            if place not in (None, content_range((begin, begin + size), file.size_bytes)):
                other = f"{place!r:.80}"
                raise StateError(downloads.OTHER_RANGE(url=self.url, file=file.name, range=other))
            if len(body) != size:
                raise TransientError(downloads.SHORT_ANSWER(bytes=len(body), asked=size))
            return body
        if status == 200:
            raise StateError(downloads.FILE_REPLACED(url=self.url, file=file.name))
        self._refuse(status, body)
        raise StateError(downloads.UNEXPECTED_STATUS(url=self.url, status=status, file=file.name))

    def close(self) -> None:
        for connection in self._made:
            connection.close()

    def _told(self, body: bytes | None, kind: type[Told]) -> Told:
        if body is None:
            raise StateError(downloads.LISTING_TOO_LONG(url=self.url, bytes=LISTING_BYTES_MAX))
        try:
            return msgspec.json.decode(body, type=kind)
        except DECODE_ERRORS as error:
            raise StateError(downloads.UNEXPECTED_REPLY(self.url)) from error

    def _refuse(self, status: int, body: bytes | None) -> None:
        """Raises for a status that is an error, with what the answer says."""
        said = _said(body)
        if status in (401, 403):
            denied = said or f"HTTP {status}"
            raise StateError(downloads.DENIED(url=self.url, said=denied))
        if status in (429, 503):
            raise ServerBusy(_answered(status, said))
        if status >= 500:
            raise TransientError(_answered(status, said))
        if status not in (200, 202, 206):
            raise StateError(downloads.REFUSED(url=self.url, said=said or f"HTTP {status}"))

    def _get(
        self, path: str, more: dict[str, str], most_bytes: int
    ) -> tuple[int, http.client.HTTPMessage, bytes | None]:
        """One request over this thread's connection, which is made anew where it was closed. No
        more than `most_bytes` of an answer are read, and of one that refuses REFUSAL_BYTES_MAX;
        a body that is longer is None."""
        connection = getattr(self._own, "connection", None)
        for last in (False, True) if connection is not None else (True,):
            if connection is None:
                connection = self._own.connection = self._connected()
                self._made.append(connection)
            try:
                connection.request("GET", self._parts.path + path, headers=self._headers | more)
                answer = connection.getresponse()
                fine = answer.status in (200, 202, 206)
                body = _read(answer, most_bytes if fine else REFUSAL_BYTES_MAX, self._timeout_s)
                if not answer.isclosed():  # what more it sends is not waited for
                    connection.close()
                    self._own.connection = None
                return answer.status, answer.headers, body
            except ssl.SSLCertVerificationError as error:
                untrusted = downloads.UNTRUSTED(url=self.url, error=error.verify_message)
                raise StateError(untrusted) from error
            except (OSError, http.client.HTTPException, ValueError) as error:
                connection.close()
                connection = self._own.connection = None
                if last:
                    kind = type(error).__name__
                    failed = downloads.CONNECTION_FAILED(kind=kind, error=str(error))
                    raise TransientError(failed) from error
        raise AssertionError("the last attempt raises")

    def _connected(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname, self._parts.port
        assert host is not None
        limit_s = self._timeout_s
        if self._tls is not None:
            made: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port, timeout=limit_s, context=self._tls
            )
        else:
            made = http.client.HTTPConnection(host, port, timeout=limit_s)
        made.response_class = _Answer
        return made


def _said(body: bytes | None) -> Finding | str:
    """The finding of an answer where this release has its sentence, else the text; "" of neither.
    Whoever answered may have written anything."""
    text, found = "", None
    with suppress(*DECODE_ERRORS):
        text = msgspec.json.decode(body or b"", type=_RefusalText).error
    with suppress(*DECODE_ERRORS):
        found = msgspec.json.decode(body or b"", type=_Refusal).finding
    if found is not None and found.code in entries() and len(str(found)) <= SHOWN_MAX:
        return found
    return printable(text)[:SHOWN_MAX]


def _answered(status: int, said: Finding | str) -> Finding:
    if not said:
        return downloads.SERVER_STATUS(status)
    return downloads.SERVER_ANSWERS(status=status, said=said)


class _Answer(http.client.HTTPResponse):
    """An answer whose head comes within one time, however slowly it drips: HEAD_S."""

    def __init__(self, sock: socket.socket, *more: Any, **named: Any) -> None:
        super().__init__(sock, *more, **named)
        self.fp.close()
        self.within = DeadlineReader(sock, HEAD_S, sock.makefile("rb", buffering=0))
        self.fp = io.BufferedReader(self.within)


def _read(answer: http.client.HTTPResponse, most_bytes: int, timeout_s: float) -> bytes | None:
    """An answer's body; None of one that is longer. Raises TimeoutError where it comes more slowly
    than LEAST_BYTES_S."""
    length = answer.length
    if length is not None and length > most_bytes:
        return None
    if isinstance(answer, _Answer):
        answer.within.restart(timeout_s + most_bytes / LEAST_BYTES_S)
    body = bytearray()
    while len(body) <= most_bytes:
        part = answer.read(min(READ_BYTES, most_bytes + 1 - len(body)))
        if not part:
            break
        body += part
    return bytes(body) if len(body) <= most_bytes else None


def wait_s(stated: str) -> float:
    """How long a server asks to be left alone, by a Retry-After: seconds or a date (RFC 9110,
    10.2.3). At least WAIT_MIN_S, at most WAIT_MAX_S, which is also what nothing known asks for."""
    try:
        asked = float(stated)
    except ValueError:
        try:
            asked = parsedate_to_datetime(stated).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError, OSError):
            return WAIT_MAX_S
    return max(WAIT_MIN_S, min(WAIT_MAX_S, asked)) if math.isfinite(asked) else WAIT_MAX_S


class ObjectStoreSource:
    """A target of [persist], from anywhere."""

    def __init__(self, url: str, fs: Any) -> None:
        self.url, self._fs = url.rstrip("/"), fs
        self._base = str(fs._strip_protocol(self.url)).rstrip("/")

    def find(self, step: Step | str) -> AvailableStep:
        name = self._name(step)
        manifest = self._cat(f"{name}/{MANIFEST}")
        if manifest is None:
            raise StateError(
                downloads.NO_STEP_THERE(url=self.url, step=step, name=name, manifest=MANIFEST)
            )
        found = listing_of_manifest(manifest, f"{self.url}/{name}")
        if found.step != step_in_name(name) or not found.digest.startswith(digest_in_name(name)):
            digest = f"{found.digest!r:.80}"
            raise StateError(
                downloads.STEP_OF_NAME(url=self.url, name=name, step=found.step, digest=digest)
            )
        return AvailableStep(name, found)

    def _name(self, step: Step | str) -> str:
        if step == LATEST:
            told = self._cat(LATEST, TEXT_BYTES_MAX)
            if told is None:
                raise StateError(downloads.NOTHING_DURABLE(url=self.url, latest=LATEST))
            return latest_name(told, f"{self.url}/{LATEST}")
        known = checkpoint_ledger.decode(
            self._cat(checkpoint_ledger.LEDGER), f"{self.url}/{checkpoint_ledger.LEDGER}"
        ).entries
        own = [entry.name for entry in known if entry.step == step]
        return own[-1] if own else checked_checkpoint_name(f"step-{step}", self.url)

    def read(self, offer: AvailableStep, file: ListedFile, begin: int, size: int) -> bytes:
        if not size:
            return b""
        path = f"{self._base}/{offer.name}/{file.name}"
        try:
            data = bytes(self._fs.cat_file(path, start=begin, end=begin + size))
        except FileNotFoundError as error:
            raise StateError(downloads.REMOVED(url=self.url, name=offer.name)) from error
        except Exception as error:
            raise TransientError(refusal_of(error)) from error
        if len(data) != size:
            raise TransientError(downloads.SHORT_ANSWER(bytes=len(data), asked=size))
        return data

    def close(self) -> None:
        """Its connections are the library's."""

    def _cat(self, path: str, most_bytes: int = SMALL_BYTES_MAX) -> bytes | None:
        try:
            return read_small(self._fs, f"{self._base}/{path}", most_bytes)
        except FileNotFoundError:
            return None
        except FlowCheckError:
            raise
        except Exception as error:
            why = refusal_of(error)
            raise StateError(stores.AT_PATH(path=f"{self.url}/{path}", why=why)) from error
