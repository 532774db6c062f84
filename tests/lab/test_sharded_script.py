"""torch's fully_shard on the wire: gathered parameters are told and followed."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.standing import standing
from support.started import launch
from test_unseen_scripts import SGD, replay

from flowcheck.lab import cluster
from flowcheck.lab.recording.packet_tap import PacketTap
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import read_stream

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="no ip command"),
]
STEPS, LAYERS = 4, 3


@pytest.fixture
def hosts() -> Iterator[cluster.Cluster]:
    with standing(cluster.Cluster(name=f"s{os.getpid()}", network=204)) as made:
        yield made


def parameters(kept: Path, kind: torch.dtype) -> dict[tuple[int, int], bytes]:
    """{(step, layer): both ranks' shards after it, as they are gathered}."""
    ranks = [torch.load(f"{kept}.rank{rank}.pt") for rank in range(2)]
    return {
        (step + 1, layer): torch.cat(
            [p.flatten() for own in ranks for p in own[step][2 * layer : 2 * layer + 2]]
        )
        .to(kind)
        .view(torch.uint8)
        .numpy()
        .tobytes()
        for step in range(STEPS)
        for layer in range(LAYERS)
    }


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("protocol", ["LL", "Simple"])
def test_gathered_parameters_are_those_of_torch(
    hosts: cluster.Cluster, tmp_path: Path, kind: str, protocol: str
) -> None:
    capture, kept = tmp_path / "job.pcapng", tmp_path / "kept"
    with PacketTap(hosts.checkpoint_namespace, cluster.UPLINK, capture, comment="sharded"):
        launch(hosts, "sharded.py", str(kept), kind, f"NCCL_PROTO={protocol}")
    tape = read_capture_files([capture])
    reading = read_stream(tape.flows, tape.messages)
    told = {c.result.tobytes() for c in reading.collectives if c.meaning == "gathered parameters"}
    truth = parameters(kept, getattr(torch, kind))
    # What the last step made is gathered no more.
    assert {place for place, whole in truth.items() if whole in told} >= {
        (step, layer) for step in range(1, STEPS) for layer in range(LAYERS)
    }
    if kind == "float32":
        told = replay(capture, SGD)["digests"]
        followed = {line["step"]: line["parameters_sha256"] for line in told}
        own = (b"".join(truth[step, layer] for layer in range(LAYERS)) for step in range(1, STEPS))
        assert followed == {n + 1: hashlib.sha256(units).hexdigest() for n, units in enumerate(own)}
