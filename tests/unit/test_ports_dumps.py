"""NCCL's XML dumps and its log, as layouts are read with them; whatever else is in such a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.refused_as import Wanted, like, refused_as

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.mirror_session_rules import ONE_DIRECTION_ONLY
from flowcheck.findings.catalog.mirrored_ports import (
    GPUS_BY_NUMBER,
    NICS_AS_DUMPED_NODE,
    NICS_IN_TURN,
)
from flowcheck.findings.catalog.nccl_transport import NO_RINGS
from flowcheck.findings.catalog.refused_layouts import (
    DUMP_HAS_DOCTYPE,
    DUMP_NUMBER,
    DUMP_OF_ONE_NODE,
    DUMP_TOO_DEEP,
    DUMP_WITHOUT_NETWORK,
    LEAVES_NODE_TWICE,
    LOG_AMBIGUOUS,
    LOG_CHANNELS,
    LOG_OF_OTHER_RANKS,
    NO_RING_CHANNEL,
    NOT_A_DUMP,
    NOT_XML,
)
from flowcheck.findings.finding import Entry
from flowcheck.ops.mirror_ports.cluster_layout.nccl_xml_dumps import read_dump
from flowcheck.ops.mirror_ports.mirror_plan import MirrorPlan, PortsRequest, make_mirror_plan

# As NCCL writes them: the elements and attributes of src/graph/search.cc (ncclTopoGetXmlFromGraph)
# and src/graph/xml.cc, cut to a node of two GPUs and two NICs.
GRAPH = """<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="2" speedintra="20" speedinter="20" \
latencyinter="0" typeintra="NVL" typeinter="PIX" samechannels="0">
    <channel>
      <net dev="0"/>
      <gpu dev="0"/>
      <gpu dev="1"/>
      <net dev="0"/>
    </channel>
    <channel>
      <net dev="0x1"/>
      <gpu dev="0x1"/>
      <gpu dev="0"/>
      <net dev="0x1"/>
    </channel>
  </graph>
  <graph id="1" pattern="1" crossnic="0" nchannels="1" speedintra="20" speedinter="20" \
latencyinter="0" typeintra="NVL" typeinter="PIX" samechannels="1">
    <channel>
      <net dev="1"/>
      <gpu dev="0"/>
      <gpu dev="1"/>
      <net dev="1"/>
    </channel>
  </graph>
</graphs>
"""
TOPOLOGY = """<system version="1">
  <cpu host_hash="0x1" numaid="0" affinity="ff" arch="x86_64" vendor="AuthenticAMD">
    <pci busid="0000:10:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:11:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0" gdr="1">
          <nvlink target="0000:07:00.0" count="5" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:12:00.0" class="0x020000" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="mlx5_1" dev="1" speed="400000" port="1" guid="0xa8" maxconn="131072" gdr="1"/>
        </nic>
      </pci>
    </pci>
  </cpu>
  <cpu host_hash="0x1" numaid="1" affinity="ff00" arch="x86_64" vendor="AuthenticAMD">
    <pci busid="0000:20:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:21:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="1" sm="90" rank="1" gdr="1"/>
      </pci>
      <pci busid="0000:22:00.0" class="0x020000" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="mlx5_0" dev="0" speed="400000" port="1" guid="0xa9" maxconn="131072" gdr="1"/>
        </nic>
      </pci>
    </pci>
  </cpu>
</system>
"""
LAYOUT = """
nodes = 4
gpus = 2
cable = [
  { nic = 0, switch = "leaf0", ports = "p{1-4}", gbps = 100 },
  { nic = 1, switch = "leaf1", ports = "p{1-4}", gbps = 100 },
]
monitor = [
  { switch = "leaf0", port = "m", gbps = 400 },
  { switch = "leaf1", port = "m", gbps = 400 },
]
"""
HEAD = "node0:1:1 [0] NCCL INFO comm 0x1 rank 0 nRanks {} nNodes 4\n"


def choose(folder: Path, layout: str = LAYOUT, *, log: str = "", graph: str = "") -> MirrorPlan:
    asked: dict[str, Any] = {}
    (folder / "layout.toml").write_text(layout)
    for key, text in (("logs", log), ("graphs", graph)):
        if text:
            (folder / key).write_text(text)
            asked[key] = (folder / key,)
    return make_mirror_plan(PortsRequest(file=folder / "layout.toml", **asked))


def test_a_graph_dump_tells_the_nics_of_each_channel(tmp_path: Path) -> None:
    found = choose(tmp_path, graph=GRAPH)
    # Those of the search, doubled; the tree's graph is none of theirs.
    assert [ring.channel for ring in found.rings] == [0, 1, 2, 3]
    nics = [{link.nic_out for link in ring.links} for ring in found.rings]
    assert nics == [{0}, {1}, {0}, {1}]
    assert NICS_AS_DUMPED_NODE() in found.assumed
    assert NICS_IN_TURN() not in found.assumed
    assert len(found.choice.placed) == 4


def test_a_ring_may_come_and_go_by_two_nics(tmp_path: Path) -> None:
    """Then a link leaves one switch's port and comes in by another's, and SONiC's one direction a
    session matters: two nodes, only one of them beside a monitor."""
    crossing = GRAPH.replace(
        '<gpu dev="1"/>\n      <net dev="0"/>', '<gpu dev="1"/>\n      <net dev="1"/>'
    )
    crossing = crossing.replace(
        '<gpu dev="0"/>\n      <net dev="0x1"/>', '<gpu dev="0"/>\n      <net dev="0"/>'
    )
    found = choose(tmp_path, graph=crossing)
    ways = [(link.nic_in, link.nic_out) for link in found.rings[0].links]
    assert set(ways) == {(0, 1)}
    assert {(link.nic_in, link.nic_out) for link in found.rings[1].links} == {(1, 0)}
    one_beside = """
nodes = 2
gpus = 2
channels = 1
cable = [
  { nic = 0, nodes = "0", switch = "leaf", ports = "Ethernet0", gbps = 100 },
  { nic = 1, nodes = "0", switch = "leaf", ports = "Ethernet4", gbps = 100 },
  { nic = 0, nodes = "1", switch = "far", ports = "Ethernet0", gbps = 100 },
  { nic = 1, nodes = "1", switch = "far", ports = "Ethernet4", gbps = 100 },
]
switch = [{ name = "leaf", os = "OS" }]
monitor = [{ switch = "leaf", port = "Ethernet64", gbps = 400 }]
"""
    with refused_as(ONE_DIRECTION_ONLY, kind=ConfigError):
        choose(tmp_path, one_beside.replace("OS", "sonic"), graph=crossing)
    told = choose(tmp_path, one_beside.replace("OS", "eos"), graph=crossing).commands[0].render
    assert "--source Ethernet4:rx" in told and "--source Ethernet0:tx" in told


def test_odd_nodes_exchange_channels_where_nics_are_crossed_in_pairs(tmp_path: Path) -> None:
    crossed = GRAPH.replace('crossnic="0" nchannels="2"', 'crossnic="2" nchannels="2"')
    ring = choose(tmp_path, graph=crossed).rings[0]
    assert [(link.out_of % 2, link.nic_out, link.nic_in) for link in ring.links] == [
        (0, 0, 1),
        (1, 1, 0),
        (0, 0, 1),
        (1, 1, 0),
    ]


def test_a_topology_dump_tells_the_nic_near_each_gpu(tmp_path: Path) -> None:
    found = choose(tmp_path, "tp = 2\n" + LAYOUT, graph=TOPOLOGY)
    nics = {ring.group.name: {link.nic_out for link in ring.links} for ring in found.rings}
    assert nics == {"tp0": {1}, "tp1": {0}}
    assert GPUS_BY_NUMBER() not in found.assumed


def test_a_log_tells_the_order_of_nodes(tmp_path: Path) -> None:
    log = HEAD.format(4) + "".join(
        f"node0:1:1 [0] NCCL INFO Channel {n:02}/02 : {ring}\n"
        for n, ring in enumerate(["0 2 1 3", "0 1 2 3"])
    )
    layout = LAYOUT.replace("gpus = 2", "gpus = 1")
    found = choose(tmp_path, layout, log=log)
    assert [link.out_of for link in found.rings[0].links] == [0, 2, 1, 3]
    assert [link.out_of for link in found.rings[1].links] == [0, 1, 2, 3]
    assert not found.order_assumed
    # What node 0 sends and what node 2 sends are links of both.
    assert {pair.node for pair, _ in found.choice.placed} <= {0, 1, 2, 3}
    assert len(found.choice.placed) == 2


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (["Channel 00/01 : 0 1 2"], LOG_OF_OTHER_RANKS),
        (["Channel 00/01 : 0 1 2 2"], LOG_OF_OTHER_RANKS),
        (["Channel 00/01 : 0 1 2 9"], LOG_OF_OTHER_RANKS),
        (["nothing"], NO_RINGS),
        (["Channel 00/01 : 0 1 2 3", "Channel 00/01 : 0 2 1 3"], LOG_AMBIGUOUS),
        (
            ["Channel 00/02 : 0 1 2 3", "Channel 01/02 : 0 1 2 3"],
            like(LOG_CHANNELS, channels=2),
        ),
    ],
)
def test_a_log_that_does_not_fit_is_refused(
    tmp_path: Path, lines: list[str], wanted: Wanted
) -> None:
    log = "".join(
        HEAD.format(4) * ("00/" in line) + f"node0:1:1 [0] NCCL INFO {line}\n" for line in lines
    )
    layout = "channels = 1\n" + LAYOUT.replace("gpus = 2", "gpus = 1")
    with refused_as(wanted, kind=ConfigError):
        choose(tmp_path, layout, log=log)


def test_a_ring_that_leaves_a_node_twice_is_refused(tmp_path: Path) -> None:
    log = HEAD.format(8) + "node0:1:1 [0] NCCL INFO Channel 00/01 : 0 2 1 3 4 5 6 7\n"
    with refused_as(LEAVES_NODE_TWICE, kind=ConfigError):
        choose(tmp_path, "channels = 1\n" + LAYOUT, log=log)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", NOT_XML),
        ("not xml", NOT_XML),
        ("<graphs>", NOT_XML),
        ("<other/>", NOT_A_DUMP),
        ("<graphs/>", NO_RING_CHANNEL),
        ("<system/>", DUMP_WITHOUT_NETWORK),
        (
            '<graphs><graph id="0"><channel><gpu dev="0"/></channel></graph></graphs>',
            DUMP_OF_ONE_NODE,
        ),
        ('<graphs><graph id="x"/></graphs>', DUMP_NUMBER),
        (
            '<graphs><graph id="0"><channel><net dev="-1"/></channel></graph></graphs>',
            DUMP_NUMBER,
        ),
        (
            '<!DOCTYPE a [<!ENTITY b "c">]><graphs>&b;</graphs>',
            DUMP_HAS_DOCTYPE,
        ),
        (
            '<!DOCTYPE a SYSTEM "file:///etc/passwd"><graphs/>',
            DUMP_HAS_DOCTYPE,
        ),
        ("<a>" * 100, DUMP_TOO_DEEP),
        ("<graphs>" + "<graph/>" * 100_001 + "</graphs>", DUMP_NUMBER),
    ],
)
def test_xml_that_is_no_dump_is_refused(tmp_path: Path, text: str, wanted: Entry) -> None:
    file = tmp_path / "dump.xml"
    file.write_text(text)
    with refused_as(wanted, kind=ConfigError, key="--graph"):
        read_dump(file)


def test_an_entity_that_grows_is_never_opened(tmp_path: Path) -> None:
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10))
    file = tmp_path / "dump.xml"
    file.write_text(f'<!DOCTYPE g [<!ENTITY e0 "ha">{entities}]><graphs>&e9;</graphs>')
    with refused_as(DUMP_HAS_DOCTYPE, kind=ConfigError):
        read_dump(file)


@settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(at=st.integers(0, len(GRAPH)), cut=st.integers(0, 60), put=st.binary(max_size=20))
def test_a_damaged_dump_is_read_or_refused(tmp_path: Path, at: int, cut: int, put: bytes) -> None:
    file = tmp_path / "dump.xml"
    content = GRAPH.encode()
    file.write_bytes(content[:at] + put + content[at + cut :])
    layout = tmp_path / "layout.toml"
    layout.write_text(LAYOUT)
    try:
        chosen = make_mirror_plan(PortsRequest(file=layout, graphs=(file,)))
    except ConfigError:
        return
    assert all({link.nic_in, link.nic_out} <= {0, 1} for r in chosen.rings for link in r.links)
