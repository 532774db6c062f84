"""The status file of a run's saves, which `flowcheck status` reads."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from flowcheck.atomic_write import write_atomically
from flowcheck.errors import DECODE_ERRORS
from flowcheck.findings.catalog.earlier_files import finding_of
from flowcheck.findings.finding import Finding
from flowcheck.step_numbers import Step
from flowcheck.vault.persist.checkpoint_ledger import LedgerEntry
from flowcheck.vault.persist.save_doubt import NotedDoubts


class SaveStatus(msgspec.Struct, kw_only=True):
    """The state of a run's saves. Points in time are in seconds since 1970."""

    target: str
    durable_step: Step | None = None
    """Step of the newest durable checkpoint."""
    durable_name: str = ""
    durable_s: float = 0.0
    """Time at which the newest checkpoint became durable."""
    durable_bytes: int = 0
    exact_step: Step | None = None
    """Step of the newest durable checkpoint that is exact, where `doubt` tells that the newest one
    is not; None: none is, or the newest is."""
    exact_name: str = ""
    exact_s: float = 0.0
    """Time at which it became durable."""
    doubt: Finding | None = None
    """Why the newest durable checkpoint is not called exact; None: nothing says so."""
    short: Finding | None = None
    """Which of several stores have not taken the checkpoint that was saved last; None: all have."""
    beside: Finding | None = None
    """That another chain saves to the target too; None: nothing tells so."""
    scrubbed_s: float = 0.0
    """Time at which all blocks of all saves on several stores had been read last."""
    took_s: float = 0.0
    """Seconds that the last save took."""
    count: int = 0
    """Number of checkpoints that this chain saved."""
    phase: str = ""
    """What the save in progress does: writing, sending or verifying. Empty: no save is in
    progress."""
    step: Step | None = None
    """Step of the save in progress."""
    began_s: float = 0.0
    """Time at which the save in progress began."""
    done_bytes: int = 0
    total_bytes: int = 0
    """Bytes of the checkpoint; 0: not known yet."""
    skipped_bytes: int = 0
    """The part of `done_bytes` that was at the target already."""
    error: Finding | None = None
    """Why the last attempt failed; None: it did not fail."""
    attempts: int = 0
    """Number of failed attempts since the last successful one."""
    next_try_s: float = 0.0

    def take_saved(self, saved: LedgerEntry) -> None:
        """saved: the newest durable checkpoint."""
        self.durable_step, self.durable_name = saved.step, saved.name
        self.durable_s, self.durable_bytes = saved.saved, saved.bytes

    def take_doubts(self, noted: NotedDoubts) -> None:
        exact = noted.exact if noted.doubt is not None else None
        self.doubt = noted.doubt
        self.exact_step, self.exact_name, self.exact_s = None, "", 0.0
        if exact is not None:
            self.exact_step, self.exact_name, self.exact_s = exact.step, exact.name, exact.saved


class _SentencesStatus(msgspec.Struct):
    """The field `error` as earlier releases wrote it too: a text, "" if nothing had failed."""

    error: Finding | str | None = None


def write_save_status(path: Path, told: SaveStatus) -> None:
    write_atomically(path, msgspec.json.encode(told), durable=False)


def read_save_status(path: Path) -> SaveStatus | None:
    """The status in the file; None if there is no readable file."""
    with suppress(OSError, *DECODE_ERRORS):
        raw = path.read_bytes()
        told = msgspec.json.decode(raw, type=_SentencesStatus).error
        fields = msgspec.json.decode(raw, type=dict[str, Any]) | {"error": None}
        found = msgspec.convert(fields, SaveStatus)
        found.error = finding_of(told) if told else None
        return found
    return None
