"""A made-up job that is killed in the middle of a step, and is started again from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from flowcheck.lab.synthetic_traffic.queue_pair_frames import WireFrame
from flowcheck.lab.synthetic_traffic.synthetic_job import SyntheticJob, SyntheticRun

SECOND_NS = 10**9
JOB = SyntheticJob(
    shapes=((64, 32), (64,), (10, 64), (10,)), buckets=((3, 2), (1, 0)), steps=8, channels=2
)


class Life(SyntheticRun):
    """One incarnation: PSN 0 again, its own memory keys, and a trainer's start-up."""

    def __init__(
        self,
        job: SyntheticJob,
        weights: np.ndarray | None = None,
        *,
        number: int = 0,
        same_qps: bool = False,
    ) -> None:
        """weights: float32, registration order; None: made up."""
        super().__init__(job)
        self.starts: list[int] = []
        """[step] how many frames were sent before it."""
        self._given: Iterator[bytes] = iter(())
        self._number = number
        if weights is not None:
            sizes = [torch.Size(shape).numel() for shape in job.shapes]
            parts = np.split(weights, np.cumsum(sizes)[:-1])
            self._given = iter([part.tobytes() for part in parts])
        for connection in self.rings.values():
            if not same_qps:
                connection.dest_qp += 0x100 * number
                connection.reverse_qp += 0x100 * number
            connection.rkey += 0x1000 * number
            connection.fifo_rkey += 0x1000 * number
            connection.base_va += number << 40
            connection.fifo_va += number << 40

    def _made_up(self, shape: tuple[int, ...]) -> bytes:
        return next(self._given, None) or super()._made_up(shape)

    def _step(self, buckets: tuple[tuple[int, ...], ...]) -> None:
        self.starts.append(len(self.fabric.frames))
        super()._step(buckets)

    def frames_of(self, rank: int = 0, stop: int | None = None) -> list[WireFrame]:
        """What a mirror of one port copies, of the first `stop` frames, a minute after the life
        before this one."""
        return [
            replace(wire, time_ns=wire.time_ns + 60 * self._number * SECOND_NS)
            for wire in self.fabric.frames[:stop]
            if rank in (wire.sender, wire.receiver)
        ]


def floats(raw: bytes) -> np.ndarray:
    return np.frombuffer(raw, "<f4")
