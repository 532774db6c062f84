"""States for the page to show: recorded, with every mark, large, and meant to do harm."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec

from flowcheck.config import WatchConfig
from flowcheck.findings.catalog.earlier_files import earlier_finding
from flowcheck.ops.watch.monitoring_server import MonitoringServer
from flowcheck.ops.watch.state.chain_state import ChainState, StepState, decode_state, encode_state
from flowcheck.ops.watch.state.state_reader import StateReader

DATA = Path(__file__).resolve().parents[1] / "data" / "watch"
DRAWN = "document.querySelector('#word') !== null && !document.querySelector('.is-nobody')"
AT_ONCE = "dispatchEvent(new Event('online'))"
"""The page asks now, and not within a second."""
WHY = earlier_finding("every flow went on")
HOSTILE = "</script><img src=x onerror=alert(1)><b onclick=alert(2)>\u202eesrever\u202c\x1b[31m"


class Told:
    """In place of a reader: a state that a test changes as it likes, read just now."""

    def __init__(self, state: ChainState) -> None:
        self.told, self.moves, self.gone = state, True, False

    def state(self) -> ChainState:
        if self.gone:
            raise ConnectionResetError  # and so hangs up on those who are connected already
        if self.moves:
            self.told = msgspec.structs.replace(self.told, time_ns=time.time_ns())
        return self.told

    def change(self, **parts: Any) -> None:
        self.told = msgspec.structs.replace(self.told, **parts)


@contextlib.contextmanager
def serving(
    told: Told, listen: str = "127.0.0.1:0", token_file: Path | None = None
) -> Iterator[MonitoringServer]:
    server = MonitoringServer(
        cast(StateReader, told),
        WatchConfig(listen=listen, token_file=str(token_file) if token_file else None),
    )
    server.start()
    try:
        yield server
    finally:
        server.stop()


def recorded(name: str) -> ChainState:
    return decode_state((DATA / name).read_bytes())


def with_job(state: ChainState, **parts: Any) -> ChainState:
    job = msgspec.structs.replace(state.jobs[0], **parts)
    return msgspec.structs.replace(state, jobs=(job, *state.jobs[1:]))


def marked() -> tuple[StepState, ...]:
    """A step for each mark there is."""
    each: list[dict[str, Any]] = [
        {"lost": WHY},
        {"missing": 7},
        {"missing": 7, "healed": 7},
        {"tainted": True},
        {"audited": True},
        {"audited": False},
        {"anchored": True},
    ]
    return tuple(StepState(step=number, arrived_ns=1, **one) for number, one in enumerate(each, 1))


def hostile(state: ChainState) -> ChainState:
    """Every string a stranger could choose is one that means harm."""
    text = HOSTILE + "x" * 10_000
    plain = {"word", "kind", "what", "version", "code", "algorithm"}

    def worse(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: worse(one, name) for name, one in value.items()}
        if isinstance(value, list):
            return [worse(one, key) for one in value]
        return text if isinstance(value, str) and value and key not in plain else value

    return decode_state(json.dumps(worse(json.loads(encode_state(state)))).encode())


def large(state: ChainState) -> ChainState:
    """Eight jobs of 120 steps, each tenth of them marked, behind 64 rings."""
    marks = marked()
    steps = tuple(
        msgspec.structs.replace(marks[number // 10 % 7], step=number, applied_ns=number)
        if number % 10 == 0
        else StepState(step=number, arrived_ns=number, applied_ns=number + 10**6)
        for number in range(1000, 1120)
    )
    jobs = tuple(
        msgspec.structs.replace(state.jobs[0], number=number, name=f"job-{number}", timeline=steps)
        for number in range(1, 9)
    )
    rings = tuple(
        msgspec.structs.replace(state.rings[0], number=number, fill=number / 64)
        for number in range(64)
    )
    return msgspec.structs.replace(state, jobs=jobs, rings=rings)
