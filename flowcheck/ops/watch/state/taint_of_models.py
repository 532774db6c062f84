"""Reads what of each model that a chain follows is not exact: of rings of one training job the
union, of independent jobs each its own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import msgspec

from flowcheck.atomic_write import write_atomically
from flowcheck.errors import DECODE_ERRORS, FlowCheckError, StateError
from flowcheck.ops.watch.state.held_steps import newest_exact_step
from flowcheck.replica.model_taint import (
    TENSORS_TOLD,
    ModelPart,
    ModelTaint,
    TaintedTensor,
    model_part,
    model_taint,
)
from flowcheck.replica.state_file.file_header import peek_commit, peek_description
from flowcheck.replica.taint import Loss, TaintedRanges, read_losses, read_taint
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.run_directory.bounded_log_files import last_complete_line
from flowcheck.stages.run_directory.job_run_dirs import all_run_dirs, job_names
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step

LOOKS_MAX = 3
"""Times that taint and step are read anew where the updater changed them in between. A choice."""


class _LastStep(msgspec.Struct, frozen=True):
    """What the last line of steps.jsonl says of the taint."""

    step: Step
    digest: str = ""
    elements: int = 0
    tainted: dict[str, int] = {}
    tainted_since: dict[str, int] = {}


class _RecordedTaint(msgspec.Struct, frozen=True):
    """The part of a replica that is gone."""

    digest: str
    """Of its last step."""
    part: ModelPart
    """With the TENSORS_TOLD tensors that have the most tainted elements."""


class PartReader:
    """Reads the part of a model that one job has. The ranges of its taint are made anew only where
    it changed."""

    def __init__(self, run: RunDir, name: str) -> None:
        self.run, self._name = run, name
        self._known: tuple[tuple[bool, list[Loss]], TaintedRanges] | None = None

    def read(self) -> ModelPart:
        """By the replica or, where that is gone, by its last step's record. Raises StateError where
        the replica's taint is damaged, OSError and RingError where it goes meanwhile."""
        if self.run.replica.exists():
            return self._of_replica()
        line = last_complete_line(self.run.steps)
        if line is None:
            return ModelPart(job=self._name, step=None, all_elements=None)
        told = msgspec.json.decode(line, type=_LastStep)
        tensors = tuple(
            TaintedTensor(
                job=self._name,
                parameter=parameter,
                tainted_elements=count,
                all_elements=None,
                since=told.tainted_since[parameter],
            )
            for parameter, count in told.tainted.items()
            if parameter in told.tainted_since
        )
        return ModelPart(
            job=self._name,
            step=told.step,
            all_elements=told.elements or None,
            tensors=self._with_ranges(told, tensors) if tensors else (),
        )

    def record(self) -> None:
        """Writes down the ranges of the last step, for when the replica is gone or went back. Where
        they cannot be read or written the counts are known alone."""
        with suppress(FlowCheckError, OSError, msgspec.DecodeError):
            line = last_complete_line(self.run.steps)
            if line is None or not self.run.replica.exists():
                return
            told, part = msgspec.json.decode(line, type=_LastStep), self._of_replica()
            if part.tensors and part.step == told.step:
                most = sorted(part.tensors, key=lambda one: -one.tainted_elements)[:TENSORS_TOLD]
                part = msgspec.structs.replace(part, tensors=tuple(most))
                recorded = msgspec.json.encode(_RecordedTaint(told.digest, part))
                write_atomically(self.run.tainted_at_end, recorded, durable=False)

    def _with_ranges(
        self, told: _LastStep, tensors: tuple[TaintedTensor, ...]
    ) -> tuple[TaintedTensor, ...]:
        """Those that were recorded of this very step in place of their counts."""
        with suppress(OSError, *DECODE_ERRORS):
            raw = self.run.tainted_at_end.read_bytes()
            recorded = msgspec.json.decode(raw, type=_RecordedTaint)
            if (recorded.digest, recorded.part.step) == (told.digest, told.step):
                known = {
                    (one.parameter, one.tainted_elements): one for one in recorded.part.tensors
                }
                return tuple(
                    known.get((one.parameter, one.tainted_elements), one) for one in tensors
                )
        return tensors

    def _of_replica(self) -> ModelPart:
        layout = peek_description(self.run.replica).layout
        known = incarnation_of(self.run).step is not None
        for look in range(LOOKS_MAX):
            commit, _ = peek_commit(self.run.replica)
            try:
                every = read_losses(self.run.replica)
                own = commit.tainted, [loss for loss in every if loss.is_in(commit.step)]
                if self._known is None or self._known[0] != own:
                    self._known = own, read_taint(self.run.replica, commit, layout)
            except StateError:
                if look + 1 == LOOKS_MAX or peek_commit(self.run.replica)[0] == commit:
                    raise
                continue
            break
        assert self._known is not None
        part = model_part(self._name, commit.step, layout, self._known[1])
        return part if known else msgspec.structs.replace(part, step=None)


def part_readers(run: RunDir) -> list[PartReader]:
    """One for each job that the chain in `run` follows."""
    runs = all_run_dirs(run)
    return [PartReader(own, name) for own, name in zip(runs, _names(run, runs), strict=True)]


def record_taint(run: RunDir) -> None:
    """Of all jobs of the chain in `run`, before their replicas go back or are removed."""
    with suppress(FlowCheckError, OSError):  # settings that cannot be read have no names
        for reader in part_readers(run):
            reader.record()


def read_models(readers: Sequence[PartReader]) -> tuple[ModelTaint, ...]:
    """Each model of these jobs, which one chain follows. Raises as `PartReader.read`."""
    if not readers:
        return ()
    together = len(readers) > 1 and readers[0].run.settings().together
    of_model = [list(readers)] if together else [[one] for one in readers]
    return tuple(
        model_taint([one.read() for one in own], newest_exact_step([one.run for one in own]))
        for own in of_model
    )


def tainted_models(run: RunDir) -> tuple[ModelTaint, ...]:
    """The models of the chain in `run` that have tainted elements. Raises as `PartReader.read`."""
    return tuple(one for one in read_models(part_readers(run)) if one.tainted_elements)


def tainted_models_if_read(run: RunDir) -> tuple[ModelTaint, ...] | None:
    """The same for a command that has something else to tell; None: they cannot be read, as where
    the chain goes meanwhile."""
    try:
        return tainted_models(run)
    except (FlowCheckError, OSError):
        return None


def _names(run: RunDir, runs: Sequence[RunDir]) -> list[str]:
    if len(runs) == 1 and run.port is not run:  # one of several, asked for by itself
        return [job_names(run.port.root)[run.reader]]
    return job_names(run.root)
