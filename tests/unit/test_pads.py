"""A frozen parameter of one element may hide where the last line of the weights is padded."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from flowcheck.findings.catalog.job_learning import NOTHING_FROZEN
from flowcheck.findings.catalog.refused_trainers import FROZEN_OPEN
from flowcheck.lab.synthetic_traffic import synthetic_job
from flowcheck.lab.synthetic_traffic.synthetic_job import SyntheticJob, SyntheticRun, write_pcap
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import Reading, read_stream

ODD, EVEN = ((5, 9), (20,), (7,), (11, 3)), ((6, 9), (20,), (7,), (11, 3))


class FrozenScale(SyntheticRun):
    """The first parameter takes no gradient and has one element."""

    def _startup_broadcasts(self) -> None:
        broadcast, scale = self._broadcast, struct.pack("<f", 0.25)
        self._broadcast = (  # type: ignore[method-assign]
            lambda data: broadcast(scale + data if data is self.truth.weights else data)
        )
        super()._startup_broadcasts()
        self._broadcast = broadcast  # type: ignore[method-assign]


def padded_with(pad: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL pads the last line with what happens to be in a register."""
    plain = synthetic_job.ll_lines
    monkeypatch.setattr(
        synthetic_job, "ll_lines", lambda data, flag: plain(data + pad()[: -len(data) % 8], flag)
    )


def read(trainer: SyntheticRun, folder: Path) -> Reading:
    path = folder / "job.pcap"
    write_pcap(path, trainer.generate().frames_at_port(0))
    tape = read_capture_files([path])
    return read_stream(tape.flows, tape.messages)


@pytest.mark.parametrize("pad", [bytes(8), b"\xa5" * 8], ids=["zero", "garbage"])
@pytest.mark.parametrize("shapes", [ODD, EVEN], ids=["in the last line", "in one more"])
def test_frozen_parameter_of_one_element_is_not_overlooked(
    shapes: tuple[tuple[int, ...], ...],
    pad: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    padded_with(lambda: pad, monkeypatch)
    job = SyntheticJob(shapes=shapes, buckets=((0, 2), (1, 3)))
    plain = read(SyntheticRun(job), tmp_path)
    assert plain.job is not None, plain.why_not
    assert not any(one.is_any_of(NOTHING_FROZEN) for one in plain.job.assumed)
    frozen = read(FrozenScale(job), tmp_path)
    assert frozen.job is None and frozen.why_not[0].is_any_of(FROZEN_OPEN)


def test_padding_that_follows_no_habit_leaves_it_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(1)
    padded_with(lambda: dice.randbytes(8), monkeypatch)
    reading = read(SyntheticRun(SyntheticJob(shapes=ODD, buckets=((0, 2), (1, 3)))), tmp_path)
    assert reading.job is not None, reading.why_not
    assert any(one.is_any_of(NOTHING_FROZEN) for one in reading.job.assumed)
