"""A job that was proved, and how it is written to the run directory."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowcheck.atomic_write import atomic_path, write_atomically
from flowcheck.plane.extraction.psn_alignment import JoinedFlow
from flowcheck.plane.shared_memory.shard_size import ShardSize
from flowcheck.stages.run_directory.run_dir import AUXILIARY_WEIGHTS, RunDir
from flowcheck.stages.staged_messages.across_rings import CrossRingReassembly, FlowPsn
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.learn.reading import DifferingBytes
from flowcheck.wire.traffic.observed_messages import FlowKey
from flowcheck.wire.training_job.learned_job import FollowedData, LearnedJob, Role, encode_job


@dataclass(frozen=True, slots=True)
class ProvedJob:
    """A learned job and what must be on file with it."""

    job: LearnedJob
    weights: NDArray[np.uint8] | Path | None
    """[bytes of all parameters], or the file that has them; None of a job joined midstream."""
    names: Sequence[dict[FlowKey, JoinedFlow]]
    """[mirror point] what its flows are called in the job."""
    numbers: dict[FlowPsn, int]
    flows: Sequence[FlowKey] = ()
    """Of the job, both directions of each of its connections."""
    other_jobs: int = 0
    """Other data-parallel jobs that were read."""
    auxiliary_weights: NDArray[np.uint8] | None = None
    """[bytes] frozen parameters and buffers of the stated model, as it was broadcast; None: there
    are none, or it is not stated."""
    weights_differing: tuple[DifferingBytes, ...] = ()
    """Of the initial weights that are missing both copies, where two were seen."""

    def write_to_folder(self, folder: Path) -> None:
        """Into a folder that is no job's yet."""
        CrossRingReassembly(folder / "numbers").learned(self.numbers)
        self._write_files(folder)

    def write_as_followed_job(self, run: RunDir, reassembly: CrossRingReassembly) -> None:
        """As the job that is followed."""
        reassembly.learned(self.numbers)
        self._write_files(run.learned_folder)
        run.remove_read_weights()

    def _write_files(self, folder: Path) -> None:
        named = [list(own.items()) for own in self.names]
        write_atomically(folder / "names", msgspec.msgpack.encode(named))
        # The job appears last: where it is, the weights are.
        if isinstance(self.weights, Path):
            with atomic_path(folder / "weights.bin") as place:
                _link_or_copy(self.weights, place)
        elif self.weights is not None:
            write_atomically(folder / "weights.bin", self.weights.data)
        if self.auxiliary_weights is not None:
            write_atomically(folder / AUXILIARY_WEIGHTS, self.auxiliary_weights.data)
        write_atomically(folder / "job.json", encode_job(self.job))


def shard_size_of(job: LearnedJob) -> ShardSize:
    """What a shard for its gradients has room for."""
    unit_bytes = min(parameter.element_bytes for parameter in job.reduced)
    return ShardSize(job.gradient_bytes, job.module_buffer_bytes, unit_bytes)


def _link_or_copy(file: Path, place: Path) -> None:
    """The same file under another name, which takes no time, where a file may have two."""
    try:
        place.hardlink_to(file)
    except OSError:
        shutil.copy2(file, place)


def has_consistent_buckets(job: LearnedJob) -> bool:
    """Every bucket is reduced once an iteration, in its own size.

    It may be otherwise while one of several mirror points lags: what is missing then was read
    over.
    """
    if job.kind is FollowedData.PARAMETERS:
        return True  # what is gathered is the plan
    for ops, buckets in ((job.first, job.first_buckets), (job.each, job.buckets)):
        told = {
            op.bucket: op.work_bytes
            for op in ops
            if op.role is Role.BUCKET and op.kind is CollectiveKind.ALL_REDUCE
        }
        sizes = (sum(job.reduced[i].nbytes for i in bucket) for bucket in buckets)
        if told != dict(enumerate(sizes)):
            return False
    return True
