"""Which chain a copy may follow: once it followed one of an epoch, none of an earlier one."""

from __future__ import annotations

import threading

import msgspec

from flowcheck.atomic_write import write_atomically
from flowcheck.errors import DECODE_ERRORS, StateError
from flowcheck.findings.catalog.replica_copies import (
    COPY_EPOCH,
    COPY_EPOCH_FILE,
    COPY_EPOCH_TWICE,
)
from flowcheck.findings.finding import Finding
from flowcheck.stages.replica_copies.copy_epoch import Epoch
from flowcheck.stages.replica_copies.copy_messages import CopyAnswer
from flowcheck.stages.replica_copies.copy_records import SeenEpoch, epoch_file
from flowcheck.stages.run_directory.run_dir import RunDir

NONE_SEEN = SeenEpoch(Epoch(0, 0, 0), "", "")


class EpochFence:
    """The highest epoch that was followed, on disk before anything of it is taken."""

    def __init__(self, run: RunDir) -> None:
        """Raises StateError where the file is damaged: what it refused is not known then."""
        self._file = epoch_file(run)
        self._lock = threading.Lock()
        self._seen, self.refused = NONE_SEEN, 0
        if self._file.exists():
            try:
                self._seen = msgspec.json.decode(self._file.read_bytes(), type=SeenEpoch)
            except DECODE_ERRORS as error:
                raise StateError(COPY_EPOCH_FILE(file=self._file, error=error)) from error

    @property
    def epoch(self) -> Epoch:
        """The highest that was followed."""
        return self._seen.epoch

    def admit(self, answer: CopyAnswer, url: str) -> Finding | None:
        """Why an answer is refused; None: its chain may be followed, and none of an earlier epoch
        from now on. Raises OSError where that cannot be written."""
        with self._lock:
            why = self._refusal(answer, url)
            if why is not None:
                self.refused += 1
            elif answer.epoch != self._seen.epoch:
                seen = SeenEpoch(answer.epoch, answer.source, answer.place)
                write_atomically(self._file, msgspec.json.encode(seen))
                self._seen = seen
            return why

    def still_admits(self, answer: CopyAnswer) -> bool:
        """Whether no later epoch was followed since the answer was admitted."""
        with self._lock:
            return answer.epoch >= self._seen.epoch and answer.source == self._seen.source

    def _refusal(self, answer: CopyAnswer, url: str) -> Finding | None:
        epoch, seen = answer.epoch, self._seen
        # Runs are counted in one run directory: those of another one are no later for that.
        if seen.place and epoch.stated == seen.epoch.stated and answer.place != seen.place:
            return COPY_EPOCH_TWICE(source=url, epoch=epoch.stated)
        if epoch < seen.epoch:
            return COPY_EPOCH(source=url, epoch=str(epoch), known=str(seen.epoch))
        one_life = (epoch.stated, epoch.run) == (seen.epoch.stated, seen.epoch.run)
        if one_life and seen.place and answer.source != seen.source:
            return COPY_EPOCH_TWICE(source=url, epoch=epoch.stated)
        return None
