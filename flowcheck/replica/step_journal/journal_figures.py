"""The figures of the step journal that `flowcheck status` shows. Nothing here loads torch."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from flowcheck.errors import DECODE_ERRORS
from flowcheck.findings.catalog.step_journals import (
    JOURNAL_FIGURES,
    JOURNAL_KEEPS_NONE,
    JOURNAL_NOT_KEPT,
)
from flowcheck.findings.finding import Finding
from flowcheck.step_numbers import Step


class JournalFigures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a journal holds, as its writer left it last."""

    folder: str
    size_bytes: int
    """Bytes on disk."""
    first_step: Step | None
    """The oldest step that is kept; None: none is."""
    last_step: Step | None
    not_kept: int = 0
    """Changes that are not kept, since the chain began."""
    why_not: Finding | None = None
    """Why the last one of them was not; None: all since are kept."""

    @property
    def sentence(self) -> Finding:
        """In words."""
        kept = JOURNAL_KEEPS_NONE(folder=self.folder)
        if self.first_step is not None:
            steps = {"first": self.first_step, "last": self.last_step}
            kept = JOURNAL_FIGURES(folder=self.folder, size_bytes=self.size_bytes, **steps)
        return JOURNAL_NOT_KEPT(kept=kept, count=self.not_kept) if self.not_kept else kept


def read_figures(file: Path) -> JournalFigures | None:
    """None: no journal is kept, or its file is damaged."""
    with suppress(FileNotFoundError, *DECODE_ERRORS):
        return msgspec.json.decode(file.read_bytes(), type=JournalFigures)
    return None
