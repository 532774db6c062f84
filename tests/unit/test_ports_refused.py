"""Layouts that ports cannot be chosen for, each refused with the key and the reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.port_layouts import Tree, choose, layout
from support.refused_as import Wanted, like, refused_as

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.mirror_session_rules import NUMBER_OUT_OF_RANGE
from flowcheck.findings.catalog.nccl_transport import COLLNET_NOT_FOLLOWED, NVLS_NOT_FOLLOWED
from flowcheck.findings.catalog.refused_layouts import (
    AT_MOST,
    EXPERTS,
    GROUP_IN_ONE_NODE,
    GROUP_OF_ONE,
    INDIVISIBLE,
    MONITOR_CABLED,
    NCCL_RELEASE,
    NO_CABLE_ENDS_THERE,
    NO_MONITORS,
    ONE_RANGE,
    ORDER_OF_SIZES,
    PORT_OR_ERSPAN,
    PORT_TAKEN,
    PORTS_FOR_NODES,
    SESSION_NUMBER,
    SPEED,
    TOO_MANY_RANKS,
    WITHIN,
)
from flowcheck.findings.catalog.refused_mirror_sessions import MULTICAST
from flowcheck.findings.catalog.refused_settings import AT_LEAST, DID_YOU_MEAN
from flowcheck.ops.mirror_ports.cluster_layout.layout_file import load_layout
from flowcheck.ops.mirror_ports.mirror_plan import PortsRequest, make_mirror_plan


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({"algorithm": "nvls"}, NVLS_NOT_FOLLOWED),
        ({"algorithm": "collnet"}, COLLNET_NOT_FOLLOWED),
        ({"ep": 2}, EXPERTS),
        ({"gpus": 8, "nodes": 1, "cable": None}, GROUP_IN_ONE_NODE),
        ({"pp": 4}, GROUP_OF_ONE),
        ({"tp": 3}, INDIVISIBLE),
        ({"order": "tp-dp"}, ORDER_OF_SIZES),
        ({"channels": 65}, like(WITHIN, least=1, most=64)),
        ({"nodes": 4097}, like(TOO_MANY_RANKS, most=4096)),
        ({"nodes": 0}, like(AT_LEAST, least=1)),
        ({"nccl": "3.0"}, NCCL_RELEASE),
        (
            {"monitor": [{"switch": "nowhere", "port": "m", "gbps": 1}]},
            NO_CABLE_ENDS_THERE,
        ),
        ({"monitor": [{"switch": "leaf", "gbps": 1}]}, PORT_OR_ERSPAN),
        (
            {"monitor": [{"switch": "leaf", "port": "Ethernet1", "gbps": 1}]},
            like(MONITOR_CABLED, nic=re.compile("^NIC 0 ")),
        ),
        ({"monitor": []}, NO_MONITORS),
        ({"channel": 2}, DID_YOU_MEAN("channels")),
        ({"traffic": {"gradient_bytes": 1, "step_s": 0}}, SPEED),
        ({"traffic": {"gradient_bytes": 10**18, "step_s": 1}}, AT_MOST),
        (
            {"traffic": {"gradient_bytes": 1, "step_s": 1, "bucket_bytes": 3}},
            like(AT_LEAST, least=4),
        ),
        ({"replica": {"parameters": 10**18}}, AT_MOST),
    ],
)
def test_what_cannot_be_chosen_for_is_refused(tmp_path: Path, more: Tree, wanted: Wanted) -> None:
    tree = layout()
    for key, value in more.items():
        if key == "cable":
            tree["cable"] = [{"nic": 0, "switch": "leaf", "ports": "Ethernet1", "gbps": 100}]
        else:
            tree[key] = value
    with refused_as(wanted, kind=ConfigError):
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
    with refused_as(ONE_RANGE, PORTS_FOR_NODES, PORT_TAKEN, kind=ConfigError, key="cable[0].ports"):
        choose(tmp_path, tree)


@pytest.mark.parametrize(
    ("monitor", "wanted"),
    [
        (
            {"port": "ethernet1/9", "session": 99},
            like(
                NUMBER_OUT_OF_RANGE,
                key="monitor[0].session",
                value="'99'",
                numbers=(99,),
                platform=re.compile("^Cisco"),
            ),
        ),
        (
            {"port": "ethernet1/9"},
            like(
                SESSION_NUMBER,
                key="monitor[0].session",
                platform=re.compile("^Cisco"),
            ),
        ),
        (
            {"erspan": "src=10.0.0.1,dst=239.0.0.1", "session": 1},
            like(MULTICAST, key="monitor[0].erspan"),
        ),
    ],
)
def test_a_monitor_is_named_by_its_key_of_the_file(
    tmp_path: Path, monitor: Tree, wanted: Wanted
) -> None:
    tree = layout()
    tree["cable"][0]["ports"] = "ethernet1/{1-4}"
    tree["monitor"] = [{"switch": "leaf", "gbps": 400} | monitor]
    with refused_as(wanted, kind=ConfigError):
        choose(tmp_path, tree, os="nxos")


def test_an_unknown_key_is_told_before_what_the_file_lacks(tmp_path: Path) -> None:
    """A file of another kind, or a misspelt table: that no cable is stated says less."""
    path = tmp_path / "layout.toml"
    path.write_text("nodes = 4\ngpus = 2\ncolour = 1\n[[cabel]]\nnic = 0\n")
    with pytest.raises(ConfigError) as refused:
        load_layout(path)
    assert refused.value.key == "colour"
    (other,) = refused.value.right.arguments["others"]
    assert other.arguments["key"] == "cabel" and "cable" in str(other)
