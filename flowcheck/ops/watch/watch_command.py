"""`flowcheck watch`: serves a chain's state over HTTP, from a process of its own."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event

import msgspec

from flowcheck.config import WatchConfig
from flowcheck.errors import DECODE_ERRORS, FlowCheckError
from flowcheck.ops.watch.monitoring_server import MonitoringServer
from flowcheck.ops.watch.state.state_reader import StateReader
from flowcheck.stages.run_directory.process_liveness import die_with_parent
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.service_loop import Signals

LOOK_S = 0.5
"""Seconds between two checks for signals. A choice: a shorter time costs CPU time, a longer one
ends later."""
LAST_S = 0.05
"""Seconds between two checks whether scrapers have read the last state. A choice: a shorter time
costs CPU time, a longer one delays the end."""


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """Options of the command, which override the job file's; None: the job file's value."""

    listen: str | None = None
    token_file: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None


def run(root: Path, stated: WatchOptions, parent: int | None, *, as_json: bool) -> int:
    """Serves until a signal, or until the process `parent` ends (None: no parent). Returns the
    exit code. Raises ConfigError where it cannot listen, or where a token or certificate is
    missing."""

    def say(line: str) -> None:
        if not as_json:
            print(line, flush=True)

    server = MonitoringServer(StateReader(root), _settings(root, stated), say)
    with Signals(parent) as signals:
        if parent is not None and not die_with_parent(parent):
            server.server_close()
            return 0
        server.start()
        try:
            told = f"{root} is shown at {server.url}/ (/metrics, /healthz, /state.json)"
            print(json.dumps({"url": server.url}) if as_json else told, flush=True)
            while not signals.received:
                Event().wait(LOOK_S)
            while parent is not None and not signals.hard and server.scrapes.wait_s():
                Event().wait(LAST_S)
        finally:
            server.stop()
    return 0


def _settings(root: Path, stated: WatchOptions) -> WatchConfig:
    """The job file's settings, where a chain was started there, overridden by the options."""
    own = WatchConfig()
    with suppress(FlowCheckError, OSError, *DECODE_ERRORS):
        own = RunDir(root).settings().watch or own
    given = {key: value for key, value in asdict(stated).items() if value is not None}
    if stated.tls_certificate is not None:  # the job file's key is of the job file's
        given |= {"tls_key": stated.tls_key}
    return WatchConfig(**(msgspec.structs.asdict(own) | given))
