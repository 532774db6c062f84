"""Whether a job that appears began with what a replica held at some step: it is a later life of the
job that replica follows. Of several jobs on the same ports nothing else tells which one comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowcheck.errors import RingError, StateError
from flowcheck.plane.extractor import Extractor
from flowcheck.replica.kept.digest import tensor_digests
from flowcheck.replica.kept.header import peek_versions
from flowcheck.stages.rundir import RunDir
from flowcheck.stages.updating.model import layout_of
from flowcheck.wire.job import Job


@dataclass(frozen=True, slots=True)
class Past:
    """A job that is followed, or was."""

    run: RunDir
    last_ns: int
    """When its connections were used last."""


def past_of(run: RunDir, flows: Sequence[Sequence[int]], extractors: Sequence[Extractor]) -> Past:
    """flows: [ring] indices of the job's."""
    used = [
        int(extractor.flows.flows()["last_ns"][list(own)].max(initial=0))
        for extractor, own in zip(extractors, flows, strict=True)
    ]
    return Past(run, max(used, default=0))


def was_at(run: RunDir, job: Job, weights: NDArray[np.uint8]) -> bool:
    """Whether the run's replica had these parameters, at the beginning or after any step."""
    with suppress(StateError, RingError, OSError):
        layout = layout_of(job, run.settings())
        if not run.replica.exists() or peek_versions(run.replica)[0] != layout:
            return False
        if weights.tobytes() == run.weights.read_bytes():
            return True
        flat = layout.memory_order(weights.view(layout.stored_as))
        own = b"".join(tensor_digests(flat[p.start : p.stop] for p in layout.parameters))
        return run.trace.read_bytes().find(own) >= 0
    return False
