"""Steps of a run's replica that hold still while their files are written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flowcheck.config import PersistConfig
from flowcheck.errors import RingError
from flowcheck.replica.kept.header import peek_versions
from flowcheck.stages.rundir import RunDir
from flowcheck.stages.updating.assumed import assumed
from flowcheck.stages.updating.incarnation import incarnation_of
from flowcheck.stages.updating.model import optimizer_in
from flowcheck.step_numbers import Step
from flowcheck.wire.job_file import decode_job

if TYPE_CHECKING:  # torch stays out until there is a step to write
    from flowcheck.replica.given import Given
    from flowcheck.replica.layout import Layout


@dataclass(frozen=True, slots=True)
class Held:
    """See vault/persist/saver.py, HeldStep. config: of files in other forms than our own."""

    given: Given
    layout: Layout
    config: PersistConfig | None

    @property
    def step(self) -> Step:
        return self.given.step

    @property
    def digest(self) -> str:
        return self.given.digest

    def write(self, folder: Path) -> None:
        """In the form that the job file states; its own where none is."""
        from flowcheck.vault.persist import forms

        form = "flowcheck" if self.config is None else self.config.format
        options = {} if self.config is None else self.config.format_options
        forms.write(self.given, self.layout, folder, form, options)


class ReplicaSteps:
    """See vault/persist/saver.py, Source, and vault/serve/catalogue.py, Memory."""

    def __init__(self, run: RunDir, config: PersistConfig | None) -> None:
        """config: of files in other forms than our own."""
        self._run, self._config = run, config
        self.name = str(run.root.resolve())

    def versions(self) -> tuple[Step, ...]:
        """Whole steps in memory, ascending; () while the job's optimizer state is not known."""
        with suppress(OSError, RingError):
            if self._run.replica.exists() and incarnation_of(self._run).step is not None:
                return peek_versions(self._run.replica)[1]
        return ()

    @contextmanager
    def hold(self, step: Step) -> Iterator[Held]:
        """A step; where it is gone meanwhile, the newest is saved, and nothing is served."""
        from flowcheck.replica.given import given
        from flowcheck.replica.kept.snapshot import held
        from flowcheck.replica.warm import load_torch

        load_torch()
        path = self._run.replica
        gone = self._config is not None and step not in peek_versions(path)[1]
        wanted = None if gone else step
        evidence = decode_job(self._run.learned_job.read_bytes()).evidence
        with held(path, optimizer_in(self._run), wanted) as snapshot:
            whole = given(snapshot, evidence=tuple(evidence), assumed=assumed(self._run))
            yield Held(whole, snapshot.layout, self._config)
