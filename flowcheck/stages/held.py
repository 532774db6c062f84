"""Steps of a run's replica that hold still while their files are written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flowcheck.config import PersistConfig
from flowcheck.replica.given import Given
from flowcheck.replica.layout import Layout
from flowcheck.stages.assumed import assumed
from flowcheck.stages.model import optimizer_in
from flowcheck.stages.rundir import RunDir
from flowcheck.wire.job_file import decode_job


@dataclass(frozen=True, slots=True)
class _Held:
    given: Given
    layout: Layout
    config: PersistConfig | None

    @property
    def step(self) -> int:
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
    """See vault/persist/saver.py, Source."""

    def __init__(self, run: RunDir, config: PersistConfig | None) -> None:
        self._run, self._config = run, config
        self.name = str(run.root.resolve())

    @contextmanager
    def hold(self, step: int) -> Iterator[_Held]:
        """A step, the newest where it is gone meanwhile."""
        from flowcheck.replica.given import given
        from flowcheck.replica.kept.header import peek_versions
        from flowcheck.replica.kept.snapshot import held
        from flowcheck.replica.warm import load_torch

        load_torch()
        path = self._run.replica
        wanted = step if step in peek_versions(path)[1] else None
        evidence = decode_job(self._run.learned_job.read_bytes()).evidence
        with held(path, optimizer_in(self._run), wanted) as snapshot:
            whole = given(snapshot, evidence=tuple(evidence), assumed=assumed(self._run))
            yield _Held(whole, snapshot.layout, self._config)
