"""From a layout to a replica: ports are chosen, a real Open vSwitch is told by the very command
that `ports` prints, the chain follows a job on those copies alone, and the switch is as it was."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.chain import wait_until
from support.mirrored import Switch
from support.started import launch
from support.switches import NEEDS_OVS, ONE_OVS_AT_A_TIME
from test_channel_rings import steps_taken, taken
from test_switch_ovs import held, vsctl

from flowcheck.lab import cluster as lab
from flowcheck.lab.cluster.cluster_state_file import folder_of
from flowcheck.lab.job_run.digest_comparison import trainer_digests
from flowcheck.lab.job_run.flowcheck_services import FlowCheckServices
from flowcheck.stages.run_directory.run_dir import RunDir
from tests.unit.test_cli import flowcheck

pytestmark = [
    pytest.mark.lab,
    pytest.mark.nightly,
    NEEDS_OVS,
    ONE_OVS_AT_A_TIME,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces"),
    pytest.mark.timeout(900),
]
HOSTS, STEPS = 3, 5
LAYOUT = f"""
nodes = {HOSTS}
gpus = 1
channels = 1
cable = [{{ nic = 0, switch = "br0", ports = "p{{0-{HOSTS - 1}}}", gbps = 10 }}]
monitor = [{{ switch = "br0", port = "mon0", gbps = 20 }}]
switch = [{{ name = "br0", os = "openvswitch", bridge = "br0" }}]
"""


@pytest.fixture
def switch(tmp_path: Path) -> Iterator[Switch]:
    """Open vSwitch between hosts, that mirrors nothing."""
    cluster = lab.Cluster(
        name=f"j{os.getpid()}", network=207, switch="ovs", hosts=HOSTS,
        mirrors=lab.parse_mirrors(["p0:rx"]),
    )  # fmt: skip
    try:
        lab.up(cluster)
        database = f"unix:{folder_of(cluster.name)}/db.sock"
        made = Switch(cluster, tmp_path, ["--db", database])
        vsctl(made, "clear bridge br0 mirrors")
        yield made
    finally:
        lab.down(cluster.name)


def test_what_ports_chose_is_applied_followed_exactly_and_removed_without_a_trace(
    switch: Switch, tmp_path: Path
) -> None:
    (tmp_path / "layout.toml").write_text(LAYOUT)
    code, out, err = flowcheck("ports", tmp_path / "layout.toml", "--json")
    assert code == 0, err
    (told,) = json.loads(out)["commands"]
    program, verb, apply, *words = shlex.split(told["apply"])
    assert (program, verb, apply) == ("flowcheck", "switch", "apply")
    before = held(switch)
    assert not before["Mirror"]
    for _ in range(2):  # twice is once
        code, _, err = switch.verb("apply", *words)
        assert code == 0, err
    (mirror,) = json.loads(vsctl(switch, "-f json list Mirror"))["data"]
    assert mirror
    run = follow(switch, tmp_path)
    trainer = trainer_digests(tmp_path / "digests")
    assert len(trainer) == STEPS and taken(run) == trainer
    code, _, err = switch.verb("remove", *words[: words.index("--source")])
    assert code == 0, err
    assert held(switch) == before


def follow(switch: Switch, folder: Path) -> RunDir:
    """A chain at the monitor port, and a job of all hosts to its end."""
    job = folder / "job.toml"
    job.write_text(
        'digests = true\n[[source]]\ninterface = "eth0"\n[ring]\nslots = 8192\n'
        "[staging]\nsize_bytes = 67108864\n"
        '[optimizer]\nname = "adamw"\nlearning_rate = 0.01\n'
    )
    enter = ("ip", "netns", "exec", switch.cluster.checkpoint_namespace)
    services = FlowCheckServices(job, folder / "run", folder / "log", enter=enter)
    run = RunDir(folder / "run")
    try:
        services.wait_listening()
        launch(switch.cluster, "variants.py", str(folder / "digests"), "view", "NCCL_PROTO=LL")
        wait_until(lambda: steps_taken(run) == STEPS, 200, "the last step")
    finally:
        services.stop()
    return run
