"""Reads a step journal: the entries of one replica, and their bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import xxhash

from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog.step_journals import JOURNAL_UNREADABLE
from flowcheck.private_files import open_private
from flowcheck.replica.step_journal.journal_folder import (
    Segment,
    entries_in,
    open_gap_in,
    segments_in,
)
from flowcheck.replica.step_journal.journal_records import JournalLine


class JournalReader:
    """The entries of one folder, oldest first. Of segments one is open at a time."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError where it cannot be read, ConfigError as `open_private` does."""
        self.gap = open_gap_in(folder)
        """What is not kept behind the entries; None: nothing says so."""
        held = [(line, one) for one in segments_in(folder) for line in entries_in(one)]
        self.lines = [line for line, _ in held]
        self._segments = {id(line): segment for line, segment in held}
        self._open: tuple[Segment, int] | None = None

    def payload(self, line: JournalLine) -> np.ndarray:
        """[line.size_bytes] its bytes. line: one of `lines`. Raises StateError where they are not
        there, or damaged."""
        segment = self._segments[id(line)]
        at, raw = 0, np.empty(0, np.uint8)
        try:
            descriptor = self._descriptor(segment)
            held = range(os.fstat(descriptor).st_size + 1)
            if line.at in held and line.at + line.size_bytes in held[line.at :]:
                raw = np.empty(line.size_bytes, np.uint8)
            while at < raw.size:
                read = os.preadv(descriptor, [raw[at:].data], line.at + at)
                if not read:
                    break
                at += read
        except (OSError, ConfigError) as error:
            raise StateError(JOURNAL_UNREADABLE(file=segment.gradients, step=line.step)) from error
        if at < line.size_bytes or xxhash.xxh3_128_digest(raw.data) != line.checksum:
            raise StateError(JOURNAL_UNREADABLE(file=segment.gradients, step=line.step))
        return raw

    def _descriptor(self, segment: Segment) -> int:
        if self._open is None or self._open[0] != segment:
            self.close()
            self._open = segment, open_private(segment.gradients, os.O_RDONLY)
        return self._open[1]

    def close(self) -> None:
        if self._open is not None:
            os.close(self._open[1])
            self._open = None


def journals_below(folder: Path) -> Iterator[JournalReader]:
    """Of the folder itself, then of each job's folder below it. Raises as JournalReader does."""
    for place in [folder, *sorted(path for path in folder.rglob("*") if path.is_dir())]:
        reader = JournalReader(place)
        if reader.lines:
            yield reader
