"""The source of a download: a FlowCheck server over HTTP, or a store that fsspec opens.

Several threads fetch parts of files, with one request for each part.
"""

from __future__ import annotations

import http.client
import math
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
from flowcheck.untrusted_paths import (
    checked_checkpoint_name,
    digest_in_name,
    is_checkpoint_name,
    step_in_name,
    step_number,
)
from flowcheck.untrusted_text import printable
from flowcheck.vault.http_support.bounded_response import BoundedResponse
from flowcheck.vault.http_support.http_ranges import content_range
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
from flowcheck.vault.persist.store_errors import store_error_finding

WRITING_S = 600.0
"""Most seconds that a server may take to write a step from memory to files. A choice: longer delays
the error, shorter fails for large models."""
WAIT_MIN_S, WAIT_MAX_S = 0.1, 5.0
"""Shortest and longest wait in seconds before the client asks again whether the step is written,
whatever the server's Retry-After says. A choice: shorter loads the server, longer begins later."""
LISTING_BYTES_MAX = 32 << 20
"""Most bytes of the answer that lists the files of a step. FILES_MAX files with about 150 bytes
each take 10 MB; this is three times as much, for long names."""
REFUSAL_BYTES_MAX = 64 << 10
"""Most bytes of an answer with an error: a sentence in JSON. A choice that bounds memory."""
SHOWN_MAX = 500
"""Most characters of a server's sentence that are shown. A choice of layout."""
LEAST_BYTES_S = 16 << 10
"""Bytes per second. A server that sends a whole answer more slowly is given up. A choice: a
gigabyte would take 18 hours."""
READ_BYTES = 1 << 20
"""Bytes of one read. A choice: smaller costs calls."""
NEWEST = "newest"
"""Asks for the newest step, whether elements of it are tainted or not: LATEST is the newest of
which none are, where there is one."""
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
    """The answer to `GET /steps/N`."""

    step: Step
    digest: str
    files: tuple[_File, ...]
    doubts: tuple[Finding, ...] = ()


class _Listed(msgspec.Struct):
    step: Step


class _Steps(msgspec.Struct):
    """The answer to `GET /steps`."""

    steps: tuple[_Listed, ...]


class ExactSteps(msgspec.Struct):
    """What a chain's server tells of the exact steps in its memory."""

    steps: dict[int, str] = {}
    """{step: digest of its state, in hex}"""
    life: dict[str, int | None] | None = None
    """Of the training job (stages/job_state/job_life.py); None: nobody knows."""


class _Index(msgspec.Struct):
    """The answer to `GET /steps`, of a server whose release tells them."""

    exact: ExactSteps | None = None


class _Writing(msgspec.Struct):
    """The answer to `GET /steps/N` while the server writes the step to files."""

    step: Step


class _Refusal(msgspec.Struct):
    """An error answer of `flowcheck serve`."""

    finding: Finding | None = None


class _RefusalText(msgspec.Struct):
    """An error answer of another server, or of an earlier release of FlowCheck."""

    error: str = ""


@dataclass(frozen=True, slots=True)
class AvailableStep:
    """A step that can be downloaded."""

    name: str
    """Name of the step's folder."""
    listing: CheckpointListing
    doubts: tuple[Finding, ...] = ()
    """What came to light behind its save, as the server or the store's ledger says."""


class DownloadSource(Protocol):
    """A source of steps. Methods raise StateError for what is missing or denied, and TransientError
    for failures that a retry may solve."""

    url: str

    def find(self, step: Step | str) -> AvailableStep:
        """Looks for a step. step: a number, LATEST or NEWEST."""

    def read(self, offer: AvailableStep, file: ListedFile, begin: int, size: int) -> bytes:
        """Exactly `size` bytes of a file from the offset `begin`."""

    def close(self) -> None:
        """Closes all connections."""

    def remarks(self) -> list[Finding]:
        """What the user is told of the reads that were done."""


def open_source(
    url: str, token: str | None, options: dict[str, Any] | None, timeout_s: float, ca: str | None
) -> DownloadSource:
    """The source for a URL: an HTTP server or an object store, by the URL's scheme. ca: CA bundle
    (`client_tls_context`). Raises ConfigError for a URL that cannot be opened."""
    tls = client_tls_context(url, ca)
    if urlsplit(url).scheme in ("http", "https"):
        return HttpSource(url, token, timeout_s, tls)
    from flowcheck.vault.download.striped_source import open_striped

    if (several := open_striped(url, options or {}, timeout_s)) is not None:
        return several
    return ObjectStoreSource(url, open_file_system(url, options or {}, timeout_s, "--from"))


class HttpSource:
    """A server with the interface of `flowcheck serve`."""

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
        step = self._newest() if step == NEWEST else step
        until_s, asked = time.monotonic() + WRITING_S, step
        while time.monotonic() < until_s:
            status, headers, body = self._get(f"/steps/{step}", {}, LISTING_BYTES_MAX)
            self._refuse(status, body)
            if status == 202:
                step = step_number(self._decode_reply(body, _Writing).step, self.url)
                Event().wait(retry_after_s(headers.get("Retry-After", "1")))
                continue
            told = self._decode_reply(body, _Step)
            files = tuple(ListedFile(one.name, one.bytes, one.sha256) for one in told.files)
            found = checked_listing(told.step, told.digest, files, self.url)
            if MANIFEST not in [file.name for file in files]:
                raise StateError(
                    downloads.NO_MANIFEST_THERE(url=self.url, step=found.step, manifest=MANIFEST)
                )
            if asked not in (LATEST, found.step):
                raise StateError(downloads.OTHER_STEP(url=self.url, step=found.step, asked=asked))
            name = checked_checkpoint_name(f"step-{found.step}", self.url)
            return AvailableStep(name, found, checkpoint_ledger.doubts_from_elsewhere(told.doubts))
        raise StateError(
            downloads.NOT_WRITTEN_IN_TIME(url=self.url, step=step, seconds=round(WRITING_S))
        )

    def exact(self) -> ExactSteps:
        """What the server tells of the exact steps in its memory. Raises as `find` does."""
        status, _, body = self._get("/steps", {}, LISTING_BYTES_MAX)
        self._refuse(status, body)
        return self._decode_reply(body, _Index).exact or ExactSteps()

    def _newest(self) -> Step | str:
        """The newest step that the server lists; LATEST where it lists none."""
        status, _, body = self._get("/steps", {}, LISTING_BYTES_MAX)
        self._refuse(status, body)
        told = self._decode_reply(body, _Steps)
        return max((step_number(one.step, self.url) for one in told.steps), default=LATEST)

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

    def remarks(self) -> list[Finding]:
        return []

    def _decode_reply(self, body: bytes | None, kind: type[Told]) -> Told:
        if body is None:
            raise StateError(downloads.LISTING_TOO_LONG(url=self.url, bytes=LISTING_BYTES_MAX))
        try:
            return msgspec.json.decode(body, type=kind)
        except DECODE_ERRORS as error:
            raise StateError(downloads.UNEXPECTED_REPLY(self.url)) from error

    def _refuse(self, status: int, body: bytes | None) -> None:
        """Raises the error for an HTTP status, with the answer's text; returns if the status is
        none."""
        said = _refusal_in_reply(body)
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
        """Sends one request over this thread's connection, which is opened again if it was closed.

        Returns (status, headers, body). body: None if it is longer than `most_bytes`, or in an
        error answer longer than REFUSAL_BYTES_MAX.
        """
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
        made.response_class = BoundedResponse
        return made


def _refusal_in_reply(body: bytes | None) -> Finding | str:
    """The finding in an error answer if this release knows its code, else the answer's text; "" if
    there is neither. The server is not trusted: the text is escaped and cut."""
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


def _read(answer: http.client.HTTPResponse, most_bytes: int, timeout_s: float) -> bytes | None:
    """The body of an answer; None if it is longer than `most_bytes`. Raises TimeoutError if it
    arrives more slowly than LEAST_BYTES_S."""
    length = answer.length
    if length is not None and length > most_bytes:
        return None
    if isinstance(answer, BoundedResponse):
        answer.within.restart(timeout_s + most_bytes / LEAST_BYTES_S)
    body = bytearray()
    while len(body) <= most_bytes:
        part = answer.read(min(READ_BYTES, most_bytes + 1 - len(body)))
        if not part:
            break
        body += part
    return bytes(body) if len(body) <= most_bytes else None


def retry_after_s(stated: str) -> float:
    """Seconds to wait by a Retry-After header, which states seconds or a date (RFC 9110, 10.2.3).
    At least WAIT_MIN_S, at most WAIT_MAX_S; WAIT_MAX_S also for an unreadable header."""
    try:
        asked = float(stated)
    except ValueError:
        try:
            asked = parsedate_to_datetime(stated).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError, OSError):
            return WAIT_MAX_S
    return max(WAIT_MIN_S, min(WAIT_MAX_S, asked)) if math.isfinite(asked) else WAIT_MAX_S


class ObjectStoreSource:
    """The target of a [persist] table in an object store."""

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
        return AvailableStep(name, found, self._doubts_of(name, found.digest))

    def _doubts_of(self, name: str, digest: str) -> tuple[Finding, ...]:
        """By the ledger; that it is damaged is a doubt too. Raises StateError where the store does
        not give it."""
        where = f"{self.url}/{checkpoint_ledger.LEDGER}"
        text = self._cat(checkpoint_ledger.LEDGER)
        try:
            entry = checkpoint_ledger.decode(text, where).entry(name)
        except StateError as error:
            return (downloads.NOTES_UNREADABLE(why=error, ledger=where),)
        if entry is not None and entry.digest == digest:
            return checkpoint_ledger.doubts_from_elsewhere(entry.doubts)
        return ()

    def _name(self, step: Step | str) -> str:
        if step in (LATEST, NEWEST):
            told = self._cat(LATEST, TEXT_BYTES_MAX)
            if told is None:
                raise StateError(downloads.NOTHING_DURABLE(url=self.url, latest=LATEST))
            exact = latest_name(told, f"{self.url}/{LATEST}")
            newest = self._ledger().newest_beside(exact) if step == NEWEST else None
            return newest or exact
        own = [entry.name for entry in self._ledger().entries if entry.step == step]
        return own[-1] if own else self._unlisted(step)

    def _unlisted(self, step: Step | str) -> str:
        """The name of a step that the ledger does not list. Raises StateError where two checkpoints
        of it are there."""
        plain = checked_checkpoint_name(f"step-{step}", self.url)
        there = [name for name in self._names() if name.startswith(f"{plain}-") or name == plain]
        whole = sorted(one for one in there if self._cat(f"{one}/{MANIFEST}") is not None)
        if len(whole) > 1:
            ledger = f"{self.url}/{checkpoint_ledger.LEDGER}"
            told = {"folder": self.url, "step": step, "checkpoints": whole}
            raise StateError(
                stores.SEVERAL_OF_STEP(why=stores.LEDGER_NAMES_NONE(ledger=ledger), **told)
            )
        return whole[0] if whole else plain

    def _names(self) -> list[str]:
        """Names of checkpoints there; [] where the store lists none to this user."""
        with suppress(Exception):  # of whichever library
            found = [str(one).rstrip("/") for one in self._fs.ls(self._base, detail=False)]
            names = [one.rpartition("/")[2] for one in found]
            return [name for name in names if is_checkpoint_name(name)]
        return []

    def _ledger(self) -> checkpoint_ledger.Ledger:
        where = checkpoint_ledger.LEDGER
        return checkpoint_ledger.decode(self._cat(where), f"{self.url}/{where}")

    def read(self, offer: AvailableStep, file: ListedFile, begin: int, size: int) -> bytes:
        if not size:
            return b""
        path = f"{self._base}/{offer.name}/{file.name}"
        try:
            data = bytes(self._fs.cat_file(path, start=begin, end=begin + size))
        except FileNotFoundError as error:
            raise StateError(downloads.REMOVED(url=self.url, name=offer.name)) from error
        except Exception as error:
            raise TransientError(store_error_finding(error)) from error
        if len(data) != size:
            raise TransientError(downloads.SHORT_ANSWER(bytes=len(data), asked=size))
        return data

    def close(self) -> None:
        """Does nothing: fsspec's library owns the connections."""

    def remarks(self) -> list[Finding]:
        return []

    def _cat(self, path: str, most_bytes: int = SMALL_BYTES_MAX) -> bytes | None:
        try:
            return read_small(self._fs, f"{self._base}/{path}", most_bytes)
        except FileNotFoundError:
            return None
        except FlowCheckError:
            raise
        except Exception as error:
            why = store_error_finding(error)
            raise StateError(stores.AT_PATH(path=f"{self.url}/{path}", why=why)) from error
