"""A machine's folder of a fleet: its copy of the fleet's state, job files, records of its chains,
and the locks that tell which process keeps which chain."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

import msgspec

from flowcheck.atomic_write import write_atomically
from flowcheck.errors import DECODE_ERRORS, ConfigError, StateError
from flowcheck.findings.catalog.fleet_running import STATE_DAMAGED, STATE_HELD, STATE_MISSING
from flowcheck.findings.finding import Finding
from flowcheck.fleet.fleet_state import FleetState, StateRank, decode_fleet, encode_fleet
from flowcheck.private_files import make_folder, open_private, open_private_folder

STATE_BYTES_MAX = 64 << 20
"""A choice: 1,024 nodes with a chain and a copy each take some 4 MiB."""


class ChainRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the keeping of a chain has come to."""

    starts: int = 0
    """How often it was started, since the folder was made."""
    adopted: int = 0
    """How often it was found running by a process that had not started it."""
    generation: int = 0
    """Of the state that it was started with last."""
    job: str = ""
    """`job_digest` of the job file that it was started with (fleet_state.py)."""
    starter: str = ""
    """`process_identity` of what was started last."""
    end_before_ns: int = 0
    """When the run before that start ended (ChainEnd.time_ns); 0: there was none."""
    over: bool = False
    """It ended in order, and is not started again under this generation."""
    why: Finding | None = None
    """Why it does not run; None: it does, or was not looked at yet."""


class NewerState(msgspec.Struct, frozen=True, kw_only=True):
    """A state that another machine has told of, and this one has not."""

    generation: int
    mine: tuple[str, ...]
    """Chains of this machine in it."""
    stated: str = ""
    """Its `stated_digest`."""
    stopped: bool = False
    """The fleet is not to run; a machine that has a state of its own keeps a stop as that."""

    @property
    def rank(self) -> StateRank:
        return StateRank(self.generation, self.stopped, self.stated)


LOCK_LIMIT_S = 10.0
"""Seconds that a lock of some milliseconds is waited for. A choice: what holds it longer hangs."""
LOCK_LOOK_S = 0.02


class NodeFolder:
    """The folder STATE/NAME/NODE."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def of(cls, state: FleetState, node: str) -> NodeFolder:
        return cls(Path(state.state) / state.name / node)

    @property
    def node(self) -> str:
        return self.root.name

    @property
    def file(self) -> Path:
        """This machine's copy of the state."""
        return self.root / "fleet-state.json"

    def make(self) -> None:
        """Makes the folders, private to their owner. Raises ConfigError, OSError."""
        os.close(open_private_folder(self.root))
        for name in ("jobs", "logs", "records", "locks", "runs"):
            make_folder(self.root / name)

    def read(self) -> FleetState:
        """Raises ConfigError where there is none, or it is damaged."""
        try:
            with os.fdopen(open_private(self.file, os.O_RDONLY), "rb") as file:
                text = file.read(STATE_BYTES_MAX + 1)
            return decode_fleet(text[:STATE_BYTES_MAX])
        except FileNotFoundError as error:
            raise ConfigError("state", str(self.file), STATE_MISSING()) from error
        except DECODE_ERRORS as error:
            raise ConfigError("state", str(self.file), STATE_DAMAGED(error)) from error

    @property
    def _newer_file(self) -> Path:
        return self.root / "newer.json"

    def newer(self) -> NewerState | None:
        """What was heard of a newer state; None: nothing."""
        with suppress(OSError, *DECODE_ERRORS):
            return msgspec.json.decode(self._newer_file.read_bytes(), type=NewerState)
        return None

    def hear(self, newer: NewerState) -> None:
        """Keeps that there is a newer state: chains of this one are not started from then on.
        Raises OSError."""
        known = self.newer()
        if known is None or known.rank < newer.rank:
            write_atomically(self._newer_file, msgspec.json.encode(newer))

    def outranks(self, state: FleetState) -> NewerState | None:
        """What was heard of a state that takes the place of this one; None: of none."""
        newer = self.newer()
        return newer if newer is not None and newer.rank > state.rank else None

    def wanted_here(self, state: FleetState) -> frozenset[str]:
        """Names of the chains that may run on this machine. state: as `read` gives it."""
        if (newer := self.outranks(state)) is not None:
            return frozenset(newer.mine)
        own = state.on(self.node) if state.wanted else ()
        return frozenset(chain.name for chain in own)

    def take(self, state: FleetState) -> FleetState:
        """Keeps the state if its generation is higher than that of the one there; returns the one
        that is there now, which of the same number may be another one. Raises OSError."""
        self.make()
        with self._changing():
            with suppress(ConfigError):
                known = self.read()
                if known.generation >= state.generation:
                    return known
            write_atomically(self.file, encode_fleet(state))
        return state

    def stop(self, generation: int) -> FleetState:
        """Keeps that the chains are not to run, as of this generation, if it is higher than the one
        there, or the one there is a start of the same number. Raises ConfigError, OSError."""
        with self._changing():
            known = self.read()
            if (known.generation, not known.wanted) >= (generation, True):
                return known
            stopped = msgspec.structs.replace(known, wanted=False, generation=generation)
            write_atomically(self.file, encode_fleet(stopped))
        return stopped

    def runs(self) -> list[Path]:
        """Run directories of all chains that were ever started here."""
        return sorted(path for path in (self.root / "runs").glob("*") if path.is_dir())

    def job_file(self, name: str) -> Path:
        return self.root / "jobs" / f"{name}.toml"

    def log(self, name: str) -> Path:
        """What the chain, or the keeper, printed."""
        return self.root / "logs" / f"{name}.log"

    def record(self, name: str) -> ChainRecord:
        with suppress(OSError, *DECODE_ERRORS):
            text = (self.root / "records" / f"{name}.json").read_bytes()
            return msgspec.json.decode(text, type=ChainRecord)
        return ChainRecord()

    def write_record(self, name: str, record: ChainRecord) -> None:
        """Raises OSError."""
        path = self.root / "records" / f"{name}.json"
        write_atomically(path, msgspec.json.encode(record), durable=False)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Raises StateError where another process holds the state for LOCK_LIMIT_S."""
        with self.locked("state", wait_s=LOCK_LIMIT_S) as mine:
            if not mine:
                raise StateError(STATE_HELD(self.file))
            yield

    @contextmanager
    def locked(self, name: str, *, wait_s: float = 0.0) -> Iterator[bool]:
        """Holds a lock of this folder within the block; yields whether it got it. The kernel lets
        it go when its process ends, however that ends. wait_s: seconds to wait for it."""
        path = self.root / "locks" / name
        held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            until_s = time.monotonic() + wait_s
            while not (mine := _flocked(held)) and time.monotonic() < until_s:
                Event().wait(LOCK_LOOK_S)
            yield mine
        finally:
            os.close(held)

    def is_locked(self, name: str) -> bool:
        """Whether a process holds that lock."""
        with self.locked(name) as free:
            return not free


def _flocked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
