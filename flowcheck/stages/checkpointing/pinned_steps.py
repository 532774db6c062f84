"""Replica steps pinned in memory while their checkpoint files are written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flowcheck.config import PersistConfig
from flowcheck.errors import RingError
from flowcheck.replica.state_file.file_header import peek_tainted, peek_versions
from flowcheck.stages.job_state.assumptions import assumptions_of
from flowcheck.stages.job_state.audit_history import doubts_of
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.job_state.model_layout import optimizer_of_run
from flowcheck.stages.job_state.training_facts import known_training
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step

if TYPE_CHECKING:  # torch stays out until there is a step to write
    from flowcheck.replica.checkpoint.trainer_state import TrainerState
    from flowcheck.replica.param_layout import Layout


@dataclass(frozen=True, slots=True)
class PinnedStep:
    """A step to save, as saver.py's StepToSave describes. config: for checkpoint formats other than
    FlowCheck's own."""

    trainer_state: TrainerState
    layout: Layout
    config: PersistConfig | None

    @property
    def step(self) -> Step:
        return self.trainer_state.step

    @property
    def digest(self) -> str:
        return self.trainer_state.digest

    def write(self, folder: Path) -> None:
        """Writes it in the format that the job file states, by default in FlowCheck's own."""
        from flowcheck.vault.checkpoint_formats.checkpoint_io import write_step
        from flowcheck.vault.checkpoint_formats.format_registry import NATIVE_FORMAT

        form = NATIVE_FORMAT if self.config is None else self.config.format
        options = {} if self.config is None else self.config.format_options
        write_step(self.trainer_state, self.layout, folder, form, options)


class ReplicaSteps:
    """The replica's steps, as `SaveSource` (vault/persist/saver.py) and `MemorySteps`
    (vault/serve/step_catalog.py) describe."""

    def __init__(self, run: RunDir, config: PersistConfig | None) -> None:
        """config: for checkpoint formats other than FlowCheck's own."""
        self._run, self._config = run, config
        self.name = run.name_of_saves

    def versions(self) -> tuple[Step, ...]:
        """Complete steps in memory, ascending; () while the job's optimizer state is unknown."""
        with suppress(OSError, RingError):
            if self._run.replica.exists() and incarnation_of(self._run).step is not None:
                return peek_versions(self._run.replica)[1]
        return ()

    def tainted(self) -> frozenset[Step]:
        """Those of `versions` of which elements rest on bytes that no mirror brought."""
        with suppress(OSError, RingError):
            if self._run.replica.exists():
                return peek_tainted(self._run.replica)
        return frozenset()

    @contextmanager
    def hold(self, step: Step) -> Iterator[PinnedStep]:
        """Pins a step while the `with` runs. If the step is gone meanwhile, a save gets the newest
        one instead, and a server gets StateError."""
        from flowcheck.replica.checkpoint.step_snapshot import hold_snapshot
        from flowcheck.replica.checkpoint.trainer_state import trainer_state
        from flowcheck.replica.torch_without_compiler import load_torch

        load_torch()
        path = self._run.replica
        gone = self._config is not None and step not in peek_versions(path)[1]
        wanted = None if gone else step
        evidence = known_training(self._run).evidence
        with hold_snapshot(path, optimizer_of_run(self._run), wanted) as snapshot:
            basis = (*doubts_of(self._run, snapshot.step), *assumptions_of(self._run))
            whole = trainer_state(snapshot, evidence=evidence, assumed=basis)
            yield PinnedStep(whole, snapshot.layout, self._config)
