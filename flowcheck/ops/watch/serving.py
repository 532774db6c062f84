"""`flowcheck watch`: a chain's state over HTTP, by a process that reads it as any other may."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from threading import Event

import msgspec

from flowcheck.config import WatchConfig
from flowcheck.errors import FlowCheckError
from flowcheck.ops.watch.reading import Reader
from flowcheck.ops.watch.server import Server
from flowcheck.stages.chain.living import die_with_parent
from flowcheck.stages.rundir import RunDir
from flowcheck.stages.service import Signals

LOOK_S = 0.5


def run(
    root: Path, listen: str | None, token_file: str | None, parent: int | None, *, as_json: bool
) -> int:
    """Serves until a signal, or the end of its parent. Raises ConfigError where it cannot listen,
    or has no word it needs."""
    server = Server(Reader(root), _settings(root, listen, token_file))
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
        finally:
            server.stop()
    return 0


def _settings(root: Path, listen: str | None, token_file: str | None) -> WatchConfig:
    """Those of the job file, where a chain was started there, but for what was stated here."""
    stated = WatchConfig()
    with suppress(FlowCheckError, OSError, msgspec.MsgspecError):
        stated = RunDir(root).settings().watch or stated
    changed = {"listen": listen, "token_file": token_file}
    given = {key: value for key, value in changed.items() if value is not None}
    return WatchConfig(**(msgspec.structs.asdict(stated) | given))
