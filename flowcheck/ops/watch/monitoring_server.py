"""The HTTP server of `flowcheck watch`.

GET /metrics      for Prometheus, as text or as OpenMetrics, as the client asks
GET /healthz      {"word", "reason"}: 200 for exact and behind, 503 for tainted, stale, ended;
                  reason is a finding: {"code", "arguments", "until_audit", "sentence"}
GET /state.json   the whole state (state/chain_state.py)
GET /             the page, for people (page/)

A scraper that gets no answer cannot know whether the chain was killed or stopped.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import io
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

import msgspec

from flowcheck.config import WatchConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.monitoring_requests import (
    INVALID_REQUEST,
    LOCAL_ONLY,
    PATH_UNKNOWN,
    PATH_UNREADABLE,
    TOKEN_NEEDED,
)
from flowcheck.findings.catalog.refused_commands import CANNOT_LISTEN
from flowcheck.findings.finding import Finding
from flowcheck.ops.watch import page, prometheus_metrics
from flowcheck.ops.watch.state.chain_state import encode_state
from flowcheck.ops.watch.state.health_rules import HEALTHY
from flowcheck.ops.watch.state.state_reader import StateReader
from flowcheck.vault.http_support.bounded_http_server import BoundedHttpServer
from flowcheck.vault.http_support.socket_deadline import DeadlineReader
from flowcheck.vault.http_support.tls_context import server_tls
from flowcheck.vault.serve.step_server import read_token


class MonitoringServer(BoundedHttpServer):
    """HTTP server with the state of one chain. It listens once it is created, and answers between
    `start` and `stop`."""

    request_queue_size = 32

    def __init__(
        self, reader: StateReader, config: WatchConfig, say: Callable[[str], None] = lambda _: None
    ) -> None:
        """Raises ConfigError where it cannot listen at that address, or where the token or the
        certificate is missing or unreadable."""
        self.reader, self.timeout_s = reader, config.timeout_s
        self.is_loopback, self.scrapes = config.is_loopback, ScrapeInterval()
        self.token = read_token(config.token_file) if config.token_file is not None else None
        tls = server_tls(config, "watch", say)
        try:
            super().__init__(config.host, config.port, config.connections, MonitoringHandler, tls)
        except OSError as error:
            why = CANNOT_LISTEN(error.strerror)
            raise ConfigError("watch.listen", config.listen, why) from error


REQUEST_HEAD_LIMIT_S = 5.0
"""Seconds for the complete head of a request, and between two requests of a connection. A choice:
a longer limit lets slow clients hold connections, a shorter one breaks slow links."""
LOCAL_HOST_NAMES = ("127.0.0.1", "localhost", "[::1]")
"""Host names of a browser or a scraper on this machine. A request for another name may come from a
foreign page whose name was made to resolve to this machine (DNS rebinding)."""
COMMON_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
JSON = "application/json"


class MonitoringHandler(BaseHTTPRequestHandler):
    """Handles the requests of one connection, one after another."""

    protocol_version = "HTTP/1.1"
    server: MonitoringServer
    server_version = "flowcheck"
    sys_version = ""

    def setup(self) -> None:
        """Limits the time for a request's head to REQUEST_HEAD_LIMIT_S."""
        super().setup()
        self.connection.settimeout(self.server.timeout_s)
        self._head_in = DeadlineReader(
            self.connection, min(REQUEST_HEAD_LIMIT_S, self.server.timeout_s)
        )
        self.rfile = io.BufferedReader(self._head_in)

    def handle_one_request(self) -> None:
        """Handles one request; the connection closes where its client is too slow."""
        self._head_in.restart()
        super().handle_one_request()

    def do_GET(self) -> None:
        """Answers a GET request; any error becomes an HTTP error response."""
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # its body is not read
        try:
            self._answer()
        except (TimeoutError, ConnectionError):
            self.close_connection = True

    def do_HEAD(self) -> None:
        """As GET, without the body."""
        self.do_GET()

    def _answer(self) -> None:
        if self.server.token is not None and not self._has_token(self.server.token):
            told = {"WWW-Authenticate": 'Basic realm="flowcheck", charset="UTF-8"'}
            self._refuse(HTTPStatus.UNAUTHORIZED, TOKEN_NEEDED(), told)
        elif self.server.is_loopback and not self._is_local():
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, LOCAL_ONLY())
        else:
            try:
                path = urlsplit(self.path).path
            except ValueError:  # http://[
                self._refuse(HTTPStatus.BAD_REQUEST, PATH_UNREADABLE())
                return
            self._tell(path)

    def _tell(self, path: str) -> None:
        state = self.server.reader.state
        match path:
            case "/metrics":
                read = state()
                text, kind = prometheus_metrics.metrics_text(read, self.headers.get("Accept", ""))
                self.server.scrapes.note(over=read.in_order)
                self._send(HTTPStatus.OK, text, kind)
            case "/healthz":
                health = state().health
                fine = health.word in HEALTHY
                status = HTTPStatus.OK if fine else HTTPStatus.SERVICE_UNAVAILABLE
                self._json(status, {"word": health.word, "reason": health.reason})
            case "/state.json":
                self._send(HTTPStatus.OK, encode_state(state()), JSON)
            case "/":
                self._send(HTTPStatus.OK, page.page(), page.KIND, page.HEADERS)
            case _:
                self._refuse(HTTPStatus.NOT_FOUND, PATH_UNKNOWN())

    def _has_token(self, token: bytes) -> bool:
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        sent = given.strip().encode("latin-1", "replace")
        if scheme.lower() == "basic":
            try:
                sent = base64.b64decode(sent, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(sent, token)

    def _is_local(self) -> bool:
        host = self.headers.get("Host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        return name.lower() in LOCAL_HOST_NAMES

    def _json(self, status: HTTPStatus, told: Any, more: Mapping[str, str] | None = None) -> None:
        self._send(status, msgspec.json.encode(told) + b"\n", JSON, more)

    def _refuse(
        self, status: HTTPStatus, why: Finding, more: Mapping[str, str] | None = None
    ) -> None:
        """error: for people, and as it was before findings."""
        self._json(status, {"error": str(why), "finding": why}, more)

    def _send(
        self, status: HTTPStatus, text: bytes, kind: str, more: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        own = {"Content-Type": kind, "Content-Length": str(len(text))}
        for key, value in (COMMON_HEADERS | own | dict(more or {})).items():
            self.send_header(key, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answers an invalid request, in the form of every other refusal."""
        self.close_connection = True
        self._refuse(HTTPStatus(code), INVALID_REQUEST(message or HTTPStatus(code).phrase))

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: a scrape a second would fill the log."""


SCRAPE_INTERVAL_MAX_S = 2.5
"""Longest interval between two scrapes, seconds, for which the end of a chain is delayed; less
frequent clients may miss it. A chain's end takes at most 4 s (supervisor.py, GRACE_S)."""


class ScrapeInterval:
    """The interval between scrapes, over all clients. Times are seconds of the monotonic clock."""

    def __init__(self) -> None:
        self._last_s: float | None = None
        self._every_s: float | None = None
        self._told = False

    def note(self, *, over: bool, now_s: float | None = None) -> None:
        """Notes that a scrape was answered. over: its answer said that the chain ends or has ended
        in order."""
        now_s = time.monotonic() if now_s is None else now_s
        if self._last_s is not None:
            self._every_s = now_s - self._last_s
        self._last_s, self._told = now_s, over

    def wait_s(self, now_s: float | None = None) -> float:
        """Seconds for which the server must stay up so that the next scrape can see the end of the
        chain; 0: no client needs it."""
        now_s = time.monotonic() if now_s is None else now_s
        if self._told or self._last_s is None or self._every_s is None:
            return 0.0
        if self._every_s > SCRAPE_INTERVAL_MAX_S:
            return 0.0
        return max(0.0, self._last_s + 1.5 * self._every_s - now_s)
