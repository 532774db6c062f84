"""The extract and the update stage over several lives of a job, killed where a test says."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.staged import STAGING_BYTES, Chain, rest

from flowcheck.config import job_from
from flowcheck.plane.extraction.payload_extractor import Extractor
from flowcheck.plane.shared_memory.gradient_double_buffer import GradientShard
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.state_file.gradient_log import GradientLog
from flowcheck.stages.extraction.extract_stage import ExtractService
from flowcheck.stages.extraction.job_restart import JobRestart
from flowcheck.stages.replica_update.step_log import StepLog
from flowcheck.stages.replica_update.update_stage import UpdateService


class Killed(BaseException):
    """What kill -9 leaves behind is what lies in files and shared memory."""


class Deaths:
    """Once a later life is proved, every process dies at its n-th change, n growing with each."""

    DENSE = 4
    CHANGES = (
        (Path, "rename"),
        (Path, "replace"),
        (Path, "unlink"),
        (shutil, "copy2"),
        (shutil, "rmtree"),
        (GradientShard, "clear"),
        (GradientShard, "apply"),
        (Replica, "go_back"),
        (Replica, "apply"),
        (Replica, "rebase"),
        (StepLog, "write"),
        (GradientLog, "append"),
        (GradientLog, "remove"),
        (Extractor, "ignore"),
    )

    def __init__(self, monkeypatch: pytest.MonkeyPatch, more: int = 1) -> None:
        """more: by how much n grows, behind the first `DENSE` deaths: what one left is taken over
        by a process that dies at once as well. 1: at every change; by day some are left out."""
        self.begun, self.left, self.count, self.more = False, 0, 0, more
        for owner, name in self.CHANGES:
            monkeypatch.setattr(owner, name, self._dying(getattr(owner, name)))
        look = JobRestart.check_new_flows

        def looked(*words: Any, **named: Any) -> int:
            found = look(*words, **named)
            self.begun = self.begun or words[0].successor_proved
            return found

        monkeypatch.setattr(JobRestart, "check_new_flows", looked)

    def _dying(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*words: Any, **named: Any) -> Any:
            self._perhaps()
            done = change(*words, **named)
            self._perhaps()
            return done

        return changed

    def _perhaps(self) -> None:
        if not self.begun or threading.current_thread() is not threading.main_thread():
            return  # a thread does not outlive its process, and has no turn of its own here
        self.left -= 1
        if self.left < 0:
            self.count += 1
            self.left = self.count + (self.more - 1) * max(0, self.count - self.DENSE)
            raise Killed


class Both:
    """The extract and the update stage, started again where they died."""

    def __init__(self, chain: Chain, **settings: object) -> None:
        """settings: tables of the job file beside those every job here has."""
        self.chain = chain
        self.config = job_from(
            {
                "source": [{"file": "0"}],
                "optimizer": {"name": "adamw", "learning_rate": 1e-3},
                "replica": {"keep_bytes": 1 << 22},
                "ring": {"slots": chain.slots},
                "staging": {"size_bytes": STAGING_BYTES},
                "digests": True,
            }
            | settings
        )
        self.extract, self.update = self._extract(), self._update()

    def _extract(self) -> ExtractService:
        return self._started(ExtractService(self.chain.run, self.config))

    def _update(self) -> UpdateService:
        return self._started(UpdateService(self.chain.run, self.config))

    def _started(self, service: Any) -> Any:
        try:
            service.start(self.chain.heard)
        except Killed:
            service.stop()  # what the kernel does for a process that is gone
            raise
        return service

    def drive(
        self,
        until: Callable[[], bool] = lambda: False,
        frames: int = 64,
        *,
        patient: bool = False,
    ) -> None:
        """To the end of the capture and of all that can be done with it, or to `until`; frames: of
        one turn; patient: none come while what came is read."""
        for _ in range(50000):
            if until():
                return
            self.chain.feed(0 if patient and self.extract._learner.busy else frames)
            done = 1
            try:
                done = self.extract.work()
            except Killed:
                self.extract = self._again(self.extract, self._extract)
            try:
                done += self.update.work()
            except Killed:
                self.update = self._again(self.update, self._update)
            if self.extract.drained() and self.update.drained():
                return
            if not done:
                rest(self.extract)
        raise AssertionError("the stages never came to an end")

    def _again(self, dead: Any, start: Callable[[], Any]) -> Any:
        while True:
            dead.stop()
            try:
                return start()
            except Killed:
                continue

    def applied_iteration(self) -> int:
        """Of the shard; 0 before there is one."""
        if not self.chain.run.shard.exists():
            return 0
        with GradientShard.open(self.chain.run.shard) as shard:
            return shard.applied_iteration

    def close(self) -> None:
        self.extract.stop()
        self.update.stop()
        self.chain.close()
