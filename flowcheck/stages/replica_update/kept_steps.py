"""What the updater keeps of each change of the replica: in the step journal (replica/step_journal)
for later, with a saved checkpoint, when this machine has died; in shared memory for copies on other
machines (stages/replica_copies)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from flowcheck.config import CopiesConfig, JobConfig
from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.replica_copies import COPIES_NO_MEMORY, COPIES_NOT_SHARDED
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
from flowcheck.stages.replica_copies.change_ring import ChangeRing
from flowcheck.stages.replica_copies.change_ring_sizes import ring_bytes
from flowcheck.stages.replica_copies.copy_records import next_run
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step


class KeptSteps:
    """Writes what the replica's changes are made with, as its observer. Does nothing without
    `[gradient_log] folder` and `[copies]`, and for sharded training, whose steps bring whole
    parameters."""

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
        self._ring: ChangeRing | None = None
        self._applied: tuple[np.ndarray, np.ndarray | None] | None = None
        log = config.gradient_log
        if gathered and log.folder is not None:
            say(JOURNAL_NOT_SHARDED(folder=log.folder))
        elif log.folder is not None:
            self._journal = StepJournal(
                Path(log.folder),
                log.folder_bytes,
                replica.layout.gradient_bytes,
                (replica.step, replica.digest),
                waiting=run.waiting_steps,
                figures=run.kept_steps,
            )
        if gathered and config.copies is not None:
            say(COPIES_NOT_SHARDED())
        elif config.copies is not None:
            self._ring = self._opened_ring(run, config.copies, replica)
        if self._journal is not None or self._ring is not None:
            replica.observer = self

    def _opened_ring(self, run: RunDir, own: CopiesConfig, replica: Replica) -> ChangeRing | None:
        """For copies; None: there is no memory for it, or its number cannot be written."""
        file, size = run.changes, replica.layout.gradient_bytes
        try:
            count = None if file.exists() else next_run(run)
            ring = ChangeRing.open_for_writing(file, size, own.memory_bytes, own.epoch, count)
            ring.settle((replica.step, replica.digest))
            return ring
        except (OSError, FlowCheckError, msgspec.MsgspecError) as error:
            needed = ring_bytes(size, own.memory_bytes)
            self._say(COPIES_NO_MEMORY(file=file, size_bytes=needed, error=str(error)))
            return None

    def enter(self, incarnation: int) -> None:
        """Later changes are of this incarnation of the job."""
        if self._ring is not None:
            self._ring.enter(incarnation)

    def before_step(self, gradient: np.ndarray, used: np.ndarray | None) -> None:
        """The step that is made next. gradient, used: as they will be applied."""
        self._applied = gradient, used

    def step_made(self, before: StateId, behind: StateId, missing: Ranges) -> None:
        assert self._applied is not None
        (gradient, used), self._applied = self._applied, None
        self._add(step_line(before, behind, used, missing), [gradient])

    def values_replaced(
        self, before: StateId, behind: StateId, patch: ElementPatch, *, exact: bool
    ) -> None:
        self._add(values_line(before, behind, patch, exact=exact), list(patch.parts.values()))

    def tainted_late(self, newest: StateId, since: Step, elements: Ranges) -> None:
        self._add(taint_line(newest, since, elements))

    def state_replaced(self, before: StateId, behind: StateId, *, gives_up: bool) -> None:
        kind = ChangeKind.STATE
        self._add(JournalLine(before=before, behind=behind, kind=kind, gives_up=gives_up))

    def _add(self, line: JournalLine, parts: Sequence[np.ndarray] = ()) -> None:
        if self._journal is not None:
            self._journal.add(line, parts)
        if self._ring is not None:
            self._ring.put(line, parts)

    def change_committed(self) -> None:
        if self._journal is not None:
            self._journal.committed()
        if self._ring is not None:
            self._ring.commit()

    def tell(self) -> None:
        """Tells the operator what there is to be told."""
        while self._journal is not None and (found := self._journal.new_finding()) is not None:
            self._say(found)

    def close(self) -> None:
        self._applied = None
        if self._ring is not None:
            self._ring.close()
        if self._journal is not None:
            self._journal.close()
            self.tell()
