"""Layouts that ports cannot be chosen for, each refused with the key and the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.port_layouts import Tree, choose, layout

from flowcheck.errors import ConfigError
from flowcheck.ops.mirror_ports.mirror_plan import PortsRequest, make_mirror_plan


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"algorithm": "nvls"}, "NVLink SHARP"),
        ({"algorithm": "collnet"}, "the switch itself sums"),
        ({"ep": 2}, "experts' gradients go by rings of their own"),
        ({"gpus": 8, "nodes": 1, "cable": None}, "cross no switch"),
        ({"pp": 4}, "one rank"),
        ({"tp": 3}, "does not divide"),
        ({"order": "tp-dp"}, "must name each of"),
        ({"channels": 65}, "must be 1 to 64"),
        ({"nodes": 4097}, "4,096 ranks"),
        ({"nodes": 0}, "must be 1 or more"),
        ({"nccl": "3.0"}, 'state it as "2.21"'),
        ({"monitor": [{"switch": "nowhere", "port": "m", "gbps": 1}]}, "no cable ends there"),
        ({"monitor": [{"switch": "leaf", "gbps": 1}]}, "state port or erspan"),
        (
            {"monitor": [{"switch": "leaf", "port": "Ethernet1", "gbps": 1}]},
            "is cabled to NIC 0",
        ),
        ({"monitor": []}, "state at least one"),
        ({"channel": 2}, "did you mean channels"),
        ({"traffic": {"gradient_bytes": 1, "step_s": 0}}, "must be above 0"),
        ({"traffic": {"gradient_bytes": 10**18, "step_s": 1}}, "at most"),
        ({"traffic": {"gradient_bytes": 1, "step_s": 1, "bucket_bytes": 3}}, "4 or more"),
        ({"replica": {"parameters": 10**18}}, "at most"),
    ],
)
def test_what_cannot_be_chosen_for_is_refused(tmp_path: Path, more: Tree, why: str) -> None:
    tree = layout()
    for key, value in more.items():
        if key == "cable":
            tree["cable"] = [{"nic": 0, "switch": "leaf", "ports": "Ethernet1", "gbps": 100}]
        else:
            tree[key] = value
    with pytest.raises(ConfigError, match=why):
        choose(tmp_path, tree)


@pytest.mark.parametrize(
    "text",
    ["", "nodes = ", "\0", "nodes = 1e999", "[[cable]]\n" * 3, "a = " + "[" * 5000, "nodes = true"],
)
def test_a_file_that_is_no_layout_says_so(tmp_path: Path, text: str) -> None:
    file = tmp_path / "layout.toml"
    file.write_text(text)
    with pytest.raises(ConfigError):
        make_mirror_plan(PortsRequest(file=file))


@pytest.mark.parametrize(
    "ports", ["p{1-9999}", "p{4-1}", "p{1-4:0}", "p{1-2}{1-2}", "p{1-3}", ["a", "b", "c", "a"]]
)
def test_a_range_of_ports_that_is_none_is_refused(tmp_path: Path, ports: object) -> None:
    tree = layout()
    tree["cable"][0]["ports"] = ports
    with pytest.raises(ConfigError, match=r"cable.0..ports"):
        choose(tmp_path, tree)


@pytest.mark.parametrize(
    ("monitor", "why"),
    [
        ({"port": "ethernet1/9", "session": 99}, r"monitor.0..session = '99': takes 99; Cisco"),
        ({"port": "ethernet1/9"}, r"monitor.0..session = 'not stated': Cisco"),
        ({"erspan": "src=10.0.0.1,dst=239.0.0.1", "session": 1}, "monitor.0..erspan.*multicast"),
    ],
)
def test_a_monitor_is_named_by_its_key_of_the_file(tmp_path: Path, monitor: Tree, why: str) -> None:
    tree = layout()
    tree["cable"][0]["ports"] = "ethernet1/{1-4}"
    tree["monitor"] = [{"switch": "leaf", "gbps": 400} | monitor]
    with pytest.raises(ConfigError, match=why):
        choose(tmp_path, tree, os="nxos")
