"""Small files of both sides of a copy: for `status`, for the next life of a process, for the next
chain in the folder. Nothing here loads torch."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from flowcheck.atomic_write import write_atomically
from flowcheck.errors import DECODE_ERRORS
from flowcheck.findings.catalog.replica_copies import (
    COPY_FOLLOWER,
    COPY_FOLLOWER_GONE,
    COPY_STATE,
    COPY_STATE_KNOWN,
)
from flowcheck.findings.finding import Finding
from flowcheck.stages.replica_copies.copy_epoch import ID_BYTES, Epoch
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step

SILENT_S = 60.0
"""Seconds without a request after which a copy counts as gone: a copy asks every few seconds. A
choice."""
FOLLOWERS_MAX = 32
"""Most copies that are listed; those that asked last. A choice that bounds the file."""
Told = TypeVar("Told", bound=msgspec.Struct)


class Follower(msgspec.Struct, frozen=True, kw_only=True):
    """A copy, as the chain that it follows sees it."""

    peer: str
    """Its address."""
    step: Step
    """That it has."""
    lag_steps: int
    lag_s: float
    """Seconds for which a later change has been there; 0: none is."""
    sent_bytes: int
    states: int = 0
    """Whole states that were sent to it."""
    silent_s: float = 0.0
    """Seconds since its last request ended."""

    @property
    def sentence(self) -> Finding:
        """In words."""
        if self.silent_s > SILENT_S:
            gone = {"silent": round(self.silent_s), "step": self.step, "bytes": self.sent_bytes}
            return COPY_FOLLOWER_GONE(peer=self.peer, **gone)
        told = {"step": self.step, "lag": self.lag_steps, "seconds": round(self.lag_s, 1)}
        return COPY_FOLLOWER(peer=self.peer, bytes=self.sent_bytes, **told)


class CopiesRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Of the chain that is copied: who follows it."""

    url: str
    epoch: str = ""
    followers: tuple[Follower, ...] = ()
    why_not: Finding | None = None
    """Why copies get nothing, or should not; None: nothing stands against it."""


class CopyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Of a copy: what it follows, and how far behind it is."""

    source: str
    """URL of the chain that answered last; of the first one where none has."""
    epoch: str = ""
    answers: bool = False
    """Whether the last request was answered."""
    newest: Step = Step(0)
    """The newest step of the chain that is known."""
    lag_steps: int = 0
    lag_s: float = 0.0
    """Seconds for which a later step has been known that the copy has not; 0: none is."""
    received_bytes: int = 0
    changes: int = 0
    """That were applied."""
    states: int = 0
    """Whole states that it was brought up by."""
    blocks_again: int = 0
    """Blocks that had another digest and were fetched anew."""
    refused: int = 0
    """Answers of older epochs."""
    gradient_bytes: int = 0
    why_not: Finding | None = None
    """Why it does not follow at the moment; None: it does."""
    differs: bool = False
    """It does not follow, as its next step differs from the chain's."""

    @property
    def sentence(self) -> Finding:
        """In words."""
        told = {"lag": self.lag_steps, "seconds": round(self.lag_s, 1)}
        epoch, received = self.epoch or "-", self.received_bytes
        if not self.answers:
            own = {"source": self.source, "epoch": epoch, "bytes": received}
            return COPY_STATE_KNOWN(lag=self.lag_steps, **own)
        return COPY_STATE(source=self.source, epoch=epoch, bytes=received, **told)


class SeenEpoch(msgspec.Struct, frozen=True):
    """The highest epoch that a copy followed."""

    epoch: Epoch
    source: str
    """Which life of a chain had it."""
    place: str
    """Of which run directory."""


class RunCount(msgspec.Struct, frozen=True):
    """How often a chain that may be copied began in a run directory."""

    runs: int
    place: str
    """Of the run directory, by chance: another machine's has another one."""


def copies_file(run: RunDir) -> Path:
    """Of CopiesRecord."""
    return run.root / "copies.json"


def copy_file(run: RunDir) -> Path:
    """Of CopyRecord."""
    return run.root / "copy.json"


def epoch_file(run: RunDir) -> Path:
    """Of SeenEpoch. It outlives the chain: a later one must not follow what this one refused."""
    return run.root / "copy-epoch.json"


def run_count_file(run: RunDir) -> Path:
    """Of RunCount. It outlives the chain."""
    return run.root / "copies-runs.json"


def read_copies(run: RunDir) -> CopiesRecord | None:
    """None: no copies may follow, or the file is damaged."""
    return _read(copies_file(run), CopiesRecord)


def read_copy(run: RunDir) -> CopyRecord | None:
    """None: the run is no copy, or the file is damaged."""
    return _read(copy_file(run), CopyRecord)


def write_record(file: Path, record: msgspec.Struct) -> None:
    """For `status`; left out where there is no room."""
    with suppress(OSError):
        write_atomically(file, msgspec.json.encode(record), durable=False)


def next_run(run: RunDir) -> RunCount:
    """Of a chain that begins in the run directory, from 1; on disk when this returns. Raises
    OSError where that fails, msgspec.MsgspecError where the file is damaged."""
    file, known = run_count_file(run), RunCount(0, secrets.token_hex(ID_BYTES))
    if file.exists():
        known = msgspec.json.decode(file.read_bytes(), type=RunCount)
    now = RunCount(known.runs + 1, known.place)
    write_atomically(file, msgspec.json.encode(now))
    return now


def _read(file: Path, kind: type[Told]) -> Told | None:
    with suppress(FileNotFoundError, *DECODE_ERRORS):
        return msgspec.json.decode(file.read_bytes(), type=kind)
    return None
