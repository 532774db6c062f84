"""steps.jsonl, tensor digests and audits: the record of each step of the replica.

Each line of `steps.jsonl` is a step that the replica rests on. A line that a kill left incomplete
is cut off.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import torch

from flowcheck import messages
from flowcheck.atomic_write import atomic_path, write_atomically
from flowcheck.config import JobConfig
from flowcheck.errors import DECODE_ERRORS, is_disk_full
from flowcheck.findings.finding import Finding
from flowcheck.messages import AuditRecord
from flowcheck.private_files import append_private
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.optimizer.state_sections import named_tensors
from flowcheck.replica.optimizer_step.weights_only_step import parameters_of_other_steps
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.state_digest import sha256
from flowcheck.replica.state_file.digest_log import DigestLog
from flowcheck.replica.taint import (
    read_losses,
    taint_of_losses,
    tainted_elements,
    tainted_finding,
    tainted_since,
)
from flowcheck.stages.run_directory.bounded_log_files import (
    STEPS_BYTES,
    append_line,
    cut_last_line,
    last_complete_line,
)
from flowcheck.stages.run_directory.disk_full import DiskFullCounter
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of steps.jsonl."""

    step: Step
    digest: str
    """Digest of parameters and optimizer state (replica/state_digest.py)."""
    seconds: float
    time_ns: int = 0
    """Nanoseconds since 1970 at which the step was applied; 0: written by a version that did not
    record it."""
    gradient_sha256: str | None = None
    """SHA-256 of the mean gradient, flat in registration order."""
    parameters_sha256: str | None = None
    """SHA-256 of the parameters after the step, flat in registration order."""
    states_sha256: dict[str, str] = {}
    """{torch's name: SHA-256} of each optimizer state after the step, flat in registration
    order."""
    missing_elements: int = 0
    """Elements of the gradient that did not come with the step."""
    tainted: dict[str, int] = {}
    """{parameter: elements that rest on bytes which never came, with this step or before}"""
    tainted_since: dict[str, int] = {}
    """{parameter: the first step that lacked a byte of them}"""
    elements: int = 0
    """Of all parameters; 0: written by a version that did not record it."""
    taint: Finding | None = None
    """The taint as a finding."""
    older: dict[str, int] = {}
    """Sharded training: {parameter that did not come with the step: step that its value is of}."""


class StepLog:
    """The only writer of a run's steps.jsonl, its trace, and the audits that broadcasts give. A
    line that finds no room on disk is left out and counted."""

    def __init__(self, run: RunDir, config: JobConfig, replica: Replica) -> None:
        self._run, self._digests = run, config.digests
        self._tensors = len(replica.layout.parameters)
        self._elements = sum(p.elements for p in replica.layout.parameters)
        count = len(named_tensors(replica.description, replica.sections()))
        self._trace = DigestLog(run.trace, count)
        self.unwritten = DiskFullCounter(run.steps)

    def write(self, replica: Replica, seconds: float, gradient: np.ndarray | None) -> None:
        """Records the replica's newest step. gradient: that it was applied with; None: the whole
        state was given."""
        line = msgspec.json.encode(self._line(replica, seconds, gradient))

        def both() -> None:
            try:
                if replica.tensor_digests:
                    self._trace.append(replica.step, replica.tensor_digests)
            finally:
                append_line(self._run.steps, line, STEPS_BYTES)

        self.unwritten.attempt(both)

    def _line(self, replica: Replica, seconds: float, gradient: np.ndarray | None) -> StepRecord:
        told = parameters = None
        missing = int(sum(stop - start for start, stop in replica.lacked(replica.step)))
        tainted = replica.tainted
        states: dict[str, str] = {}
        if self._digests:
            placed = not replica.optimizer.computes_steps
            # Of a step without all of its bytes nobody has this gradient.
            placed = placed or missing > 0
            told = None if gradient is None or placed else sha256(gradient)
            parameters = sha256(replica.layout.registration_order(replica.parameters()))
            states = _states(replica)
        return StepRecord(
            step=replica.step,
            digest=replica.digest,
            seconds=round(seconds, 6),
            time_ns=time.time_ns(),
            gradient_sha256=told,
            parameters_sha256=parameters,
            states_sha256=states,
            missing_elements=missing,
            tainted={name: tainted_elements({name: own}) for name, own in tainted.items()},
            tainted_since={name: tainted_since({name: own}) for name, own in tainted.items()},
            elements=self._elements,
            taint=tainted_finding(tainted, replica.layout) if tainted else None,
            older=parameters_of_other_steps(
                replica.optimizer, replica.layout, replica.sections(), replica.step
            ),
        )

    def unwritten_lines(self) -> messages.Unwritten | None:
        """A finding with the number of lines that found no room since the last call, or that there
        is room again."""
        if (news := self.unwritten.changes()) is None:
            return None
        lines, full = news
        file = str(self._run.steps)
        return messages.Unwritten(stage="update", file=file, lines=lines, full=full)

    def last_step(self) -> Step:
        """The step of the last complete line; cuts the file off behind it. 0 without one."""
        text = self._run.steps.read_bytes() if self._run.steps.exists() else b""
        whole = _whole(text)
        kept = b"".join(line + b"\n" for line, _ in whole)
        if kept != text:
            self._keep(kept, durable=False)
        return whole[-1][1] if whole else Step(0)

    def write_newest_again(self, replica: Replica, *, keeps: str = "") -> None:
        """The line of the newest step, in place of the one that it has: more is known of it. A kill
        between the two leaves none, which the next updater writes. keeps: name of a file beside, to
        which the line that it had is added; "": none."""
        seconds, line = 0.0, last_complete_line(self._run.steps)
        with suppress(*DECODE_ERRORS):
            known = None if line is None else msgspec.json.decode(line, type=StepRecord)
            if line is not None and known is not None and known.step == replica.step:
                seconds = known.seconds
                if keeps:
                    to = self._run.steps.with_name(keeps)
                    self.unwritten.attempt(lambda: append_line(to, line, STEPS_BYTES), lines=0)
                self.unwritten.attempt(lambda: cut_last_line(self._run.steps, line), lines=0)
        self.write(replica, seconds, None)

    def forget_after(self, step: Step, past: int | str) -> None:
        """Moves the lines of later steps, which the job gave up, to a file beside. past: the number
        of the incarnation that took them."""
        file = self._run.steps
        lines = _whole(file.read_bytes()) if file.exists() else []
        kept = [line for line, of in lines if of <= step]
        if len(kept) == len(lines):
            return
        before = file.with_name(f"steps-{past}.jsonl")
        if not before.exists():
            gone = len(lines) - len(kept)
            self.unwritten.attempt(lambda: _copy(file, before), lines=gone)
        self._keep(b"".join(line + b"\n" for line in kept), durable=True)

    def _keep(self, lines: bytes, *, durable: bool) -> None:
        """Keeps these lines of steps.jsonl; where there is no room for a new file, cuts the old
        one."""
        file = self._run.steps
        try:
            write_atomically(file, lines, durable=durable)
        except OSError as error:
            if not is_disk_full(error):
                raise
            with file.open("r+b") as old:
                if old.read(len(lines)) == lines:
                    old.truncate(len(lines))

    def record_broadcast_audit(self, step: Step, number: int, *, tainted_elements: int = 0) -> None:
        """Records that the trainer's own parameters, as broadcast, were equal bit for bit.
        tainted_elements: those that were not compared."""
        file = f"the start-up broadcast of incarnation {number}"
        line = AuditRecord(
            step=step,
            passed=True,
            file=file,
            tensors=self._tensors,
            tainted_elements=tainted_elements,
        )
        self.record_audit(line)

    def record_audit(self, line: AuditRecord) -> None:
        """Adds a line to the run's audits, once."""
        encoded = msgspec.json.encode(line)
        log = self._run.audits
        lines = log.read_bytes().splitlines() if log.exists() else []
        if encoded not in lines:
            self.unwritten.attempt(lambda: _append(log, encoded))

    def close(self) -> None:
        self._trace.close()


def tainted_parameters_at(run: RunDir, step: Step, layout: Layout) -> Collection[str]:
    """Parameters with tainted elements at a step of a run, by the replica's own record or, where
    that is gone, by the step's line."""
    if run.replica.exists():
        return taint_of_losses(read_losses(run.replica), step, layout)
    for line in run.steps.read_bytes().splitlines() if run.steps.exists() else ():
        with suppress(*DECODE_ERRORS):
            told = msgspec.json.decode(line, type=StepRecord)
            if told.step == step:
                return told.tainted
    return ()


def _whole(text: bytes) -> list[tuple[bytes, Step]]:
    """(line, its step) of the complete lines. An incomplete line may well end in a brace, so each
    is parsed."""
    found = []
    for line in text.split(b"\n"):
        with suppress(*DECODE_ERRORS):
            found.append((line, msgspec.json.decode(line, type=StepRecord).step))
    return found


def _copy(file: Path, to: Path) -> None:
    with atomic_path(to) as place:
        shutil.copy2(file, place)


def _append(log: Path, line: bytes) -> None:
    """Appends a line to a file that other processes append to as well."""
    append_private(log, line)


def _states(replica: Replica) -> dict[str, str]:
    """The optimizer states by torch's names, in registration order and as they lie in memory; a
    parameter that was never stepped has no state."""
    found: dict[str, list[np.ndarray]] = {}
    for states in replica.states():
        for name, state in states.items():
            flat = torch.as_strided(state.tensor, (state.tensor.numel(),), (1,))
            found.setdefault(name, []).append(flat.view(torch.uint8).numpy())
    return {name: sha256(np.concatenate(parts)) for name, parts in found.items()}
