"""Jobs of torch.distributed on hosts of their own: the lab's backend, its sums, its frames."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.hosts import Hosts, ended_well, entry_points, hosts, lines_of

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="no ip command"),
]

SUMS = """
import random, torch, torch.distributed as dist
dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
draw = random.Random(SEED)
for turn in range(10):
    dtype = draw.choice([torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32])
    count = draw.choice([1, 2, 5000, 100_000, 1_500_000])
    torch.manual_seed(draw.randrange(1 << 30))
    own = [(torch.randn(count) * 9).to(dtype) for _ in range(ranks)]
    mine = own[rank].clone()
    dist.all_reduce(mine)
    right = torch.zeros(count, dtype=torch.bool)
    for finisher in range(ranks):
        total = own[(finisher + 1) % ranks].clone()
        for hop in range(2, ranks + 1):
            total = total + own[(finisher + hop) % ranks]
        right |= total == mine
    assert right.all(), (dtype, count)
    root = draw.randrange(ranks)
    given = own[rank].clone()
    dist.broadcast(given, root)
    assert torch.equal(given, own[root])
    gathered = [torch.zeros(count, dtype=dtype) for _ in range(ranks)]
    dist.all_gather(gathered, own[rank])
    assert all(map(torch.equal, gathered, own))
    if count % ranks == 0:
        part = torch.zeros(count // ranks, dtype=dtype)
        dist.reduce_scatter(part, [x.clone() for x in own[rank].chunk(ranks)])
        total = own[(rank + 1) % ranks]
        for hop in range(2, ranks + 1):
            total = total + own[(rank + hop) % ranks]
        assert torch.equal(part, total.chunk(ranks)[rank])
    come = torch.zeros(count, dtype=dtype)
    moves = [
        dist.P2POp(dist.irecv, come, (rank - 1) % ranks),
        dist.P2POp(dist.isend, own[rank], (rank + 1) % ranks),
    ]
    for work in dist.batch_isend_irecv(moves):
        work.wait()
    assert torch.equal(come, own[rank - 1])
    dist.barrier()
dist.destroy_process_group()
print("sums are right")
"""

DDP = """
import hashlib, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group(BACKEND)
rank = dist.get_rank()
torch.manual_seed(rank)
model = torch.nn.Sequential(
    torch.nn.Linear(300, 700), torch.nn.BatchNorm1d(700), torch.nn.ReLU(), torch.nn.Linear(700, 10)
)
parallel = DistributedDataParallel(model, bucket_cap_mb=0.3)
optimizer = torch.optim.AdamW(parallel.parameters())
for step in range(5):
    batch = torch.randn(8, 300, generator=torch.Generator().manual_seed(100 * step + rank))
    optimizer.zero_grad()
    parallel(batch).square().mean().backward()
    optimizer.step()
weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
print(hashlib.sha256(weights.numpy().tobytes()).hexdigest())
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def entry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return entry_points(tmp_path_factory.mktemp("entry"))


@pytest.fixture
def pair(entry: Path) -> Iterator[Hosts]:
    with hosts(2, entry) as made:
        yield made


@pytest.mark.parametrize(
    ("count", "settings"),
    [
        pytest.param(2, {}, marks=pytest.mark.nightly),
        pytest.param(
            2,
            {"NCCL_PROTO": "LL128", "FLOWCHECK_LAB_NCCL": "2.20", "FLOWCHECK_LAB_PMTU": "1024"},
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            3,
            {"NCCL_PROTO": "LL", "FLOWCHECK_LAB_NCCL": "2.19", "NCCL_MAX_NCHANNELS": "1"},
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            3,
            {"NCCL_PROTO": "Simple", "NCCL_MIN_NCHANNELS": "4", "FLOWCHECK_LAB_NCCL": "2.23"},
            marks=pytest.mark.nightly,
        ),
        (4, {"FLOWCHECK_LAB_NCCL": "2.30", "NCCL_IB_QPS_PER_CONNECTION": "2"}),
        (2, {"FLOWCHECK_LAB_LOSS": "0.002", "FLOWCHECK_LAB_SEED": "5"}),
    ],
)
def test_collectives_sum_in_ring_order(entry: Path, count: int, settings: dict[str, str]) -> None:
    with hosts(count, entry) as made:
        said = ended_well(made.run(f"SEED = {count}\n{SUMS}", **settings))
    assert said == ["sums are right"] * count


def test_ddp_on_two_hosts_ends_with_the_bits_of_a_gloo_run(pair: Hosts, tmp_path: Path) -> None:
    by_gloo = pair.run(f"BACKEND = 'gloo'\n{DDP}")
    by_roce = pair.run(f"BACKEND = None\n{DDP}", FLOWCHECK_LAB_TRUTH=str(tmp_path))
    weights = ended_well(by_roce)
    assert weights == ended_well(by_gloo)
    assert weights[0] == weights[1]
    assert all(one.err.count("names gloo") == 1 for one in by_gloo)
    assert all("flowcheck" not in one.err for one in by_roce)
    first, second = (lines_of(tmp_path / f"rank{rank}.jsonl") for rank in range(2))
    assert [one["kind"] for one in first].count("all_reduce") >= 5
    same = ("index", "kind", "sha256", "count", "protocol", "channels")
    for mine, theirs in zip(first, second, strict=True):
        assert [mine[key] for key in same] == [theirs[key] for key in same]


@pytest.mark.nightly
def test_a_killed_peer_ends_in_an_error(pair: Hosts) -> None:
    job = """
import os, signal, torch, torch.distributed as dist
from datetime import timedelta
dist.init_process_group(timeout=timedelta(seconds=15))
tensor = torch.ones(3_000_000)
dist.all_reduce(tensor)
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    dist.all_reduce(tensor)
except RuntimeError as error:
    print(error)
"""
    settings = {"NCCL_IB_RETRY_CNT": "3", "FLOWCHECK_LAB_TIMEOUT_MS": "100"}
    results = pair.run(job, 40, **settings)
    assert results[1].code == -signal.SIGKILL
    assert results[0].code == 0, results[0].err
    assert "flowcheck lab" in results[0].out


def test_a_setting_that_is_not_understood_ends_the_process_with_one_sentence(pair: Hosts) -> None:
    process = pair.start(0, "import torch; print('went on')", NCCL_PROTO="fast")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert err.strip() == (
        "flowcheck lab: NCCL_PROTO=fast is not understood: LL, LL128 or Simple is needed"
    )


def test_without_the_interface_nothing_is_loaded(pair: Hosts) -> None:
    script = """
import sys, torch
ours = sorted(name for name in sys.modules if name.startswith("flowcheck"))
assert not [name for name in ours if name.endswith(("settings", "_lab", "group"))], ours
assert "roce" not in torch.distributed.Backend.backend_list
print("nothing")
"""
    process = pair.start(0, script, FLOWCHECK_LAB_INTERFACE="")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out.strip()) == (0, "nothing"), err
