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


class SaveStatus(msgspec.Struct, kw_only=True):
    """Times are seconds since 1970."""

    target: str
    durable_step: Step | None = None
    durable_name: str = ""
    durable_s: float = 0.0
    """When it became durable."""
    durable_bytes: int = 0
    took_s: float = 0.0
    count: int = 0
    """Saved by this chain."""
    phase: str = ""
    """writing, sending, verifying; empty: nothing is under way."""
    step: Step | None = None
    """Of the save that is under way."""
    began_s: float = 0.0
    done_bytes: int = 0
    total_bytes: int = 0
    """0: not known yet."""
    skipped_bytes: int = 0
    """Of `done_bytes`: were at the target already."""
    error: Finding | None = None
    """Why the last attempt failed; None: it did not fail."""
    attempts: int = 0
    """How many failed since the last one that succeeded."""
    next_try_s: float = 0.0


class _SentencesStatus(msgspec.Struct):
    """What an earlier version wrote as text, "" where nothing had failed."""

    error: Finding | str | None = None


def write_save_status(path: Path, told: SaveStatus) -> None:
    write_atomically(path, msgspec.json.encode(told), durable=False)


def read_save_status(path: Path) -> SaveStatus | None:
    """None without a file that can be read."""
    with suppress(OSError, *DECODE_ERRORS):
        raw = path.read_bytes()
        told = msgspec.json.decode(raw, type=_SentencesStatus).error
        fields = msgspec.json.decode(raw, type=dict[str, Any]) | {"error": None}
        found = msgspec.convert(fields, SaveStatus)
        found.error = finding_of(told) if told else None
        return found
    return None
