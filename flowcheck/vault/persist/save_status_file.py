"""The status file of a run's saves, which `flowcheck status` reads."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from flowcheck.atomic_write import write_atomically
from flowcheck.errors import DECODE_ERRORS
from flowcheck.step_numbers import Step


class SaveStatus(msgspec.Struct, kw_only=True):
    """Times are seconds since 1970."""

    target: str
    durable_step: int | None = None
    durable_name: str = ""
    durable_s: float = 0.0
    """When it was."""
    durable_bytes: int = 0
    took_s: float = 0.0
    count: int = 0
    """Saved by this chain."""
    phase: str = ""
    """writing, sending, verifying; empty: nothing is under way."""
    step: Step | None = None
    """Of what is under way."""
    began_s: float = 0.0
    done_bytes: int = 0
    total_bytes: int = 0
    """0: not known yet."""
    skipped_bytes: int = 0
    """Of those done: were there already."""
    error: str = ""
    """Of the last attempt; empty: it did not fail."""
    attempts: int = 0
    """That failed since the last one that did not."""
    next_try_s: float = 0.0


def write(path: Path, told: SaveStatus) -> None:
    write_atomically(path, msgspec.json.encode(told), durable=False)


def read_save_status(path: Path) -> SaveStatus | None:
    """None where there is none."""
    with suppress(OSError, *DECODE_ERRORS):
        return msgspec.json.decode(path.read_bytes(), type=SaveStatus)
    return None
