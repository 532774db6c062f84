"""Elements of initial weights of which copies differ are told as they lie in memory, by torch's
strides."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from flowcheck.findings.catalog.lost_steps import BYTES_DIFFER
from flowcheck.stages.extraction.differing_weights import tell_differing_weights
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.wire.collectives.nccl_parameters import NcclEra
from flowcheck.wire.learn.reading import DifferingBytes
from flowcheck.wire.training_job.learned_job import Communicator, LearnedJob, Parameter

TENSORS = (
    torch.arange(5, dtype=torch.float32),
    torch.arange(24, dtype=torch.float32).reshape(2, 3, 4).permute(2, 0, 1),
    torch.arange(8, dtype=torch.float64).reshape(4, 2),
)
SIZES = [t.nbytes for t in TENSORS]
WRONG = {0: {1, 2, 4}, 1: {0, 7, 8, 23}, 2: {3}}
"""{parameter: elements, in index order, of which the other copy has another value}"""


def job() -> LearnedJob:
    parameters = tuple(
        Parameter(sizes=tuple(t.shape), strides=t.stride(), element_bytes=t.element_size())
        for t in TENSORS
    )
    return LearnedJob(
        era=NcclEra.V2_20, communicators=(Communicator(ranks=2, channels=1),), edges=(),
        parameters=parameters, first_buckets=((0, 1, 2),), buckets=((2,), (1, 0)), first=(),
        each=(), weights_missing=((0, sum(SIZES)),),
    )  # fmt: skip


@pytest.mark.parametrize("parts", [1, 3])
def test_both_values_are_told_where_they_lie(tmp_path: Path, parts: int) -> None:
    sent = [t.reshape(-1).clone() for t in TENSORS]  # as DDP broadcasts them
    other = [t.clone() for t in sent]
    for number, elements in WRONG.items():
        other[number][list(elements)] += 1
    raw = [b"".join(t.numpy().tobytes() for t in one) for one in (sent, other)]
    cuts = [len(raw[0]) * n // parts // 8 * 8 for n in range(parts)] + [len(raw[0])]
    differing = [DifferingBytes(a, raw[0][a:b], raw[1][a:b]) for a, b in pairwise(cuts)]
    run = RunDir.create(tmp_path / "run", tmp_path / "memory")
    told = tell_differing_weights(run, job(), differing, ["a", "b", "c"])
    assert told is not None and told.step == 0 and told.why.is_any_of(BYTES_DIFFER)
    found: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}
    for one in json.loads(Path(told.path).read_bytes())["elements"]:
        number = "abc".index(one["parameter"])
        dtype, tensor = TENSORS[number].dtype, TENSORS[number]
        first, later = (
            torch.frombuffer(bytearray.fromhex(one[name]), dtype=dtype)
            for name in ("first", "later")
        )
        stored = torch.as_strided(tensor, (tensor.numel(),), (1,))[one["start"] : one["stop"]]
        assert torch.equal(first, stored) and torch.equal(later, stored + 1)
        begin = one["start_byte"] - sum(SIZES[:number])
        size = tensor.element_size()
        found[number] |= set(range(begin // size, begin // size + len(first)))
        assert one["bucket"] == (0 if number == 2 else 1)
    assert found == WRONG


def test_nothing_is_told_of_equal_copies(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run", tmp_path / "memory")
    assert tell_differing_weights(run, job(), [DifferingBytes(0, bytes(8), bytes(8))], None) is None
    assert not run.differing_copies(0).exists()
