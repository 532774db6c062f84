"""Nodes of several GPUs: real trainers, of which only what goes from node to node is seen.

Every rank is a host of its own, as a GPU with a NIC of its own is; hops between the ranks of one
node are taken out of what was captured, as NVLink takes them off the network.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.standing import standing
from support.started import launch
from test_unseen_scripts import ADAMW, Outcome, replay

from flowcheck.lab import cluster
from flowcheck.lab.job_run.digest_comparison import trainer_digests
from flowcheck.lab.recording.packet_tap import PacketTap

pytestmark = [
    pytest.mark.lab,
    pytest.mark.nightly,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="no ip command"),
    pytest.mark.skipif(shutil.which("tcpdump") is None, reason="no tcpdump command"),
]


def mirrored(ranks: int, gpus: int, node: int) -> cluster.Cluster:
    """Both directions of every port of one node."""
    ports = range(node * gpus, (node + 1) * gpus)
    mirrors = [cluster.Mirror(port, way) for port in ports for way in ("rx", "tx")]
    return cluster.Cluster(name=f"n{os.getpid()}", network=203, hosts=ranks, mirrors=tuple(mirrors))


def without_nvlink(made: cluster.Cluster, capture: Path, out: Path) -> Path:
    """What ranks of one node send each other is not on the network."""
    inside = [made.address(mirror.port) for mirror in made.mirrors[::2]]
    pairs = [f"(host {a} and host {b})" for a in inside for b in inside if a < b]
    words = ["tcpdump", "-r", str(capture), "-w", str(out), f"not ({' or '.join(pairs)})"]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    return out


@pytest.mark.parametrize("protocol", ["LL", "LL128", "Simple"])
@pytest.mark.parametrize(("ranks", "gpus", "node"), [(4, 2, 1), (6, 2, 1), (6, 3, 0)])
def test_a_job_on_nodes_of_several_gpus_is_followed_bit_for_bit(
    ranks: int, gpus: int, node: int, protocol: str, tmp_path: Path
) -> None:
    made = mirrored(ranks, gpus, node)
    capture, digests = tmp_path / "job.pcapng", tmp_path / "digests.jsonl"
    with (
        standing(made),
        PacketTap(made.checkpoint_namespace, cluster.UPLINK, capture, comment="nodes"),
    ):
        launch(made, "variants.py", str(digests), "view", f"NCCL_PROTO={protocol}")
    told = replay(without_nvlink(made, capture, tmp_path / "node.pcap"), ADAMW)
    replica = {
        line["step"]: {"parameters": line["parameters_sha256"], **line.get("states_sha256", {})}
        for line in told["digests"]
    }
    outcome = Outcome(trainer_digests(digests), replica, told["lost"] or told["why"] or "")
    outcome.check()
    assert outcome.trainer and outcome.replica == outcome.trainer
