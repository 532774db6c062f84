"""What a run says of its checkpoints: a small file that `flowcheck status` reads."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from flowcheck.errors import MALFORMED
from flowcheck.step_numbers import Step
from flowcheck.whole import write_whole


class Told(msgspec.Struct, kw_only=True):
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


def write(path: Path, told: Told) -> None:
    write_whole(path, msgspec.json.encode(told), durable=False)


def read(path: Path) -> Told | None:
    """None where there is none."""
    with suppress(OSError, *MALFORMED):
        return msgspec.json.decode(path.read_bytes(), type=Told)
    return None
