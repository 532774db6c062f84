"""Checks the stated loss scale against the gradients that arrive."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from flowcheck.atomic_write import write_atomically
from flowcheck.config import JobConfig
from flowcheck.findings.catalog.replica_update_notes import (
    LOSS_SCALE_CONTRADICTED,
    LOSS_SCALE_CONTRADICTED_BY,
)
from flowcheck.findings.finding import Finding
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.optimizer.state_section_names import SCALER
from flowcheck.replica.optimizer_step.loss_scale_evidence import ScaleObserver, read_scale_evidence
from flowcheck.replica.param_layout import Layout, as_float64, dtype_size_bytes
from flowcheck.stages.job_state.assumptions import add_assumption
from flowcheck.stages.run_directory.run_dir import RunDir

PARAMETERS_SAMPLED = 32
"""Parameters whose gradients are looked at, the largest ones. A choice: more costs time in each
step."""
VALUES_SAMPLED = 2048
"""Values of each of them that are looked at, the first ones. A choice: more costs time in each
step, fewer are noisier."""
Span = tuple[int, int, str]
"""First byte, the one behind the last, dtype."""


class LossScaleCheck:
    """The check of one job; does nothing for a job without a loss scale."""

    def __init__(self, run: RunDir, config: JobConfig, say: Callable[[Finding], None]) -> None:
        assert config.optimizer is not None
        self._run, self._say = run, say
        stated = config.optimizer.scaler
        self._seen: ScaleObserver | None = None
        if stated is not None:
            self._seen = ScaleObserver(
                math.log2(stated.growth_factor), read_scale_evidence(run.scale)
            )
        self._before: tuple[float, float] | None = None
        """Scale, and how many steps were skipped, before the step that is being applied."""
        self._looked: tuple[Layout, list[Span]] | None = None

    def before_step(self, replica: Replica) -> None:
        """To be called before a step is applied."""
        self._before = None
        if self._seen is not None and SCALER in (held := replica.sections()):
            self._before = float(held[SCALER][0]), float(held[SCALER][2])

    def after_step(self, replica: Replica, gradient: np.ndarray) -> None:
        """To be called after a step was applied. gradient: as it was reduced."""
        if self._seen is None or self._before is None:
            return
        scale, skipped = self._before
        if float(replica.sections()[SCALER][2]) > skipped or scale <= 0:
            return  # what is inf or NaN has no size
        if self._looked is None or self._looked[0] is not replica.layout:
            self._looked = replica.layout, sampled_spans(replica.layout)
        level_log2 = size_log2(gradient, self._looked[1])
        if level_log2 is None or not self._seen.add(level_log2, math.log2(scale)):
            return
        tally = self._seen.tally
        write_atomically(self._run.scale, msgspec.json.encode(tally), durable=False)
        if tally.contradicted and add_assumption(self._run, LOSS_SCALE_CONTRADICTED()):
            self._say(LOSS_SCALE_CONTRADICTED_BY(tally.summary))


def sampled_spans(layout: Layout) -> list[Span]:
    """The byte ranges of a reduced gradient that are sampled."""
    sizes, at = [], 0
    for parameter in layout.parameters:
        dtype = layout.gradient_dtype or layout.dtype_of(parameter)
        sizes.append((parameter.elements, at, dtype))
        at += parameter.elements * dtype_size_bytes(dtype)
    largest = sorted(sizes, reverse=True)[:PARAMETERS_SAMPLED]
    return [
        (at, at + min(count, VALUES_SAMPLED) * dtype_size_bytes(dtype), dtype)
        for count, at, dtype in largest
    ]


def size_log2(gradient: np.ndarray, spans: Sequence[Span]) -> float | None:
    """The mean over parameters of log2 of the root mean square of their sampled gradients, as they
    were reduced; None where all are 0."""
    raw = np.ascontiguousarray(gradient).reshape(-1).view(np.uint8)
    logs = []
    for start, stop, dtype in spans:
        values = as_float64(raw[start:stop], dtype).astype(np.float64)
        square = float(np.mean(values * values)) if values.size else 0.0
        if square > 0 and math.isfinite(square):
            logs.append(0.5 * math.log2(square))
    return sum(logs) / len(logs) if logs else None
