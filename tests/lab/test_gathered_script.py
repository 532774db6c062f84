"""torch's fully_shard: every step's parameters bit for bit, from a capture and on a live port."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support import preloaded
from support.chain import wait_until
from support.live import greetings
from support.standing import standing
from support.started import SCRIPTS, launch
from test_unseen_scripts import ADAMW, replay

from flowcheck.lab import cluster
from flowcheck.lab.recording.packet_tap import PacketTap
from flowcheck.ops.lifecycle.run_outcome import last_step
from flowcheck.stages.run_directory.run_dir import RunDir

pytestmark = [
    pytest.mark.lab,
    pytest.mark.nightly,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="no ip command"),
]
STEPS, SAVED = 6, 3


@pytest.fixture
def hosts(request: pytest.FixtureRequest) -> Iterator[cluster.Cluster]:
    with standing(
        cluster.Cluster(name=f"g{os.getpid()}", network=205, hosts=getattr(request, "param", 2))
    ) as made:
        yield made


FLAT = (1076, 6305, 9506, 9506)
"""Elements of the flat parameters of FullyShardedDataParallel, without what fills them up."""


def truth(kept: Path, ranks: int, kind: torch.dtype, *, flat: bool = False) -> list[str]:
    """[step - 1] sha256 of the trainers' own parameters in the type they are sent in."""
    own = [torch.load(f"{kept}.rank{rank}.pt") for rank in range(ranks)]
    found = []
    for step in range(STEPS):
        whole = hashlib.sha256()
        for at, name in enumerate(own[0][step]):
            joined = torch.cat([parts[step][name] for parts in own]).to(kind)
            joined = joined[: FLAT[at]] if flat else joined
            whole.update(joined.contiguous().view(torch.uint8).numpy().tobytes())
        found.append(whole.hexdigest())
    return found


def model(factory: str, ranks: int) -> str:
    return f'[sharded]\nfactory = "{SCRIPTS / "gathered.py"}:{factory}"\nranks = {ranks}\n'


@pytest.mark.parametrize(
    ("hosts", "factory", "words"),
    [
        (2, "make", ("NCCL_PROTO=LL",)),
        (2, "root", ("root", "NCCL_PROTO=LL")),
        (2, "make", ("save", "NCCL_PROTO=Simple")),
        (3, "bfloat16", ("bfloat16", "save", "NCCL_PROTO=LL128")),
        (4, "root", ("root", "NCCL_PROTO=Simple")),
        (4, "mesh", ("mesh", "root", "NCCL_PROTO=Simple")),
        (2, "flat", ("flat", "root", "NCCL_PROTO=LL")),
    ],
    indirect=["hosts"],
)
def test_a_replay_gives_the_parameters_of_every_step_that_was_gathered(
    hosts: cluster.Cluster, tmp_path: Path, factory: str, words: tuple[str, ...]
) -> None:
    capture, kept = tmp_path / "job.pcapng", tmp_path / "kept"
    with PacketTap(hosts.checkpoint_namespace, cluster.UPLINK, capture, comment="gathered"):
        launch(hosts, "gathered.py", str(kept), *words)
    told = replay(capture, "", model(factory, hosts.hosts))
    kind = torch.bfloat16 if "bfloat16" in words else torch.float32
    ranks = 2 if "mesh" in words else hosts.hosts
    own = truth(kept, ranks, kind, flat="flat" in words)
    found = {line["step"]: line["parameters_sha256"] for line in told["digests"]}
    # What the last step made is gathered no more.
    assert found == {step + 1: own[step] for step in range(STEPS - 1)}
    assert not told["why"] and not told["lost"]
    if "mesh" in words:
        _check_sums(capture, kept)


def _check_sums(capture: Path, kept: Path) -> None:
    """HSDP: what the copies of the model sum is the gradient of each rank's parts, bit for bit."""
    command = ["analyze", str(capture), "--json"]
    collectives = json.loads(preloaded.output(command))["collectives"]
    found = [c["sha256"] for c in collectives if "copies of the model" in c["meaning"]]
    own = torch.load(f"{kept}.gradients0.pt")
    for gradients in own:
        for unit in (("5.", "6."), ("4.",), ("2.",), ("0.",)):  # the root's own, and the layers
            parts = (g for n, g in gradients.items() if n.startswith(unit))
            data = b"".join(g.contiguous().view(torch.uint8).numpy().tobytes() for g in parts)
            assert hashlib.sha256(data).hexdigest() in found
    assert len(found) == 4 * STEPS


def test_on_a_live_port_it_is_followed_audited_and_given_back(
    hosts: cluster.Cluster, tmp_path: Path
) -> None:
    kept, run, job = tmp_path / "kept", RunDir(tmp_path / "run"), tmp_path / "job.toml"
    source = f'[[source]]\ninterface = "{cluster.UPLINK}"\n'
    head = f'run = "{run.root}"\ncheckpoint = "{tmp_path / "saved"}"\ndigests = true\n'
    job.write_text(head + source + model("make", 2))
    words = [sys.executable, "-m", "flowcheck"]
    chain = cluster.run_in(hosts.checkpoint_namespace, [*words, "up", str(job)], env=os.environ)
    try:
        wait_until(lambda: greetings(run, "capture-0") == 1, 60, "capture on the interface")
        launch(hosts, "gathered.py", str(kept), "save")
        wait_until(lambda: (last_step(run) or {}).get("step") == STEPS - 1, 60, "the last step")
        file, out = f"{kept}.pt", tmp_path / "restored.pt"
        audited = preloaded.run(
            ["audit", file, "--run", str(run.root)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert audited.returncode == 0, audited.stderr
        assert f"step {SAVED}: all 10 parameters" in audited.stdout
        given = preloaded.run(
            [
                "restore",
                "--run",
                str(run.root),
                "--template",
                file,
                "--out",
                str(out),
                "--json",
            ],
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        chain.send_signal(signal.SIGINT)
        chain.wait(60)
    lacks = json.loads(given.stdout)["not_full"]
    assert any("optimizer state of step 3" in one["sentence"] for one in lacks)
    assert chain.returncode == 0
    tree = torch.load(out, weights_only=True)
    held = b"".join(
        v.contiguous().view(torch.uint8).numpy().tobytes() for v in tree["model"].values()
    )
    assert hashlib.sha256(held).hexdigest() == truth(kept, 2, torch.float32)[STEPS - 2]
    manifest = json.loads((tmp_path / f"saved/step-{STEPS - 1}/manifest.json").read_text())
    assert manifest["kind"] == "parameters" and not manifest["older"]


def test_an_optimizer_of_parts_beside_ddp_is_followed_with_all_its_state(
    hosts: cluster.Cluster, tmp_path: Path
) -> None:
    """ZeroRedundancyOptimizer: gradients are reduced whole, what it broadcasts is not needed."""
    capture, digests = tmp_path / "job.pcapng", tmp_path / "digests.jsonl"
    with PacketTap(hosts.checkpoint_namespace, cluster.UPLINK, capture, comment="zero"):
        launch(hosts, "zero_one.py", str(digests))
    told = replay(capture, ADAMW)
    own = [json.loads(line) for line in digests.read_text().splitlines()]
    found = {line["step"]: line["parameters_sha256"] for line in told["digests"]}
    assert found == {line["step"]: line["parameters"] for line in own} and not told["why"]


@pytest.mark.parametrize("hosts", [3], indirect=True)
def test_a_reduce_scatter_with_its_gather_behind_it_is_refused_by_name(
    hosts: cluster.Cluster, tmp_path: Path
) -> None:
    capture = tmp_path / "job.pcapng"
    with PacketTap(hosts.checkpoint_namespace, cluster.UPLINK, capture, comment="zero"):
        launch(hosts, "zero_flat.py", str(tmp_path / "kept"), "NCCL_PROTO=Simple")
    told = replay(capture, ADAMW)
    assert "ZeRO-1" in told["why"]["sentence"] and not told["digests"]
