"""Frames of the lab's trainers, read by the decoder: every collective as the ranks have it."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.chain import analyzed
from support.hosts import ended_well, entry_points, hosts, lines_of

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(shutil.which("tcpdump") is None, reason="no tcpdump command"),
]

JOB = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group()
torch.manual_seed(dist.get_rank())
model = torch.nn.Sequential(
    torch.nn.Linear(30, 200), torch.nn.ReLU(), torch.nn.Linear(200, 10)
).to(torch.DTYPE)
parallel = DistributedDataParallel(model, bucket_cap_mb=0.02)
optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
for step in range(4):
    optimizer.zero_grad()
    parallel(torch.randn(8, 30).to(torch.DTYPE)).square().mean().backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Case:
    """A job, and the rank at whose port it is mirrored."""

    ranks: int
    rank: int = 0
    dtype: str = "float32"
    settings: dict[str, str] = field(default_factory=dict)


def read(case: Case, folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(what the rank says it took part in, what `analyze` says of its port)."""
    entry = folder / "entry"
    entry.mkdir()
    capture, truth = folder / "port.pcap", folder / "truth"
    with hosts(case.ranks, entry_points(entry)) as made, made.capture(case.rank, capture):
        ended_well(
            made.run(
                JOB.replace("DTYPE", case.dtype), FLOWCHECK_LAB_TRUTH=str(truth), **case.settings
            )
        )
    return lines_of(truth / f"rank{case.rank}.jsonl"), analyzed(capture)


def never_wrong(truth: list[dict[str, Any]], told: dict[str, Any]) -> None:
    """Whatever is called complete, some collective of the job made."""
    right = {(one["kind"], one["sha256"]) for one in truth}
    found = {(one["kind"], one["sha256"]) for one in told["collectives"] if one["sha256"]}
    assert found <= right


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Case(2, 1, settings={"NCCL_PROTO": "LL128", "FLOWCHECK_LAB_PMTU": "1024"}),
            marks=pytest.mark.nightly,
        ),
        Case(
            3,
            1,
            "bfloat16",
            {
                "NCCL_PROTO": "Simple",
                "NCCL_MIN_NCHANNELS": "2",
                "FLOWCHECK_LAB_NCCL": "2.20",
                "FLOWCHECK_LAB_LOSS": "0.01",
            },
        ),
        Case(
            2,
            0,
            "float16",
            {
                "FLOWCHECK_LAB_NCCL": "2.23",
                "NCCL_IB_ADAPTIVE_ROUTING": "1",
                "FLOWCHECK_LAB_RANDOM_QPN": "1",
            },
        ),
        Case(3, 1, settings={"NCCL_PROTO": "Simple", "TORCH_DIST_USE_NCCL2": "1"}),
    ],
    ids=["LL128", "Simple", "any", "nccl2"],
)
def test_every_collective_of_a_job_is_read_bit_for_bit(case: Case, tmp_path: Path) -> None:
    truth, told = read(case, tmp_path)
    never_wrong(truth, told)
    # The barrier at the end is of one byte; no line and no group tells that.
    for mine, theirs in zip(truth[:-1], told["collectives"], strict=False):
        assert (theirs["kind"], theirs["sha256"]) == (mine["kind"], mine["sha256"])
        assert theirs["assumed"] == []
    assert len(told["collectives"]) >= len(truth) - 1


@pytest.mark.parametrize(
    "protocol",
    [*(pytest.param(one, marks=pytest.mark.nightly) for one in ("LL", "Simple")), "LL128"],
)
def test_several_queue_pairs_of_one_connection_are_put_together(
    protocol: str, tmp_path: Path
) -> None:
    settings = {"NCCL_IB_QPS_PER_CONNECTION": "2", "NCCL_PROTO": protocol}
    truth, told = read(Case(2, settings=settings), tmp_path)
    never_wrong(truth, told)
    for mine, theirs in zip(truth[:-1], told["collectives"], strict=False):
        assert (theirs["kind"], theirs["sha256"]) == (mine["kind"], mine["sha256"])
    assert not any("queue pairs" in note for note in told["notes"])
