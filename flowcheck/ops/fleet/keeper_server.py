"""The HTTP server of a machine's keeper: `GET /node` gives its report, `GET /fleet` its state of
the fleet without job files, `POST /stop` ends chains.

No request brings a job file, for a job file is a program: those come by Ray alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import msgspec

from flowcheck.config.persist_serve_config import LOOPBACK
from flowcheck.errors import DECODE_ERRORS, ConfigError, FlowCheckError
from flowcheck.findings.catalog import checkpoint_downloads as downloads
from flowcheck.findings.catalog.fleet_running import KEEPER_PATH, STOP_REQUEST
from flowcheck.fleet.fleet_state import FleetState
from flowcheck.ops.fleet.node_folder import NodeFolder
from flowcheck.ops.fleet.node_look import node_report
from flowcheck.ops.fleet.state_fence import GENERATION_MAX
from flowcheck.vault.http_support.bounded_http_server import BoundedHttpServer
from flowcheck.vault.http_support.tls_context import server_tls
from flowcheck.vault.serve.guarded_request_handler import JSON, GuardedRequestHandler
from flowcheck.vault.serve.step_server import OVERLOAD_S, read_token

CONNECTIONS = 64
"""At a time. A choice: each takes a thread."""
TIMEOUT_S = 10.0
"""Seconds for a client that neither reads nor sends. A choice: an answer is some KiB."""
REQUEST_BYTES = 256
"""Most bytes of a request to stop."""


class StopRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /stop`."""

    generation: int


class KeeperHandler(GuardedRequestHandler):
    """Answers the requests of one connection."""

    server: KeeperServer

    @property
    def guard(self) -> KeeperServer:
        return self.server

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Writes no line for what is as it should be: other keepers ask every few seconds."""
        if code != HTTPStatus.OK:
            super().log_request(code, size)

    def do_POST(self) -> None:  # noqa: N802
        """Answers as GET does. A web page cannot send this: its browser asks first whether it may
        send JSON to another origin, and is not told that it may."""
        self.close_connection = True
        self.do_GET()

    def answer_path(self, words: list[str], query: str) -> None:
        """Answers a client that is admitted."""
        try:
            match self.command, words:
                case (("GET" | "HEAD"), ["node"]):
                    self._json(HTTPStatus.OK, self.server.report())
                case (("GET" | "HEAD"), ["fleet"]):
                    # Job files, which may have secrets, are left out: what is none is no machine's.
                    state = self.server.folder.read().for_node("")
                    self._json(HTTPStatus.OK, msgspec.to_builtins(state))
                case "POST", ["stop"]:
                    self._stop()
                case _:
                    self._refuse(HTTPStatus.NOT_FOUND, KEEPER_PATH())
        except FlowCheckError as error:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, error.finding)

    def _stop(self) -> None:
        size = self.headers.get("Content-Length", "")
        wanted = size.isascii() and size.isdigit() and 0 < int(size) <= REQUEST_BYTES
        if not wanted or self.headers.get("Content-Type") != JSON or "Origin" in self.headers:
            self._refuse(HTTPStatus.BAD_REQUEST, STOP_REQUEST())
            return
        try:
            asked = msgspec.json.decode(self.rfile.read(int(size)), type=StopRequest)
        except DECODE_ERRORS:
            self._refuse(HTTPStatus.BAD_REQUEST, STOP_REQUEST())
            return
        if not 0 < asked.generation < GENERATION_MAX:
            self._refuse(HTTPStatus.BAD_REQUEST, STOP_REQUEST())
            return
        self.server.folder.stop(asked.generation)
        self._json(HTTPStatus.OK, self.server.report(fresh=True))


class KeeperServer(BoundedHttpServer):
    """Listens from its construction on and serves between `start` and `stop`."""

    def __init__(self, folder: NodeFolder, state: FleetState, say: Callable[[str], None]) -> None:
        """say: writes a line to the log. Raises ConfigError if the server cannot listen, or if the
        token or TLS files cannot be used."""
        self.folder, self.say, self.timeout_s = folder, say, TIMEOUT_S
        self.newer: int | None = None
        """A higher generation that another machine has told of."""
        place = urlsplit(state.keepers[folder.node])
        host, port = str(place.hostname), int(place.port or 0)
        self.token = read_token(state.token_file) if state.token_file is not None else None
        self.is_loopback = host in LOOPBACK
        self._lock = threading.Lock()
        self._report: tuple[float, dict[str, Any]] | None = None
        self._refused_s = -OVERLOAD_S
        tls = server_tls(state, "keeper", say)
        try:
            super().__init__(host, port, CONNECTIONS, KeeperHandler, tls)
        except OSError as error:
            right = downloads.CANNOT_LISTEN(host=host, error=error.strerror)
            raise ConfigError("port", port, right) from error

    def report(self, *, fresh: bool = False) -> dict[str, Any]:
        """The machine's report, at most half a second old: however many ask, chains are looked at
        no more often. Raises ConfigError."""
        with self._lock:
            now = time.monotonic()
            if fresh or self._report is None or now - self._report[0] > 0.5:
                told = msgspec.to_builtins(node_report(self.folder, self.newer))
                self._report = time.monotonic(), told
            return self._report[1]

    @property
    def is_overloaded(self) -> bool:
        """Whether clients were refused lately. Connections then end after each answer."""
        return time.monotonic() - self._refused_s < OVERLOAD_S

    def refused(self) -> None:
        self._refused_s = time.monotonic()
