"""`flowcheck lab train` as a user starts it: followed, killed, given back, resumed, compared.

The judge is the trainer: its own digests after every step, in a file the services cannot see, and
its own runs that were stopped by its save, or never.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import preloaded

from flowcheck.lab import cluster
from flowcheck.lab.cluster import network_namespaces
from flowcheck.lab.job_run.digest_comparison import Digests, trainer_digests
from flowcheck.lab.job_run.run_plan import GPT, script_module

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="no ip command"),
    pytest.mark.timeout(500),
]
SMALL = ("--layers", "2", "--width", "64", "--heads", "2", "--context", "32")
STEPS = 7
LIMIT_S = 450


def train(out: Path, name: str, options: list[str], script: list[str]) -> dict[str, Any]:
    """What the run says as JSON; everything it made is gone."""
    command = ["lab", "train", "--json"]
    command += ["--name", name, "--out", str(out), *options, "--", *SMALL, *script]
    try:
        done = preloaded.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert network_namespaces.existing(f"fcl-{name}-") == []
    finally:
        # Of a run that was killed for its time: its trainers would slow all other tests down.
        cluster.down(name)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def over_gloo(folder: Path, script: list[str]) -> Digests:
    """The same job, never stopped, over gloo: what two ranks sum is the same whoever sums it."""
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(GPT), "--backend", "gloo", *script, "--out", str(folder)]
    told = folder / "gloo.jsonl"
    subprocess.run(
        [sys.executable, *command, "--digests", str(told)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        timeout=LIMIT_S,
        check=True,
    )
    return trainer_digests(told)[STEPS]


def by_one_process(folder: Path, script: list[str]) -> Digests:
    """The same job, never stopped: both ranks' gradients one after the other, halved and added."""
    import torch

    module = script_module()
    given = module.arguments([*script, "--out", str(folder)])
    torch.manual_seed(given.seed)
    shape = module.Shape(given.layers, given.width, given.heads, given.context, given.dropout)
    model, text = module.GPT(shape), module.training_text(folder)
    own = list(model.parameters())
    optimizer = torch.optim.AdamW(own, lr=given.lr, weight_decay=given.weight_decay)
    factor = module.schedule(given.warmup, given.steps, given.floor)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    for step in range(given.steps):
        halves = []
        for rank in range(2):
            optimizer.zero_grad()
            for micro in range(given.accumulate):
                window = module.draw(text, given, step, rank, micro)
                (module.loss_of(model, window) / given.accumulate).backward()
            halves.append([one.grad / 2 for one in own])
        for one, mine, other in zip(own, *halves, strict=True):
            one.grad = mine + other
        torch.nn.utils.clip_grad_norm_(own, given.clip)
        optimizer.step()
        scheduler.step()
    states = {kind: [optimizer.state[one][kind] for one in own] for kind in optimizer.state[own[0]]}
    return {name: hashed(tensors) for name, tensors in {"parameters": own, **states}.items()}


def hashed(tensors: list[Any]) -> str:
    return hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in tensors)).hexdigest()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums of a matrix product are cut as a trainer's one thread cuts them."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "controls",
    [pytest.param(True, marks=pytest.mark.nightly, id="controls"), pytest.param(False, id="alone")],
)
def test_killed_job_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, controls: bool, one_thread: None
) -> None:
    """Controls: the lab's own other runs, one of them stopped by the trainer's save."""
    script = ["--clip", "1", "--accumulate", "2", "--metric-every", "3"]
    options = ["--steps", str(STEPS), "--kill-at", "3"]
    if not controls:
        options.append("--no-control")
    found = train(tmp_path / "out", f"t{os.getpid()}", options, script)
    comparison = found["comparison"]
    assert (comparison["different"], comparison["missing"]) == ([], [])
    assert comparison["equal"] >= STEPS - 1
    assert 0 <= found["killed_at"] - found["restored_step"] + 1 <= 2
    unbroken = [*SMALL, "--steps", str(STEPS), *script]
    assert found["final"] == by_one_process(tmp_path, unbroken)
    if controls:
        assert found["final"] == found["control"] == found["unbroken"]
        assert found["final"] == over_gloo(tmp_path, unbroken)
    assert all(one["holds"] for one in found["statements"])
    told = (tmp_path / "out/trainers/digests.jsonl").read_text().splitlines()
    assert max(json.loads(line)["step"] for line in told) == STEPS


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("options", "settings", "script"),
    [
        (
            ["--protocol", "Simple"],
            {"QPS_PER_CONNECTION": "4"},
            ["--metric-every", "3"],
        ),
        (["--hosts", "3", "--protocol", "LL128"], {"QPS_PER_CONNECTION": "2"}, ["--clip", "1"]),
        (["--nccl", "2.19"], {"QPS_PER_CONNECTION": "3"}, ["--metric-every", "3"]),
        (
            ["--protocol", "LL128"],
            {"QPS_PER_CONNECTION": "2", "SPLIT_DATA_ON_QPS": "1"},
            ["--clip", "1"],
        ),
    ],
    ids=["turns-simple", "turns-ll128", "split", "split-ll128"],
)
def test_connections_of_several_queue_pairs(
    options: list[str],
    settings: dict[str, str],
    script: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(f"NCCL_IB_{name}", value)
    found = train(
        tmp_path / "out",
        f"t{os.getpid()}",
        [*options, "--steps", "18", "--kill-at", "5", "--no-control"],
        script,
    )
    assert found["comparison"]["missing"] == found["comparison"]["different"] == []
    assert all(one["holds"] for one in found["statements"])


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("options", "script"),
    [
        (["--hosts", "3", "--switch", "ovs"], ["--accumulate", "2", "--sync-each"]),
        (["--switch", "ovs", "--erspan"], ["--clip", "1"]),
        (["--hosts", "4", "--protocol", "Simple"], ["--clip", "1"]),
        (["--hosts", "8", "--mirror", "p3:both"], ["--clip", "1"]),
        (["--protocol", "LL128", "--mtu", "9000", "--loss", "0.001"], ["--sgd"]),
    ],
    ids=["ovs", "erspan", "simple", "eight", "loss"],
)
def test_other_clusters_and_habits(tmp_path: Path, options: list[str], script: list[str]) -> None:
    found = train(
        tmp_path / "out",
        f"t{os.getpid()}",
        [*options, "--steps", "10", "--kill-at", "5", "--no-control"],
        script,
    )
    assert found["comparison"]["missing"] == found["comparison"]["different"] == []
    assert all(one["holds"] for one in found["statements"])
