"""The updater's part of the step journal (replica/step_journal.py): with a saved
checkpoint it gives every later step again after this machine has died."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from flowcheck.config import JobConfig
from flowcheck.findings.finding import Finding
from flowcheck.replica.element_patch import patch_of_sections
from flowcheck.replica.element_ranges import Ranges, difference
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.step_journal import StepJournal
from flowcheck.step_numbers import Step


class KeptSteps:
    """Writes what the replica's steps were made with. Does nothing without `[gradient_log]
    folder`, and for sharded training, whose steps bring whole parameters."""

    def __init__(
        self, config: JobConfig, replica: Replica, say: Callable[[Finding], None], *, gathered: bool
    ) -> None:
        """gathered: parameters are followed as they are sent."""
        log = config.gradient_log
        self._journal: StepJournal | None = None
        if log.folder is not None and not gathered:
            each_bytes = replica.layout.gradient_bytes
            self._journal = StepJournal(Path(log.folder), log.folder_bytes, each_bytes, say)

    def after_step(self, replica: Replica, gradient: np.ndarray, used: np.ndarray | None) -> None:
        """A step that was made just now. gradient, used: as they were applied. Nothing is written
        where the state before is gone."""
        if self._journal is None:
            return
        before = replica.digest_of(Step(replica.step - 1))
        if before is None:
            return
        states = before, replica.digest
        self._journal.add_step(replica.step, states, gradient, used, replica.lacked(replica.step))

    def after_healing(self, replica: Replica, before: str, tainted: Ranges) -> None:
        """Elements of the newest step were healed. before: the digest; tainted: the elements that
        were tainted before."""
        healed = difference(tainted, replica.tainted_ranges)
        if self._journal is not None and len(healed):
            patch = patch_of_sections(replica.description, replica.sections(), healed)
            self._journal.add_healing(replica.step, (before, replica.digest), patch)

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()
