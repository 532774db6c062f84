"""The updater's part of the step journal (replica/step_journal): with a saved checkpoint it gives
every later step again after this machine has died."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from flowcheck.config import JobConfig
from flowcheck.findings.catalog.step_journals import JOURNAL_NOT_SHARDED
from flowcheck.findings.finding import Finding
from flowcheck.replica.element_patch import ElementPatch
from flowcheck.replica.element_ranges import Ranges
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.state_digest import StateId
from flowcheck.replica.step_journal.journal_records import (
    ChangeKind,
    JournalLine,
    step_line,
    taint_line,
    values_line,
)
from flowcheck.replica.step_journal.journal_writer import StepJournal
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step


class KeptSteps:
    """Writes what the replica's changes are made with, as its observer. Does nothing without
    `[gradient_log] folder`, and for sharded training, whose steps bring whole parameters."""

    def __init__(
        self,
        run: RunDir,
        config: JobConfig,
        replica: Replica,
        say: Callable[[Finding | None], None],
        *,
        gathered: bool,
    ) -> None:
        """say: tells the operator; gathered: parameters are followed as they are sent."""
        self._say = say
        self._journal: StepJournal | None = None
        self._applied: tuple[np.ndarray, np.ndarray | None] | None = None
        log = config.gradient_log
        if log.folder is None:
            return
        if gathered:
            say(JOURNAL_NOT_SHARDED(folder=log.folder))
            return
        self._journal = StepJournal(
            Path(log.folder),
            log.folder_bytes,
            replica.layout.gradient_bytes,
            (replica.step, replica.digest),
            waiting=run.waiting_steps,
            figures=run.kept_steps,
        )
        replica.observer = self

    def before_step(self, gradient: np.ndarray, used: np.ndarray | None) -> None:
        """The step that is made next. gradient, used: as they will be applied."""
        self._applied = gradient, used

    def step_made(self, before: StateId, behind: StateId, missing: Ranges) -> None:
        assert self._journal is not None and self._applied is not None
        (gradient, used), self._applied = self._applied, None
        self._journal.add(step_line(before, behind, used, missing), [gradient])

    def values_replaced(
        self, before: StateId, behind: StateId, patch: ElementPatch, *, exact: bool
    ) -> None:
        assert self._journal is not None
        line = values_line(before, behind, patch, exact=exact)
        self._journal.add(line, list(patch.parts.values()))

    def tainted_late(self, newest: StateId, since: Step, elements: Ranges) -> None:
        assert self._journal is not None
        self._journal.add(taint_line(newest, since, elements))

    def state_replaced(self, before: StateId, behind: StateId, *, gives_up: bool) -> None:
        assert self._journal is not None
        kind = ChangeKind.STATE
        self._journal.add(JournalLine(before=before, behind=behind, kind=kind, gives_up=gives_up))

    def change_committed(self) -> None:
        assert self._journal is not None
        self._journal.committed()

    def tell(self) -> None:
        """Tells the operator what there is to be told."""
        while self._journal is not None and (found := self._journal.new_finding()) is not None:
            self._say(found)

    def close(self) -> None:
        self._applied = None
        if self._journal is not None:
            self._journal.close()
            self.tell()
