"""Holds each step of a ZeRO job's replica against the parameters that the trainers gathered.

DeepSpeed rounds the stepped float32 copies to the model's type and gathers them, behind each step
(deepspeed/runtime/zero/stage_1_and_2.py, step). They come with the collectives that the next
gradients end, and no step waits for them. A difference is an audit that failed.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowcheck.atomic_write import write_atomically
from flowcheck.errors import StateError
from flowcheck.findings.catalog.distributed_optimizers import (
    GATHERED_DIFFERS,
    NOT_COMPARED,
    OTHER_PARAMETERS,
)
from flowcheck.findings.finding import Finding
from flowcheck.messages import AuditRecord
from flowcheck.replica.element_ranges import holds
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.optimizer.state_section_names import PARAMETERS
from flowcheck.replica.param_layout import SEVERAL_DTYPES
from flowcheck.replica.sharding.gather_units import UnitSplitter, model_units
from flowcheck.stages.job_state.assumptions import add_assumption
from flowcheck.stages.job_state.audit_history import audit_history_of
from flowcheck.stages.job_state.gathered_parameters import (
    GatheredTally,
    read_tally,
    stated_sharded_model,
)
from flowcheck.stages.job_state.lifecycle_record_reader import Incarnation
from flowcheck.stages.replica_update.gradient_sources.gradient_source import GradientSource
from flowcheck.stages.replica_update.step_log import StepLog
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Iteration, Step
from flowcheck.wire.training_job.training_spec import TrainingFacts


class GatheredCheck:
    """The check of one job; does nothing where no gathers are placed behind the gradients."""

    def __init__(
        self,
        run: RunDir,
        job: TrainingFacts,
        replica: Replica,
        source: GradientSource,
        records: StepLog,
        say: Callable[[Finding], None],
    ) -> None:
        self._run, self._replica, self._source = run, replica, source
        self._records, self._say = records, say
        self._looked: tuple[int, int] | None = None
        self._splitter: UnitSplitter | None = None
        sizes = [one.nbytes for one in job.buffer_broadcasts if one.unit is not None]
        if not sizes or job.module_buffer_bytes != source.module_buffer_bytes:
            return
        self._tally = read_tally(run)
        try:
            self._splitter = _splitter(run, job, replica, sizes)
        except StateError as error:
            self._tell_uncompared(error.finding)

    def look(self, followed: Incarnation, each: int) -> None:
        """Compares the replica's step once what was gathered behind it is there. each: iterations
        per step."""
        before = self._source.applied_iteration
        if self._splitter is None or followed.step is None or before <= followed.iterations:
            return
        step, now = followed.step_of(before, each), (followed.number, before)
        if step != self._replica.step or self._looked == now:
            return
        sent = self._source.module_buffers(Iteration(before + 1))
        if sent is None:
            return
        self._looked = now
        if audit_history_of(self._run).failed is None:
            self._compare(step, self._splitter.parameters(sent))

    def _compare(self, step: Step, gathered: NDArray[np.uint8]) -> None:
        """gathered: [layout bytes] parameters in registration order."""
        layout, ours = self._replica.layout, self._replica.sections()[PARAMETERS]
        bits = np.dtype(f"u{ours.itemsize}")
        theirs = layout.memory_order(gathered.view(layout.numpy_dtype))
        differ = np.flatnonzero(ours.view(bits) != theirs.view(bits))
        differ = differ[~holds(self._replica.tainted_ranges, differ)]
        if not len(differ):
            compared = self._tally.compared + (step != self._tally.last)
            self._tally = GatheredTally(compared=compared, last=step)
            write_atomically(self._run.gathered, msgspec.json.encode(self._tally), durable=False)
            return
        first = next(p for p in layout.parameters if p.start <= differ[0] < p.stop)
        line = AuditRecord(
            step=step,
            passed=False,
            file="what the trainers gathered",
            tensors=len(layout.parameters),
            first_difference=first.name,
        )
        self._records.record_audit(line)
        count = {"elements": len(differ), "all_elements": len(ours)}
        self._say(GATHERED_DIFFERS(step=step, parameter=first.name, **count))

    def _tell_uncompared(self, why: Finding) -> None:
        found = NOT_COMPARED(why)
        if add_assumption(self._run, found):
            self._say(found)


def _splitter(run: RunDir, job: TrainingFacts, replica: Replica, sizes: list[int]) -> UnitSplitter:
    """Takes gathered units apart into the replica's parameters. Raises StateError where the stated
    units are not made of just these."""
    model = stated_sharded_model(run)
    if model is None:
        raise StateError(OTHER_PARAMETERS())
    made, _ = model_units(sizes, job.communicator_ranks[0], model)
    own = [(p.shape, made.layout.dtype_of(p)) for p in made.layout.parameters]
    ours = [(p.shape, replica.layout.dtype_of(p)) for p in replica.layout.parameters]
    if own != ours or replica.layout.dtype == SEVERAL_DTYPES:
        raise StateError(OTHER_PARAMETERS())
    return made
