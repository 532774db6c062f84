"""The updater's side of a handover: what a later incarnation of the job began with.

Everything here may be done again after a kill: the verdict's file, written last, commits it.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable

import msgspec
import numpy as np

from flowcheck.config import JobConfig
from flowcheck.errors import StateError
from flowcheck.messages import AuditLine
from flowcheck.plane.shard import Shard
from flowcheck.replica import checkpoint
from flowcheck.replica.layout import Layout
from flowcheck.replica.replica import Replica
from flowcheck.stages.proof import write_whole
from flowcheck.stages.rundir import RunDir
from flowcheck.stages.succession import Verdict, incarnation_of
from flowcheck.wire.job import Job, decode_job


class Judge:
    """Compares a successor's initial weights with the replica's whole versions, by bytes."""

    def __init__(
        self, run: RunDir, config: JobConfig, layout_of: Callable[[Job, JobConfig], Layout]
    ) -> None:
        self._run, self._config, self._layout_of = run, config, layout_of

    @property
    def due(self) -> bool:
        """A successor waits for the verdict."""
        return self._run.successor.exists() and not self._run.verdict.exists()

    def judge(self, replica: Replica, shard: Shard, iterations: int) -> str:
        """Writes the verdict, the replica and the shard being where it says; returns the
        sentence for the operator. iterations: per step of the trainer."""
        number = incarnation_of(self._run).number
        step, why = self._compared(replica)
        if step is None:
            kept = self._set_aside(replica)
            verdict = Verdict(
                number=number,
                step=None,
                why=f"a later incarnation of the job is not followed: {why}; "
                f"the replica's step {replica.step} is kept as {kept}",
            )
            write_whole(self._run.verdict, msgspec.json.encode(verdict))
            return verdict.why
        newest = replica.step
        replica.go_back(step)
        self._forget_lines_after(step, number)
        self._audited(step, len(replica.layout.parameters), number + 1)
        shard.apply(step * iterations)
        verdict = Verdict(number=number, step=step, iterations=step * iterations)
        write_whole(self._run.verdict, msgspec.json.encode(verdict))
        behind = f", back from {newest}" if newest > step else ""
        return (
            f"incarnation {number + 1} of the job began with the parameters of step {step}: "
            f"the replica goes on from there{behind}, with its optimizer state"
        )

    def _compared(self, replica: Replica) -> tuple[int | None, str]:
        """The step whose parameters the successor began with; or why there is none."""
        folder = self._run.successor
        job = decode_job((folder / self._run.learned_job.name).read_bytes())
        try:
            layout = self._layout_of(job, self._config)
        except StateError as error:
            return None, str(error)
        if layout != replica.layout:
            return None, "it has other parameters than the replica"
        weights = np.fromfile(folder / self._run.weights.name, layout.stored_as)
        step = replica.step_of_weights(layout.memory_order(weights))
        kept = ", ".join(map(str, replica.versions))
        why = (
            f"it began with parameters of no step that is kept ({kept}), so its optimizer state "
            "is not known: a checkpoint of it is needed as a base"
        )
        return step, why

    def _set_aside(self, replica: Replica) -> str:
        """A checkpoint of the replica in the run directory; nothing there is overwritten."""
        for attempt in itertools.count(1):
            folder = self._run.root / f"kept-{attempt}"
            try:
                return str(checkpoint.save(replica, folder))
            except StateError:
                if not (folder / f"step-{replica.step}").exists():
                    raise
        raise AssertionError("count() never ends")

    def _forget_lines_after(self, step: int, number: int) -> None:
        """steps.jsonl says what the replica rests on; what it said before is kept beside it."""
        file = self._run.steps
        lines = file.read_bytes().splitlines() if file.exists() else []
        kept = [line for line in lines if msgspec.json.decode(line)["step"] <= step]
        if len(kept) == len(lines):
            return
        before = file.with_name(f"steps-{number}.jsonl")
        if not before.exists():
            growing = before.with_suffix(".tmp")
            shutil.copy2(file, growing)
            growing.replace(before)
        write_whole(file, b"".join(line + b"\n" for line in kept))

    def _audited(self, step: int, tensors: int, number: int) -> None:
        """The trainer's own parameters, off the wire, were equal bit for bit."""
        file = f"the start-up broadcast of incarnation {number}"
        line = AuditLine(step=step, passed=True, file=file, tensors=tensors)
        encoded = msgspec.json.encode(line)
        log = self._run.audits
        lines = log.read_bytes().splitlines() if log.exists() else []
        if encoded not in lines:
            with log.open("ab") as out:
                out.write(encoded + b"\n")
