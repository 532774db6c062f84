"""The extractor's reading of what it staged, and the learned job as files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from flowcheck.plane.extractor import Extractor
from flowcheck.plane.merge import join, view_of
from flowcheck.stages.rundir import RunDir
from flowcheck.wire.job import Job, decode_job, encode_job
from flowcheck.wire.learn import Reading, read_stream
from flowcheck.wire.seen import FlowKey

GROWTH = 1.25
"""Read again once so many more messages are there: all readings together stay linear."""
MESSAGES_MIN = 4


class Learner:
    """Reads the staged messages again as they grow, until they prove a job."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._read_at = 0
        self.numbers: dict[tuple[FlowKey, int], int] = {}
        """{(flow, first PSN): message number} where transport may not know it."""
        self.why_not: tuple[str, ...] = ("no RDMA write was seen",)

    def known(self) -> Job | None:
        """The job an earlier life of this process wrote."""
        path = self._run.learned_job
        return decode_job(path.read_bytes()) if path.exists() else None

    def learn(self, extractors: Sequence[Extractor], *, at_once: bool) -> Job | None:
        """The job, written to its files, once it is proved; None until then.

        at_once: nothing more comes, or there is no room for it: read whatever is new.
        """
        complete = sum(extractor.staging.completions for extractor in extractors)
        due = self._read_at + 1 if at_once else max(MESSAGES_MIN, int(self._read_at * GROWTH))
        if complete < due:
            return None
        self._read_at = complete
        seen = join([view_of(extractor) for extractor in extractors])
        reading = read_stream(seen.flows, seen.messages)
        self.why_not = reading.why_not or ("the stream does not tell a training job yet",)
        return self._proved(reading)

    def _proved(self, reading: Reading) -> Job | None:
        if reading.job is None:
            return None
        if reading.weights is None or not reading.weights.complete:
            self.why_not = ("the initial weights were not seen whole, so no replica can start",)
            return None
        self.numbers = {
            (placement.flow, placement.first_psn): placement.number
            for collective in reading.collectives
            for placement in collective.placements
            if placement.first_psn is not None
        }
        # The job appears last: where it is, the weights are.
        write_whole(self._run.weights, reading.weights.result.tobytes())
        write_whole(self._run.learned_job, encode_job(reading.job))
        return reading.job


def write_whole(path: Path, data: bytes) -> None:
    """A file that exists whole or not at all, and is on disk when this returns."""
    staging = path.with_suffix(".tmp")
    with staging.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    staging.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
