"""What every handler of requests for steps has: who is admitted, limits of time, answers in JSON,
refusals."""

from __future__ import annotations

import hmac
import io
import json
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import msgspec

from flowcheck.errors import StateError
from flowcheck.findings.catalog import checkpoint_downloads as findings
from flowcheck.findings.finding import Finding
from flowcheck.untrusted_text import printable
from flowcheck.vault.http_support.bounded_http_server import is_own_user
from flowcheck.vault.http_support.socket_deadline import DeadlineReader

IDLE_S = 5.0
"""Seconds from the end of a request to the end of the next request's head, on one connection. A
choice: longer lets idle clients hold connections."""
LOCAL_HOST_NAMES = ("127.0.0.1", "localhost", "[::1]")
"""Host names by which programs on this machine reach a server on loopback. Another name may be a
foreign web site whose name was made to point to this machine (DNS rebinding)."""
JSON = "application/json"
BYTES = "application/octet-stream"


class GuardedServer(Protocol):
    """What the handler asks its server."""

    timeout_s: float
    """Seconds after which a client that neither reads nor sends is disconnected."""
    token: bytes | None
    """Of the clients; None: only this user and root are admitted, on loopback."""
    is_loopback: bool
    say: Callable[[str], None]
    """Writes a line to the log."""

    @property
    def is_overloaded(self) -> bool:
        """Whether connections end after their answer."""
        ...


class GuardedRequestHandler(BaseHTTPRequestHandler):
    """Answers the requests of one connection, one after the other."""

    protocol_version = "HTTP/1.1"
    server_version = "flowcheck"
    sys_version = ""

    @property
    def guard(self) -> GuardedServer:
        """The server, as far as this class needs it."""
        raise NotImplementedError

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.guard.timeout_s)
        limit_s = min(self.guard.timeout_s, IDLE_S)
        self._head_in = DeadlineReader(self.connection, limit_s)
        self.rfile = io.BufferedReader(self._head_in)

    def handle_one_request(self) -> None:
        self._head_in.restart()
        super().handle_one_request()

    def do_GET(self) -> None:
        """Answers a GET request. An error becomes an answer or ends the connection."""
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # its body is not read, and is no next request
        try:
            self._answer()
        except StateError as error:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, error.finding, {"Retry-After": "2"})
        except (TimeoutError, ConnectionError):
            self.close_connection = True

    def do_HEAD(self) -> None:
        """Answers a HEAD request: the head of GET's answer without a body."""
        self.do_GET()

    def answer_path(self, words: list[str], query: str) -> None:
        """Answers a request of a client that is admitted. words: the parts of its path."""
        raise NotImplementedError

    def _answer(self) -> None:
        if not self._is_authorized():
            told = {"WWW-Authenticate": 'Bearer realm="flowcheck"'}
            sent = self.headers.get("Authorization") is not None
            if self.guard.token is None:
                why = findings.NO_TOKEN_SET()
            elif sent:
                why = findings.WRONG_TOKEN()
            else:
                why = findings.TOKEN_MISSING()
            self._refuse(HTTPStatus.UNAUTHORIZED, why, told)
            return
        if self.guard.is_loopback and not is_local(self.headers.get("Host", "")):
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, findings.LOCAL_NAME_ONLY())
            return
        try:
            parts = urlsplit(self.path)
        except ValueError:  # http://[
            self._refuse(HTTPStatus.BAD_REQUEST, findings.INVALID_URL())
            return
        self.answer_path([unquote(word) for word in parts.path.strip("/").split("/")], parts.query)

    def _is_authorized(self) -> bool:
        if self.guard.token is None:
            return is_own_user(self.client_address[:2], self.connection.getsockname()[:2])
        scheme, _, word = self.headers.get("Authorization", "").partition(" ")
        given = word.strip().encode("latin-1", "replace")
        return scheme.lower() == "bearer" and hmac.compare_digest(given, self.guard.token)

    def _json(
        self, status: HTTPStatus, told: dict[str, Any], more: dict[str, str] | None = None
    ) -> None:
        text = json.dumps(told).encode() + b"\n"
        own = {"Content-Type": JSON, "Content-Length": str(len(text)), "Cache-Control": "no-store"}
        self._head(status, own | (more or {}))
        if self.command != "HEAD":
            self.wfile.write(text)

    def _refuse(self, status: HTTPStatus, why: Finding, more: dict[str, str] | None = None) -> None:
        """Answers with an error: `finding` for programs; `error`, its sentence, for people and for
        clients of earlier releases."""
        self._json(status, {"error": str(why), "finding": msgspec.to_builtins(why)}, more)

    def _head(self, status: HTTPStatus, told: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in told.items():
            self.send_header(key, value)
        if self.guard.is_overloaded or self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Writes one line to the log, with control characters from the client escaped."""
        self.guard.say(printable(f"{self.client_address[0]} {format % args}"))

    def address_string(self) -> str:
        return str(self.client_address[0])


def is_local(host: str) -> bool:
    """Whether a Host header has a name by which programs on this machine reach it
    (LOCAL_HOST_NAMES)."""
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return name.lower() in LOCAL_HOST_NAMES
