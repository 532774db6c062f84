"""Which ports to mirror: golden choices by hand, and what they are held against."""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path

import msgspec
import pytest
from support.port_layouts import DATA, SIXTEEN, choose, layout, shown, words
from support.refused_as import like, refused_as

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.mirrored_ports import SEVERAL_CABLES
from flowcheck.findings.catalog.nccl_transport import NVLS_TREES_MIRRORED
from flowcheck.findings.catalog.refused_layouts import (
    ALGORITHM_LEAST_GPUS,
    ALGORITHM_NICS,
    ALGORITHM_RANKS,
    MONITOR_ROOM,
    NO_CHUNK_SEEN,
    PARAMETERS_OR_JOB,
    PORTS_NEEDED,
    RING_UNCOVERED,
    TUNNEL_ROOM,
    TUNNELS_MEET,
)
from flowcheck.ops.analysis.communicator_summary import summarize_communicators
from flowcheck.ops.analysis.mirror_coverage import AllReduceShape, coverage_of
from flowcheck.ops.mirror_ports.cluster_layout.nic_cabling import nic_cabling
from flowcheck.ops.mirror_ports.mirror_plan import MirrorPlan, PortsRequest, make_mirror_plan
from flowcheck.ops.mirror_ports.ports_report import as_dict
from flowcheck.ops.mirror_ports.traffic_and_memory_estimate import estimate_load
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.collectives.nccl_parameters import NcclEra, Protocol
from flowcheck.wire.learn import read_stream


def test_a_port_of_four_ranks_shows_what_the_facts_say(tmp_path: Path) -> None:
    """Of ring index 1: in {0, 3, 2}, out {1, 0, 3}; rx of a port is tx of the next one; each lacks
    the one chunk that who reads it finishes itself."""
    found = choose(tmp_path, layout())
    assert shown(found, "Ethernet2:tx") == {0, 3, 2}
    assert shown(found, "Ethernet2:rx") == {1, 0, 3}
    for port in range(1, 5):
        assert shown(found, f"Ethernet{port}:rx") == shown(found, f"Ethernet{port % 4 + 1}:tx")
    # Two neighbours, by rx, which is cheaper on most switches; it begins where the weights begin.
    assert words(found) == ["Ethernet1:rx", "Ethernet2:rx"]
    told = [pair.description for pair, _ in found.choice.placed]
    assert told == ["rx: what node 0 sends by NIC 0", "rx: what node 1 sends by NIC 0"]


def test_of_two_nodes_both_links_are_needed(tmp_path: Path) -> None:
    found = choose(tmp_path, layout(nodes=2))
    assert shown(found, "Ethernet1:rx") == {0} and shown(found, "Ethernet2:rx") == {1}
    assert words(found) == ["Ethernet1:rx", "Ethernet2:rx"]


def test_a_large_job_takes_no_more_of_the_stack(tmp_path: Path) -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 70)
    try:
        chosen = choose(tmp_path, layout(48, (10_000.0,), pp=24))
    finally:
        sys.setrecursionlimit(limit)
    assert chosen.choice.exact and len(chosen.choice.placed) == 48


def test_redundancy_counts_monitor_ports(tmp_path: Path) -> None:
    """Three links on one monitor port are one copy, however fast it is."""
    with refused_as(
        RING_UNCOVERED,
        kind=ConfigError,
        value="'dp channel 0'",
        ports="2 monitor ports",
        part=NO_CHUNK_SEEN(4),
    ):
        choose(tmp_path, layout(monitors=(800.0,)), redundancy=2)
    found = choose(tmp_path, layout(monitors=(100.0, 100.0, 100.0)), redundancy=2)
    assert len(found.choice.placed) == 3
    assert {where for _, where in found.choice.placed} == {0, 1, 2}


def test_two_sources_of_100_never_share_a_monitor_port_of_100(tmp_path: Path) -> None:
    with refused_as(
        PORTS_NEEDED,
        kind=ConfigError,
        sum="2 * 100",
        gbps=200.0,
        monitors=(MONITOR_ROOM("leaf Ethernet60", 100.0),),
    ):
        choose(tmp_path, layout(monitors=(100.0,)))
    found = choose(tmp_path, layout(monitors=(100.0, 100.0)))
    assert sorted(where for _, where in found.choice.placed) == [0, 1]
    with refused_as(
        PORTS_NEEDED,
        kind=ConfigError,
        gbps=200.0,
        monitors=like(TUNNEL_ROOM, gbps=200.0, inner=re.compile(r"^19\d\.\d$")),
    ):
        # A tunnel's header comes on top: two times 100 is more than 200 then.
        choose(
            tmp_path,
            layout(
                monitor=[{"switch": "leaf", "erspan": "src=10.0.0.1,dst=10.0.0.2", "gbps": 200}]
            ),
        )


def test_tunnels_do_not_meet_at_one_port_of_the_machine(tmp_path: Path) -> None:
    tunnels = [
        {"switch": "leaf", "erspan": f"src=10.0.0.{n},dst=10.0.1.1", "gbps": 400} for n in (1, 2)
    ]
    with refused_as(TUNNELS_MEET, kind=ConfigError, key="monitor[1].erspan"):
        choose(tmp_path, layout(monitor=tunnels))
    tunnels[1]["erspan"] = "src=10.0.0.2,dst=10.0.1.2"
    found = choose(tmp_path, layout(monitor=tunnels), redundancy=1, os="eos")
    assert "--erspan src=10.0.0.1,dst=10.0.1.1" in found.commands[0].render


def test_a_leaf_without_a_monitor_port_is_named_with_its_ring(tmp_path: Path) -> None:
    tree = layout()
    tree["cable"] = [
        {"nic": 0, "nodes": "0-1", "switch": "near", "ports": "p{1-2}", "gbps": 100},
        {"nic": 0, "nodes": "2-3", "switch": "far", "ports": "p{1-2}", "gbps": 100},
    ]
    tree["monitor"] = [{"switch": "near", "port": "m", "gbps": 400}]
    # Both nodes of one switch: their links are enough.
    assert words(choose(tmp_path, tree)) == ["p1:rx", "p2:rx"]
    tree["tp"], tree["gpus"] = 2, 2
    tree["cable"].append({"nic": 1, "gpus": [1], "switch": "other", "ports": "q{1-4}", "gbps": 100})
    with refused_as(
        RING_UNCOVERED,
        kind=ConfigError,
        value="'tp1 channel 0'",
        group="tp1",
        switches=("other",),
        monitors="none",
    ):
        choose(tmp_path, tree)


def test_all_copies_of_a_group_end_at_one_machine(tmp_path: Path) -> None:
    """A ring whose two channels are on two switches, with a monitor port for each machine."""
    tree = layout(gpus=2, channels=2)
    tree["cable"] = [
        {"nic": n, "gpus": [n], "switch": f"leaf{n}", "ports": "p{1-4}", "gbps": 100}
        for n in (0, 1)
    ]
    tree["monitor"] = [
        {"switch": f"leaf{n}", "port": "m", "gbps": 400, "machine": f"check{n}"} for n in (0, 1)
    ]
    with refused_as(RING_UNCOVERED, kind=ConfigError):
        choose(tmp_path, tree)
    for monitor in tree["monitor"]:
        monitor["machine"] = "check"
    assert len(choose(tmp_path, tree).choice.placed) == 4


def test_both_cables_of_a_nic_are_watched(tmp_path: Path) -> None:
    tree = layout(nodes=2, monitors=(400.0,))
    tree["cable"].append({"nic": 0, "switch": "leaf", "ports": "Ethernet{11-12}", "gbps": 100})
    found = choose(tmp_path, tree)
    assert words(found) == ["Ethernet1:rx", "Ethernet11:rx", "Ethernet2:rx", "Ethernet12:rx"]
    assert SEVERAL_CABLES() in found.notes


def test_a_tree_needs_both_directions_of_a_port(tmp_path: Path) -> None:
    found = choose(tmp_path, layout(algorithm="tree"))
    assert words(found) == ["Ethernet1:rx", "Ethernet1:tx"]
    found = choose(tmp_path, layout(algorithm="both"))
    assert words(found) == ["Ethernet1:rx", "Ethernet1:tx"]
    with refused_as(
        ALGORITHM_RANKS, kind=ConfigError, algorithm="trees", least=3, most=16, nodes=2
    ):
        choose(tmp_path, layout(nodes=2, algorithm="tree"))
    found = choose(tmp_path, layout(nodes=2, gpus=2, algorithm="tree"))
    assert words(found) == ["Ethernet1:rx", "Ethernet1:tx"]


@pytest.mark.parametrize("algorithm", ["tree", "both"])
def test_a_tree_over_several_nics_needs_all_ports_of_a_node(algorithm: str, tmp_path: Path) -> None:
    tree = {**eight_gpus(2), "algorithm": algorithm}
    found = choose(tmp_path, tree)
    assert sorted(words(found)) == sorted(f"p{n}-1:{way}" for n in range(8) for way in ("rx", "tx"))
    assert choose(tmp_path, {**eight_gpus(3, 2), "algorithm": "tree", "gpus": 4}).choice.placed
    with refused_as(ALGORITHM_NICS, kind=ConfigError, algorithm="trees", most=3, own=4):
        choose(tmp_path, {**eight_gpus(4, 2), "algorithm": "tree", "gpus": 4})


def eight_gpus(nodes: int, nics: int = 8, **more: object) -> dict[str, object]:
    """Nodes of eight GPUs, whose NIC n is cabled to a switch of its own."""
    tree = layout(nodes=nodes, gpus=8, algorithm="nvlstree", channels=16, **more)
    tree["cable"] = [
        {"nic": n, "switch": f"leaf{n}", "ports": f"p{n}-{{1-{nodes}}}", "gbps": 400}
        for n in range(nics)
    ]
    tree["monitor"] = [{"switch": f"leaf{n}", "port": "m", "gbps": 800} for n in range(nics)]
    return tree


@pytest.mark.parametrize("nodes", [2, 4])
def test_an_nvls_tree_needs_all_ports_of_a_node(tmp_path: Path, nodes: int) -> None:
    found = choose(tmp_path, eight_gpus(nodes))
    assert NVLS_TREES_MIRRORED() in found.notes
    assert sorted(words(found)) == sorted(f"p{n}-1:{way}" for n in range(8) for way in ("rx", "tx"))
    (port,) = {tuple(tap.pairs) for tap in found.coverage_problem.taps if tap.pairs[0].node == 1}
    assert len(port) == 16
    tree = eight_gpus(nodes)
    tree["monitor"] = tree["monitor"][:7]  # type: ignore[index]
    with refused_as(RING_UNCOVERED, kind=ConfigError):
        choose(tmp_path, tree)


def test_an_nvls_tree_is_of_several_gpus_a_node(tmp_path: Path) -> None:
    with refused_as(ALGORITHM_LEAST_GPUS, kind=ConfigError, least=2, own=1):
        choose(tmp_path, layout(nodes=4, algorithm="nvlstree"))


@pytest.mark.parametrize("nics", [8, 4, 1])
def test_each_port_carries_its_share_of_an_nvls_tree(tmp_path: Path, nics: int) -> None:
    """A gradient of 1 Gbit in a second. By hand: of two nodes each is the root of half of the
    channels: it sends half of the gradient down and half of it up, by all NICs together."""
    traffic = {"gradient_bytes": 125_000_000, "step_s": 1}
    carried = mean_gbps(choose(tmp_path, eight_gpus(2, nics, traffic=traffic)))
    assert len(carried) == 4 * nics
    for mean in carried.values():
        assert 1 / nics < mean < 1.03 / nics


def mean_gbps(found: MirrorPlan) -> dict[str, float]:
    """{port:direction: Gb/s} of every port, whether or not it was chosen."""
    every = dict.fromkeys(pair for tap in found.coverage_problem.taps for pair in tap.pairs)
    choice = msgspec.structs.replace(found.choice, placed=tuple((pair, 0) for pair in every))
    plugs = nic_cabling(found.topology, None)
    need = estimate_load(found.topology, found.rings, plugs, found.monitors, choice)
    return {f"{p.port}:{p.direction}": flow.mean_gbps or 0 for p, flow in need.pairs.items()}


@pytest.mark.parametrize(
    ("algorithm", "times"),
    [("ring", (1.5, 1.5, 1.5, 1.5)), ("tree", (1, 2, 2, 1)), ("both", (1.5, 2, 2, 1.5))],
)
def test_what_a_port_carries_is_by_the_algorithm(
    tmp_path: Path, algorithm: str, times: tuple[float, ...]
) -> None:
    """A gradient of 1 Gbit in a second. By hand: a ring of four sends 2 * 3/4 of it from each node.
    Of the trees (NCCL src/graph/trees.cc) the first links 1-2, 3-2 and 2-0, the second, its mirror,
    2-1, 0-1 and 1-3, each for half of the gradient in both directions."""
    traffic = {"gradient_bytes": 125_000_000, "step_s": 1}
    found = choose(tmp_path, layout(algorithm=algorithm, channels=2, traffic=traffic))
    carried = mean_gbps(found)
    for port, wanted in enumerate(times, 1):
        for direction in ("rx", "tx"):
            assert wanted < carried[f"Ethernet{port}:{direction}"] < wanted * 1.03


def test_sixteen_nodes_of_eight_rails(tmp_path: Path) -> None:
    """By hand: a ring per rail, two neighbours' rx each; a node sends 2 * 15/16 of its gradient of
    1.75 GB in 1.5 s = 17.5 Gb/s, as frames a little more, and 4 Gb/s of others."""
    found = make_mirror_plan(PortsRequest(file=SIXTEEN, os="eos"))
    assert found.choice.exact
    assert [(p.switch, p.port, str(p.direction)) for p, _ in found.choice.placed] == [
        (f"leaf{rail}", f"Ethernet{node}/1", "rx") for rail in range(8) for node in (1, 2)
    ]
    assert found.choice.machine_of_group == {f"tp{n}": f"check{n // 4}" for n in range(8)}
    for flow in found.need.pairs.values():
        assert flow.mean_gbps is not None
        assert 17.5 < flow.mean_gbps - 4 < 17.5 * 1.02
    for flow in found.need.monitors.values():
        assert flow.line_gbps == 200
    memory = {part.what: part.bytes for part in found.need.memory["check0"]}
    assert memory["parameters"] == 4 * 4 * 437_500_000
    # Adam's two moments; a counter of each tensor comes on top.
    assert 0 <= memory["optimizer states"] - 2 * memory["parameters"] < 10_000
    assert found.order_assumed and "assumed" in json.dumps(as_dict(found))


def test_chosen_ports_cover_by_the_analysis_own_account() -> None:
    """`analyze` tells of mirrored links what they lack: of the chosen nothing, of one less exactly
    the chunk that only the left out one carries."""
    found = make_mirror_plan(PortsRequest(file=SIXTEEN))
    for ring in found.rings:
        shape = AllReduceShape(
            bytes=25 << 20,
            element_bytes=4,
            extra_sends=0,
            ranks=16,
            channels=2,
            protocol=Protocol.SIMPLE,
            nccl_era=NcclEra.V2_20,
        )
        senders = [
            link.sender
            for pair in found.pairs_on(ring)
            for link in ring.links
            if (link.out_of, link.nic_out) == (pair.node, pair.nic)
        ]
        assert coverage_of(shape, senders).missing_chunks == ()
        for left in senders:
            (only,) = [one for one in senders if one != left]
            assert coverage_of(shape, [only]).missing_chunks == ((only + 1) % 16,)


def test_a_recorded_capture_lacks_what_is_said_of_one_port_less(tmp_path: Path) -> None:
    """Of four ranks the lab recorded what ports 0 and 1 receive: all is there; in the frames of one
    of them alone the chunk is missing that its tap does not show."""
    found = choose(tmp_path, layout())
    tape = read_capture_files([DATA.parent / "four-ranks-ll128.pcapng"])
    whole = read_stream(tape.flows, tape.messages)
    (ring,) = [one for one in summarize_communicators(whole) if one.ring]
    assert ring.coverage is not None and ring.coverage.missing_chunks == ()
    receiver = {link.destinations[0]: link.receiver for link in ring.links}
    assert sorted(receiver.values()) == [0, 1]
    for host, index in receiver.items():
        flows = [one for one in tape.flows if one.key.destination == host]
        messages = [one for one in tape.messages if one.flow.destination == host]
        (alone,) = [
            one for one in summarize_communicators(read_stream(flows, messages)) if one.ring
        ]
        assert alone.coverage is not None
        assert set(alone.coverage.missing_chunks) == set(range(4)) - shown(
            found, f"Ethernet{index + 1}:tx"
        )


def test_a_job_file_tells_the_memory(tmp_path: Path) -> None:
    """What `flowcheck plan` says of it."""
    (tmp_path / "net.py").write_text(
        "import torch\ndef make(): return torch.nn.Linear(1000, 1000)\n"
    )
    job = tmp_path / "job.toml"
    job.write_text(
        f"""source = [{{ file = "none.pcap" }}]
optimizer = {{ name = "adamw", learning_rate = 1e-3 }}
model = {{ factory = "{tmp_path / "net.py"}:make" }}
"""
    )
    found = choose(tmp_path, layout(replica={"job": str(job)}))
    parts = {part.what: part.bytes for part in found.need.memory["flowcheck"]}
    assert parts["parameters"] == 4 * 1_001_000
    with refused_as(PARAMETERS_OR_JOB, kind=ConfigError):
        choose(tmp_path, layout(replica={"job": str(job), "parameters": 1}))
