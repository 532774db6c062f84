"""Parted optimizers, as DeepSpeed and Megatron-LM send: every step's parameters bit for bit."""

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
from test_channel_rings import node
from test_unseen_scripts import replay

from flowcheck.lab import cluster
from flowcheck.lab.recording.packet_tap import PacketTap
from flowcheck.ops.lifecycle.run_outcome import last_step
from flowcheck.stages.run_directory.run_dir import RunDir

pytestmark = [
    pytest.mark.lab,
    pytest.mark.nightly,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="no ip command"),
]
STEPS, SAVED = 6, 3
BUCKETS = "bucket_elements = 12000\n"


@pytest.fixture
def hosts(request: pytest.FixtureRequest) -> Iterator[cluster.Cluster]:
    with standing(
        cluster.Cluster(name=f"p{os.getpid()}", network=207, hosts=getattr(request, "param", 2))
    ) as made:
        yield made


def model(style: str, factory: str, ranks: int, more: str = "") -> str:
    place = f'factory = "{SCRIPTS / "parted.py"}:{factory}"\nranks = {ranks}\n'
    return f'[sharded]\nstyle = "{style}"\n{place}{more}'


def truth(digests: Path) -> dict[int, str]:
    lines = map(json.loads, digests.read_text().splitlines())
    return {line["step"]: line["parameters"] for line in lines}


@pytest.mark.parametrize(
    ("hosts", "factory", "words", "more"),
    [
        (2, "make", ("megatron", "NCCL_PROTO=LL"), ""),
        (2, "make", ("megatron", "late", "buckets", "norm", "NCCL_PROTO=Simple"), BUCKETS),
        (3, "bfloat16", ("megatron", "bfloat16", "buckets", "NCCL_PROTO=Simple"), BUCKETS),
        (4, "make", ("megatron", "late", "buckets", "NCCL_PROTO=LL128"), BUCKETS),
        (2, "make", ("zero", "micro", "norm", "NCCL_PROTO=LL"), "sums_per_step = 2\n"),
        (3, "bfloat16", ("zero", "bfloat16", "buckets", "norm", "NCCL_PROTO=LL128"), ""),
        (4, "groups", ("zero", "groups", "norm", "NCCL_PROTO=Simple"), ""),
    ],
    indirect=["hosts"],
)
def test_a_replay_gives_the_parameters_of_every_step_that_was_gathered(
    hosts: cluster.Cluster, tmp_path: Path, factory: str, words: tuple[str, ...], more: str
) -> None:
    capture, digests = tmp_path / "job.pcapng", tmp_path / "digests"
    with PacketTap(hosts.checkpoint_namespace, cluster.UPLINK, capture, comment="parted"):
        launch(hosts, "parted.py", str(digests), *words)
    told = replay(capture, "", model(words[0], factory, hosts.hosts, more))
    found = {line["step"]: line["parameters_sha256"] for line in told["digests"]}
    assert found == truth(digests) and len(found) == STEPS - ("late" in words)
    assert not told["why"] and not told["lost"]
    asked = ["analyze", str(capture), "--json", "--job"]
    analyzed = json.loads(preloaded.output([*asked, str(capture.with_suffix(".toml"))]))
    gathers = [c for c in analyzed["collectives"] if c["meaning"] == "gathered parameters"]
    assert len(gathers) >= len(found) and all(c["sha256"] for c in gathers)
    other = replay(capture, "", model("zero" if "megatron" in words else "megatron", "make", 2))
    assert not other["digests"] and "[sharded] style" in other["why"]["sentence"]


@pytest.mark.parametrize(
    ("style", "factory", "words"),
    [
        ("megatron", "make", ("NCCL_PROTO=LL",)),
        ("zero", "bfloat16", ("bfloat16", "NCCL_PROTO=Simple")),
    ],
)
def test_each_ring_of_a_tensor_parallel_job_is_followed(
    tmp_path: Path, style: str, factory: str, words: tuple[str, ...]
) -> None:
    made = node(4, 2)
    capture, digests, job = tmp_path / "job.pcapng", tmp_path / "digests", tmp_path / "job.toml"
    with (
        standing(made),
        PacketTap(made.checkpoint_namespace, cluster.UPLINK, capture, comment="rings"),
    ):
        launch(made, "parted.py", str(digests), style, "rings", *words)
    job.write_text(model(style, factory, 2))
    command = ["replay", str(capture), "--job", str(job)]
    command += ["--jobs", "2", "--digests", "--json", "--source", "file"]
    told = json.loads(preloaded.output(command))
    found = [
        {line["step"]: line["parameters_sha256"] for line in one["digests"]}
        for one in (told, *told["beside"])
    ]
    own = [truth(tmp_path / f"digests.{ring}") for ring in range(2)]
    assert sorted(own.index(one) for one in found) == [0, 1] and len(found[0]) == STEPS


def test_on_a_live_port_it_is_followed_audited_and_given_back(
    hosts: cluster.Cluster, tmp_path: Path
) -> None:
    digests, run, job = tmp_path / "digests", RunDir(tmp_path / "run"), tmp_path / "job.toml"
    source = f'[[source]]\ninterface = "{cluster.UPLINK}"\n'
    head = f'run = "{run.root}"\ncheckpoint = "{tmp_path / "saved"}"\ndigests = true\n'
    job.write_text(head + source + model("zero", "bfloat16", 2))
    words = [sys.executable, "-m", "flowcheck"]
    chain = cluster.run_in(hosts.checkpoint_namespace, [*words, "up", str(job)], env=os.environ)
    file, out = tmp_path / "digests.pt", tmp_path / "restored.pt"
    about = ["--run", str(run.root)]
    try:
        wait_until(lambda: greetings(run, "capture-0") == 1, 60, "capture on the interface")
        launch(hosts, "parted.py", str(digests), "zero", "bfloat16", "save", "norm")
        wait_until(lambda: (last_step(run) or {}).get("step") == STEPS, 60, "the last step")
        audited = preloaded.run(
            ["audit", str(file), *about], capture_output=True, text=True, check=False
        )
        assert audited.returncode == 0, audited.stderr
        assert f"step {SAVED}: all 10 parameters" in audited.stdout
        preloaded.run(["restore", *about, "--template", str(file), "--out", str(out)], check=True)
    finally:
        chain.send_signal(signal.SIGINT)
        chain.wait(60)
    assert chain.returncode == 0
    held = torch.load(out, weights_only=True)["module"]
    kept = [json.loads(line) for line in digests.read_text().splitlines()][-1]
    assert kept["step"] == STEPS and _sha256(held) == kept["parameters"]
    manifest = json.loads((tmp_path / f"saved/step-{STEPS}/manifest.json").read_text())
    assert manifest["kind"] == "parameters"


def _sha256(held: dict[str, torch.Tensor]) -> str:
    parts = (value.contiguous().view(torch.uint8).numpy().tobytes() for value in held.values())
    return hashlib.sha256(b"".join(parts)).hexdigest()
