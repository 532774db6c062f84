"""Keeps one chain of a machine running: finds it and adopts it, or starts it by `flowcheck up`.

The chain is nobody's hostage: it is a program of its own, and who keeps it may end at any time. It
is known by its run directory, whose supervisor is alive or not. Two that keep the same chain start
it once, by a lock, and where that does not reach, `flowcheck up` refuses a run directory in use.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event
from urllib.parse import urlsplit

import msgspec

from flowcheck.atomic_write import write_atomically
from flowcheck.errors import DECODE_ERRORS
from flowcheck.findings.catalog.fleet_running import (
    CHAIN_ENDED,
    HELD_BY_ANOTHER,
    NEWER_KNOWN,
    START_PRINTED,
    START_REFUSED,
    START_SLOW,
    STARTS_SOON,
    STOPPED,
)
from flowcheck.findings.finding import Finding
from flowcheck.fleet.fleet_chains import FleetChain
from flowcheck.fleet.fleet_state import FleetState, job_digest
from flowcheck.ops.fleet.detached_process import start_detached
from flowcheck.ops.fleet.node_folder import ChainRecord, NodeFolder
from flowcheck.ops.watch.state.shutdown_record import read_end
from flowcheck.stages.run_directory.process_liveness import live_pid, process_identity
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.stage_table import SUPERVISOR
from flowcheck.untrusted_text import printable

START_LIMIT_S = 120.0
"""Seconds from a start to the chain's supervisor: torch is loaded and a killed chain's replica
written meanwhile. A choice: longer holds the lock of a start that hangs."""
LOOK_S = 0.1
"""Seconds between two looks at a chain that starts. A choice: shorter costs processor time."""
AGAIN_MIN_S, AGAIN_MAX_S = 1.0, 60.0
"""Seconds after a failed start to the next one, doubling between them. A choice: shorter loads the
machine with what cannot succeed."""
LIVED_S = 60.0
"""Seconds that a chain must have run for its end not to count as a failed start. A choice."""
LINE_MAX = 500
"""Characters of a log's line that are shown."""


def chain_supervisor(chain: FleetChain) -> int | None:
    """The process that a chain runs under; None: it does not run. Raises ConfigError for a folder
    of somebody else's."""
    return RunDir(Path(chain.run)).stage_pids().get(SUPERVISOR.name)


def _answers(url: str) -> bool:
    """Whether something listens there: without the run directory only this tells that a chain of
    before runs, whose folder was removed."""
    parts = urlsplit(url)
    with suppress(OSError), socket.create_connection((parts.hostname or "", parts.port or 0), 1.0):
        return True
    return False


class ChainKeeping:
    """Of one chain; `look` is called again and again."""

    def __init__(self, folder: NodeFolder, name: str) -> None:
        self._folder, self._name = folder, name
        self._pid: int | None = None
        self._since_s = 0.0
        self._failures = 0
        self._not_before_s = 0.0

    def look(self, ended: Callable[[], bool] = lambda: False) -> Finding | None:
        """Starts the chain if it is to run and does not. ended: whether the caller is to end, which
        ends a wait. Returns why it does not run; None: it does. Raises FlowCheckError and OSError
        for what is wrong with the folder."""
        state = self._folder.read()
        chain = next((own for own in state.on(self._folder.node) if own.name == self._name), None)
        if chain is None or not state.wanted:
            self._pid = None
            return STOPPED()
        pid, record = chain_supervisor(chain), self._folder.record(self._name)
        if pid is not None:
            self._alive(pid, record)
            return None
        if self._pid is not None:  # it ended since the last look
            self._pid = None
            self._wait(failed=time.monotonic() - self._since_s < LIVED_S)
        if record.generation == state.generation and (why := self._over(chain, record)):
            return why
        if time.monotonic() < self._not_before_s:
            return record.why or STARTS_SOON()
        if (newer := self._folder.outranks(state)) is not None:
            return NEWER_KNOWN(own=state.generation, newest=newer.generation)
        if live_pid(record.starter) is not None:  # it takes its time; there is never a second one
            return START_SLOW(seconds=START_LIMIT_S, log=self._folder.log(self._name))
        if not Path(chain.run).exists() and _answers(chain.served):
            return HELD_BY_ANOTHER(url=chain.served, run=chain.run)
        with self._folder.locked(f"start-{self._name}") as mine:
            # Another one may have started it, or `down` have come, before this one got the lock.
            if not mine or chain_supervisor(chain) is not None or not self._folder.read().wanted:
                return record.why or STARTS_SOON()
            return self._start(chain, state, record, ended)

    def _alive(self, pid: int, record: ChainRecord) -> None:
        if pid == self._pid:
            return
        self._pid, self._since_s = pid, time.monotonic()
        new = msgspec.structs.replace(record, adopted=record.adopted + 1, why=None, over=False)
        self._folder.write_record(self._name, new)

    def _over(self, chain: FleetChain, record: ChainRecord) -> Finding | None:
        """Why it is not started again; None: it is to be."""
        if record.over:
            return record.why
        end = None
        with suppress(OSError, *DECODE_ERRORS):
            end = read_end(RunDir(Path(chain.run)))
        if end is None or not end.in_order or end.time_ns == record.end_before_ns:
            return None
        why = CHAIN_ENDED(end.by)
        self._folder.write_record(self._name, msgspec.structs.replace(record, over=True, why=why))
        return why

    def _start(
        self,
        chain: FleetChain,
        state: FleetState,
        record: ChainRecord,
        ended: Callable[[], bool],
    ) -> Finding | None:
        job, log = self._folder.job_file(self._name), self._folder.log(self._name)
        write_atomically(job, chain.job.encode())
        size = log.stat().st_size if log.exists() else 0
        record = msgspec.structs.replace(
            record,
            starts=record.starts + 1,
            generation=state.generation,
            over=False,
            why=None,
            end_before_ns=_end_ns(chain),
            job=job_digest(chain.job),
            starter="",
        )
        self._folder.write_record(self._name, record)
        program = [sys.executable, "-m", "flowcheck", "up", str(job), "--run", chain.run]
        began_s = time.monotonic()
        starter = process_identity(start_detached(program, log, state.folder))
        record = msgspec.structs.replace(record, starter=starter)
        self._folder.write_record(self._name, record)
        while time.monotonic() - began_s < START_LIMIT_S and not ended():
            if (pid := chain_supervisor(chain)) is not None:
                self._pid, self._since_s = pid, time.monotonic()
                return None
            if live_pid(starter) is None:
                why = START_PRINTED(_last_line(log, size))
                return self._failed(record, START_REFUSED(why=why, log=log))
            Event().wait(LOOK_S)
        return self._failed(record, START_SLOW(seconds=time.monotonic() - began_s, log=log))

    def _wait(self, *, failed: bool) -> None:
        """Before the next start: longer after each that failed, not at all after one that lived."""
        self._failures = self._failures + 1 if failed else 0
        wait_s = min(AGAIN_MAX_S, AGAIN_MIN_S * 2 ** (self._failures - 1)) if failed else 0.0
        self._not_before_s = time.monotonic() + wait_s

    def _failed(self, record: ChainRecord, why: Finding) -> Finding:
        self._wait(failed=True)
        self._folder.write_record(self._name, msgspec.structs.replace(record, why=why))
        return why


def _end_ns(chain: FleetChain) -> int:
    """When the chain before ended, as its record has it; 0: there is no record."""
    with suppress(OSError, *DECODE_ERRORS):
        end = read_end(RunDir(Path(chain.run)))
        return 0 if end is None else end.time_ns
    return 0


def _last_line(log: Path, begin: int) -> str:
    """Of what a program printed from byte `begin` on, without what to do, which is indented."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(begin, file.seek(0, 2) - LINE_MAX * 8))
        lines = file.read(LINE_MAX * 8).decode(errors="replace").split("\n")
        said = [line for line in lines if line.strip() and not line.startswith(" ")]
        return printable(said[-1])[:LINE_MAX] if said else ""
    return ""
