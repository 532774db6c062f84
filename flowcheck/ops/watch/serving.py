"""`flowcheck watch`: a chain's state over HTTP, by a process that reads it as any other may."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event

import msgspec

from flowcheck.config import WatchConfig
from flowcheck.errors import MALFORMED, FlowCheckError
from flowcheck.ops.watch.reading import Reader
from flowcheck.ops.watch.server import Server
from flowcheck.stages.chain.living import die_with_parent
from flowcheck.stages.rundir import RunDir
from flowcheck.stages.service import Signals

LOOK_S = 0.5
LAST_S = 0.05


@dataclass(frozen=True, slots=True)
class Stated:
    """By the command, in place of the job file's; None: as that has it."""

    listen: str | None = None
    token_file: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None


def run(root: Path, stated: Stated, parent: int | None, *, as_json: bool) -> int:
    """Serves until a signal, or the end of its parent. Raises ConfigError where it cannot listen,
    or has no word or certificate it needs."""

    def say(line: str) -> None:
        if not as_json:
            print(line, flush=True)

    server = Server(Reader(root), _settings(root, stated), say)
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


def _settings(root: Path, stated: Stated) -> WatchConfig:
    """Those of the job file, where a chain was started there, but for what was stated here."""
    own = WatchConfig()
    with suppress(FlowCheckError, OSError, *MALFORMED):
        own = RunDir(root).settings().watch or own
    given = {key: value for key, value in asdict(stated).items() if value is not None}
    if stated.tls_certificate is not None:  # the job file's key is of the job file's
        given |= {"tls_key": stated.tls_key}
    return WatchConfig(**(msgspec.structs.asdict(own) | given))
