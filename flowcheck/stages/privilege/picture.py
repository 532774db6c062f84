"""A picture that a command writes: a file that is none is not written over."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

BEGIN = b"<svg"
"""Of every picture that is drawn here."""


def is_picture(path: Path) -> bool:
    """Whether a file is one, or holds nothing yet."""
    with suppress(OSError), path.open("rb") as file:
        return file.read(len(BEGIN)) in (b"", BEGIN)
    return False
