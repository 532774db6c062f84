"""Where a step is fetched from: a server of ours, or a store that fsspec opens. Pieces of files,
each by itself, from several threads."""

from __future__ import annotations

import http.client
import json
import math
import ssl
import threading
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from threading import Event
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from flowcheck.errors import ConfigError, FlowCheckError, StateError
from flowcheck.replica.files.latest import LATEST
from flowcheck.replica.files.manifest import MANIFEST
from flowcheck.vault.persist import ledger
from flowcheck.vault.persist.listing import File, Listing, listing_of, refuse_strange
from flowcheck.vault.persist.places import opened
from flowcheck.vault.persist.store import sentence
from flowcheck.vault.serve.tls import trusting

WRITING_S = 600.0
"""A server may write a step out of its memory for so long."""
WAIT_MIN_S, WAIT_MAX_S = 0.1, 5.0
"""Between two looks whether it has."""


class Transient(Exception):
    """It may go better the next time."""


class Busy(Transient):
    """It is asked for by too many just now."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A step that is there."""

    name: str
    """Of its folder."""
    listing: Listing


class Origin(Protocol):
    """What is not there, or not allowed, is a StateError; what may pass is Transient."""

    url: str

    def find(self, step: int | str) -> Offer:
        """step: a number or "latest"."""

    def read(self, offer: Offer, file: File, begin: int, size: int) -> bytes:
        """Exactly these bytes."""

    def close(self) -> None:
        """Nothing more is asked for."""


def open_origin(
    url: str, token: str | None, options: dict[str, Any] | None, timeout_s: float, ca: str | None
) -> Origin:
    """By the URL's scheme. ca: see `trusting`. Raises ConfigError for one nothing here can open."""
    tls = trusting(url, ca)
    if urlsplit(url).scheme in ("http", "https"):
        return HttpOrigin(url, token, timeout_s, tls)
    return StoreOrigin(url, opened(url, options or {}, timeout_s, "--from"))


class HttpOrigin:
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
            raise ConfigError("--from", url, "names no host")

    def find(self, step: int | str) -> Offer:
        until_s = time.monotonic() + WRITING_S
        while time.monotonic() < until_s:
            status, headers, body = self._get(f"/steps/{step}", {})
            told = self._told(status, body)
            try:
                if status == 202:
                    step = int(told["step"])
                    Event().wait(wait_s(headers.get("Retry-After", "1")))
                    continue
                files = tuple(
                    File(str(one["name"]), int(one["bytes"]), str(one["sha256"]))
                    for one in told["files"]
                )
                found = Listing(int(told["step"]), str(told["digest"]), files)
            except (KeyError, TypeError, ValueError) as error:
                raise StateError(f"{self.url}: does not answer as flowcheck serve does") from error
            refuse_strange(files, self.url)
            return Offer(f"step-{found.step}", found)
        raise StateError(f"{self.url}: step {step} is not written within {WRITING_S:.0f} s")

    def read(self, offer: Offer, file: File, begin: int, size: int) -> bytes:
        path = f"/steps/{offer.listing.step}/files/{quote(file.name)}"
        asked = {"Range": f"bytes={begin}-{begin + size - 1}", "If-Range": f'"{file.sha256}"'}
        status, _, body = self._get(path, asked if size else {}, most_bytes=size)
        if status == 206 or (status == 200 and size == file.size_bytes):
            if len(body) != size:
                raise Transient(f"{len(body)} bytes came of {size}")
            return body
        if status == 200:
            raise StateError(f"{self.url}: {file.name} is another file there by now; begin anew")
        self._told(status, body)
        raise StateError(f"{self.url}: answers {status} to a range of {file.name}")

    def close(self) -> None:
        for connection in self._made:
            connection.close()

    def _told(self, status: int, body: bytes) -> dict[str, Any]:
        """The JSON of an answer. Raises for one that refuses."""
        try:
            told = json.loads(body)
        except (ValueError, RecursionError):
            told = None
        said = told.get("error", "") if isinstance(told, dict) else ""
        if status in (401, 403):
            raise StateError(
                f"{self.url}: {said or 'refuses'}: --token-file names the file with it"
            )
        if status in (429, 503):
            raise Busy(f"it answers {status} {said}".rstrip())
        if status >= 500:
            raise Transient(f"it answers {status} {said}".rstrip())
        if status not in (200, 202) or not isinstance(told, dict):
            raise StateError(f"{self.url}: {said or f'answers {status}'}")
        return told

    def _get(
        self, path: str, more: dict[str, str], most_bytes: int | None = None
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """One request over this thread's connection, which is made anew where it was closed."""
        connection = getattr(self._own, "connection", None)
        for last in (False, True) if connection is not None else (True,):
            if connection is None:
                connection = self._own.connection = self._connected()
                self._made.append(connection)
            try:
                connection.request("GET", self._parts.path + path, headers=self._headers | more)
                answer = connection.getresponse()
                if answer.status == 200 and most_bytes is not None:
                    length = int(answer.headers.get("Content-Length", "0"))
                    if length > most_bytes:  # not what was asked for: its bytes are not waited for
                        connection.close()
                        self._own.connection = None
                        return 200, answer.headers, b""
                return answer.status, answer.headers, answer.read()
            except ssl.SSLCertVerificationError as error:
                why = f"is not trusted: {error.verify_message}: --ca names its authority's file"
                raise StateError(f"{self.url}: {why}") from error
            except (OSError, http.client.HTTPException, ValueError) as error:
                connection.close()
                connection = self._own.connection = None
                if last:
                    raise Transient(f"{type(error).__name__}: {error}") from error
        raise AssertionError("the last attempt raises")

    def _connected(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname, self._parts.port
        assert host is not None
        if self._tls is not None:
            limit_s = self._timeout_s
            return http.client.HTTPSConnection(host, port, timeout=limit_s, context=self._tls)
        return http.client.HTTPConnection(host, port, timeout=self._timeout_s)


def wait_s(stated: str) -> float:
    """How long a server asks to be left alone, by a Retry-After: seconds or a date (RFC 9110,
    10.2.3). At least WAIT_MIN_S, at most WAIT_MAX_S, which is also what nothing known asks for."""
    try:
        asked = float(stated)
    except ValueError:
        try:
            at = parsedate_to_datetime(stated)
        except (ValueError, TypeError, OverflowError):
            return WAIT_MAX_S
        asked = at.timestamp() - time.time()
    return max(WAIT_MIN_S, min(WAIT_MAX_S, asked)) if math.isfinite(asked) else WAIT_MAX_S


class StoreOrigin:
    """A target of [persist], from anywhere."""

    def __init__(self, url: str, fs: Any) -> None:
        self.url, self._fs = url.rstrip("/"), fs
        self._base = str(fs._strip_protocol(self.url)).rstrip("/")

    def find(self, step: int | str) -> Offer:
        name = self._name(step)
        manifest = self._cat(f"{name}/{MANIFEST}")
        if manifest is None:
            raise StateError(f"{self.url}: there is no step {step}: {name} has no {MANIFEST}")
        return Offer(name, listing_of(manifest, f"{self.url}/{name}"))

    def _name(self, step: int | str) -> str:
        if step == LATEST:
            told = self._cat(LATEST)
            if told is None:
                raise StateError(f"{self.url}: nothing durable lies there: it has no {LATEST!r}")
            return told.decode(errors="replace").strip()
        known = ledger.decode(self._cat(ledger.LEDGER), f"{self.url}/{ledger.LEDGER}").entries
        own = [entry.name for entry in known if entry.step == step]
        return own[-1] if own else f"step-{step}"

    def read(self, offer: Offer, file: File, begin: int, size: int) -> bytes:
        if not size:
            return b""
        path = f"{self._base}/{offer.name}/{file.name}"
        try:
            data = bytes(self._fs.cat_file(path, start=begin, end=begin + size))
        except FileNotFoundError as error:
            raise StateError(f"{self.url}: {offer.name} has gone for newer ones") from error
        except Exception as error:
            raise Transient(sentence(error)) from error
        if len(data) != size:
            raise Transient(f"{len(data)} bytes came of {size}")
        return data

    def close(self) -> None:
        """Its connections are the library's."""

    def _cat(self, path: str) -> bytes | None:
        try:
            return bytes(self._fs.cat_file(f"{self._base}/{path}"))
        except FileNotFoundError:
            return None
        except FlowCheckError:
            raise
        except Exception as error:
            raise StateError(f"{self.url}/{path}: {sentence(error)}") from error
