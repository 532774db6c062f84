"""One connection of a client of the watcher's: who may, and what is answered.

GET /metrics      for Prometheus, as text or as OpenMetrics, as it asks
GET /healthz      {"word", "reason"}; 200 of exact and behind, 503 of tainted and stale
GET /state.json   everything (state.py)
GET /             the page, for people (page/)
"""

from __future__ import annotations

import base64
import binascii
import hmac
import io
import json
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from flowcheck.ops.watch import metrics, page
from flowcheck.ops.watch.health import OK
from flowcheck.ops.watch.state import encode_state
from flowcheck.vault.serve.deadline import Deadlined

if TYPE_CHECKING:
    from flowcheck.ops.watch.server import Server


HEAD_S = 5.0
"""For all of a request's head, and between two requests of a connection."""
LOCAL = ("127.0.0.1", "localhost", "[::1]")
"""What a browser or a scraper of this machine names it; another name may be a page of somebody
else's that was made to point here."""
ALWAYS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
JSON = "application/json"


class Handler(BaseHTTPRequestHandler):
    """Requests of one connection, one after the other."""

    protocol_version = "HTTP/1.1"
    server: Server
    server_version = "flowcheck"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.timeout_s)
        self._head_in = Deadlined(self.connection, min(HEAD_S, self.server.timeout_s))
        self.rfile = io.BufferedReader(self._head_in)

    def handle_one_request(self) -> None:
        self._head_in.again()
        super().handle_one_request()

    def do_GET(self) -> None:
        """Answers, whatever happens on the way."""
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # its body is not read
        try:
            self._answer()
        except (TimeoutError, ConnectionError):
            self.close_connection = True

    def do_HEAD(self) -> None:
        """As GET, without the bytes."""
        self.do_GET()

    def _answer(self) -> None:
        if self.server.token is not None and not self._has_word(self.server.token):
            told = {"WWW-Authenticate": 'Basic realm="flowcheck", charset="UTF-8"'}
            self._refuse(HTTPStatus.UNAUTHORIZED, "send this server's word", told)
        elif self.server.is_loopback and not self._is_local():
            why = "this server is for its own machine: name it 127.0.0.1 or localhost"
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, why)
        else:
            try:
                path = urlsplit(self.path).path
            except ValueError:  # http://[
                self._refuse(HTTPStatus.BAD_REQUEST, "that is no path, and no URL")
                return
            self._tell(path)

    def _tell(self, path: str) -> None:
        state = self.server.reader.state
        match path:
            case "/metrics":
                read = state()
                text, kind = metrics.exposition(read, self.headers.get("Accept", ""))
                self.server.scrapes.note(over=read.in_order)
                self._send(HTTPStatus.OK, text, kind)
            case "/healthz":
                health = state().health
                fine = health.word in OK
                status = HTTPStatus.OK if fine else HTTPStatus.SERVICE_UNAVAILABLE
                self._json(status, {"word": health.word, "reason": health.reason})
            case "/state.json":
                self._send(HTTPStatus.OK, encode_state(state()), JSON)
            case "/":
                self._send(HTTPStatus.OK, page.page(), page.KIND, page.HEADERS)
            case _:
                self._refuse(HTTPStatus.NOT_FOUND, "there are /, /metrics, /healthz, /state.json")

    def _has_word(self, word: bytes) -> bool:
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        sent = given.strip().encode("latin-1", "replace")
        if scheme.lower() == "basic":
            try:
                sent = base64.b64decode(sent, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(sent, word)

    def _is_local(self) -> bool:
        host = self.headers.get("Host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        return name.lower() in LOCAL

    def _json(self, status: HTTPStatus, told: Any, more: Mapping[str, str] | None = None) -> None:
        self._send(status, json.dumps(told).encode() + b"\n", JSON, more)

    def _refuse(self, status: HTTPStatus, why: str, more: Mapping[str, str] | None = None) -> None:
        self._json(status, {"error": why}, more)

    def _send(
        self, status: HTTPStatus, text: bytes, kind: str, more: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        own = {"Content-Type": kind, "Content-Length": str(len(text))}
        for key, value in (ALWAYS | own | dict(more or {})).items():
            self.send_header(key, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Of a request that is none: as any other refusal."""
        self.close_connection = True
        self._refuse(HTTPStatus(code), message or HTTPStatus(code).phrase)

    def log_message(self, format: str, *args: Any) -> None:
        """A scrape a second would fill the log."""
