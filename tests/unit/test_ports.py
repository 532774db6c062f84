"""Which ports to mirror: golden choices by hand, what is refused and why, what is said of it."""

from __future__ import annotations

import copy
import json
import re
import shlex
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from flowcheck.cli.main import app
from flowcheck.errors import ConfigError
from flowcheck.ops import ports
from flowcheck.ops.analysis.communicators import communicators_of
from flowcheck.ops.analysis.coverage import Shape, coverage_of
from flowcheck.ops.ports.chosen import Asked, Chosen, chosen_by
from flowcheck.ops.ports.drawing import svg_of
from flowcheck.ops.ports.table import as_dict, printed
from flowcheck.plane.tape import read_tape
from flowcheck.wire.learn import read_stream
from flowcheck.wire.terms import Protocol, Rule

DATA = Path(__file__).resolve().parents[1] / "data" / "ports"
SIXTEEN = DATA / "sixteen-nodes.toml"
Tree = dict[str, Any]


def layout(nodes: int = 4, monitors: tuple[float, ...] = (200.0,), **more: object) -> Tree:
    """A GPU and a NIC a node, all on one switch."""
    return {
        "nodes": nodes,
        "gpus": 1,
        "cable": [{"nic": 0, "switch": "leaf", "ports": f"Ethernet{{1-{nodes}}}", "gbps": 100}],
        "monitor": [
            {"switch": "leaf", "port": f"Ethernet{60 + n}", "gbps": gbps}
            for n, gbps in enumerate(monitors)
        ],
        **more,
    }


def toml(value: object) -> str:
    """JSON's words are TOML's, but for tables inside lists."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def choose(folder: Path, tree: Tree, **asked: Any) -> Chosen:
    file = folder / "layout.toml"
    file.write_text("\n".join(f"{key} = {toml(value)}" for key, value in tree.items()))
    return chosen_by(Asked(file=file, **asked))


def words(chosen: Chosen) -> list[str]:
    return [f"{pair.port}:{pair.direction}" for pair, _ in chosen.choice.placed]


def shown(chosen: Chosen, port: str) -> set[int]:
    """Chunks of the first ring that pass a port:direction."""
    want = chosen.sought.wants[0]
    tap = next(
        tap
        for tap in chosen.sought.taps
        if any(f"{pair.port}:{pair.direction}" == port for pair in tap.pairs)
    )
    bits = tap.shows[want.name]
    return {c for n, some in enumerate(want.chunks) if bits >> n & 1 for c in some}


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
    told = [pair.told for pair, _ in found.choice.placed]
    assert told == ["rx: what node 0 sends by NIC 0", "rx: what node 1 sends by NIC 0"]


def test_of_two_nodes_both_links_are_needed(tmp_path: Path) -> None:
    found = choose(tmp_path, layout(nodes=2))
    assert shown(found, "Ethernet1:rx") == {0} and shown(found, "Ethernet2:rx") == {1}
    assert words(found) == ["Ethernet1:rx", "Ethernet2:rx"]


def test_redundancy_counts_monitor_ports(tmp_path: Path) -> None:
    """Three links on one monitor port are one copy, however fast it is."""
    with pytest.raises(ConfigError, match=r"dp channel 0.*cannot be seen on 2 monitor ports"):
        choose(tmp_path, layout(monitors=(800.0,)), redundancy=2)
    found = choose(tmp_path, layout(monitors=(100.0, 100.0, 100.0)), redundancy=2)
    assert len(found.choice.placed) == 3
    assert {where for _, where in found.choice.placed} == {0, 1, 2}


def test_two_sources_of_100_never_share_a_monitor_port_of_100(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"2 \* 100 = 200 Gb/s; the monitor.*Ethernet60 100:"):
        choose(tmp_path, layout(monitors=(100.0,)))
    found = choose(tmp_path, layout(monitors=(100.0, 100.0)))
    assert sorted(where for _, where in found.choice.placed) == [0, 1]
    with pytest.raises(ConfigError, match=r"200 Gb/s;.*200 \(19\d\.\d without the tunnel"):
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
    with pytest.raises(ConfigError, match=r"monitor.1..erspan.*share its port"):
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
    with pytest.raises(ConfigError, match=r"tp1 channel 0.*links end at other; monitors.*none"):
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
    with pytest.raises(ConfigError, match="cannot be covered at one machine"):
        choose(tmp_path, tree)
    for monitor in tree["monitor"]:
        monitor["machine"] = "check"
    assert len(choose(tmp_path, tree).choice.placed) == 4


def test_both_cables_of_a_nic_are_watched(tmp_path: Path) -> None:
    tree = layout(nodes=2, monitors=(400.0,))
    tree["cable"].append({"nic": 0, "switch": "leaf", "ports": "Ethernet{11-12}", "gbps": 100})
    found = choose(tmp_path, tree)
    assert words(found) == ["Ethernet1:rx", "Ethernet11:rx", "Ethernet2:rx", "Ethernet12:rx"]
    assert any("all of its ports" in note for note in found.notes)


def test_a_tree_needs_both_directions_of_a_port(tmp_path: Path) -> None:
    found = choose(tmp_path, layout(algorithm="tree"))
    assert words(found) == ["Ethernet1:rx", "Ethernet1:tx"]
    found = choose(tmp_path, layout(algorithm="both"))
    assert words(found) == ["Ethernet1:rx", "Ethernet1:tx"]
    with pytest.raises(ConfigError, match="trees are followed of 3 to 16 ranks"):
        choose(tmp_path, layout(nodes=2, algorithm="tree"))


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"algorithm": "nvls"}, "NVLink SHARP"),
        ({"algorithm": "collnet"}, "the switch itself sums"),
        ({"ep": 2}, "experts' gradients go by rings of their own"),
        ({"gpus": 8, "nodes": 1, "cable": None}, "cross no switch"),
        ({"pp": 4}, "one rank"),
        ({"tp": 3}, "does not divide"),
        ({"order": "tp-dp"}, "names each of"),
        ({"channels": 65}, "is 1 to 64"),
        ({"nodes": 4097}, "4,096 ranks"),
        ({"nodes": 0}, "must be 1 or more"),
        ({"nccl": "3.0"}, 'state it as "2.21"'),
        ({"monitor": [{"switch": "nowhere", "port": "m", "gbps": 1}]}, "no cable ends there"),
        ({"monitor": [{"switch": "leaf", "gbps": 1}]}, "state it, or erspan"),
        (
            {"monitor": [{"switch": "leaf", "port": "Ethernet1", "gbps": 1}]},
            "is plugged into NIC 0",
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
        chosen_by(Asked(file=file))


@pytest.mark.parametrize(
    "ports", ["p{1-9999}", "p{4-1}", "p{1-4:0}", "p{1-2}{1-2}", "p{1-3}", ["a", "b", "c", "a"]]
)
def test_a_range_of_ports_that_is_none_is_refused(tmp_path: Path, ports: object) -> None:
    tree = layout()
    tree["cable"][0]["ports"] = ports
    with pytest.raises(ConfigError, match=r"cable.0..ports"):
        choose(tmp_path, tree)


def test_sixteen_nodes_of_eight_rails(tmp_path: Path) -> None:
    """By hand: a ring per rail, two neighbours' rx each; a node sends 2 * 15/16 of its gradient of
    1.75 GB in 1.5 s = 17.5 Gb/s, as frames a little more, and 4 Gb/s of others."""
    found = chosen_by(Asked(file=SIXTEEN, os="eos"))
    assert found.choice.exact
    assert [(p.switch, p.port, str(p.direction)) for p, _ in found.choice.placed] == [
        (f"leaf{rail}", f"Ethernet{node}/1", "rx") for rail in range(8) for node in (1, 2)
    ]
    assert found.choice.home == {f"tp{n}": f"check{n // 4}" for n in range(8)}
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
    found = chosen_by(Asked(file=SIXTEEN))
    for ring in found.rings:
        shape = Shape(
            bytes=25 << 20,
            element_bytes=4,
            extra_sends=0,
            ranks=16,
            channels=2,
            protocol=Protocol.SIMPLE,
            rule=Rule.V2_20,
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


def test_command_lines_are_those_that_switch_render_takes(tmp_path: Path) -> None:
    found = chosen_by(Asked(file=SIXTEEN, os="eos"))
    assert len(found.commands) == 8
    for command in found.commands:
        done = CliRunner().invoke(app, shlex.split(command.render)[1:])
        assert done.exit_code == 0, done.output
        assert "monitor session flowcheck source Ethernet1/1 rx" in done.stdout


def test_a_recorded_capture_lacks_what_is_said_of_one_port_less(tmp_path: Path) -> None:
    """Of four ranks the lab recorded what ports 0 and 1 receive: all is there; in the frames of one
    of them alone the chunk is missing that its tap does not show."""
    found = choose(tmp_path, layout())
    tape = read_tape([DATA.parent / "four-ranks-ll128.pcapng"])
    whole = read_stream(tape.flows, tape.messages)
    (ring,) = [one for one in communicators_of(whole) if one.ring]
    assert ring.coverage is not None and ring.coverage.missing_chunks == ()
    receiver = {link.destinations[0]: link.receiver for link in ring.links}
    assert sorted(receiver.values()) == [0, 1]
    for host, index in receiver.items():
        flows = [one for one in tape.flows if one.key.destination == host]
        messages = [one for one in tape.messages if one.flow.destination == host]
        (alone,) = [one for one in communicators_of(read_stream(flows, messages)) if one.ring]
        assert alone.coverage is not None
        assert set(alone.coverage.missing_chunks) == set(range(4)) - shown(
            found, f"Ethernet{index + 1}:tx"
        )


def test_a_system_that_is_told_directly_has_its_apply(tmp_path: Path) -> None:
    tree = layout(switch=[{"name": "leaf", "os": "openvswitch", "bridge": "br0"}])
    (command,) = choose(tmp_path, tree).commands
    assert command.apply is not None
    words = shlex.split(command.apply)
    assert words[:3] == ["flowcheck", "switch", "apply"]
    assert words[3:] == shlex.split(command.render)[3:]
    assert words[-2:] == ["--bridge", "br0"]
    tree["switch"] = [{"name": "leaf", "os": "sonic"}]
    assert choose(tmp_path, tree).commands[0].apply is None
    tree["switch"][0]["host"] = "admin@leaf"
    assert str(choose(tmp_path, tree).commands[0].apply).endswith("--host admin@leaf")


def test_switch_check_takes_the_means_that_were_told(tmp_path: Path) -> None:
    """Line rates of two times 100 are too much for 100; the mean of 43.5 is not, which is a
    warning."""
    told = tmp_path / "ports.json"
    told.write_text(json.dumps(as_dict(chosen_by(Asked(file=SIXTEEN)))))
    words = [
        "switch",
        "check",
        "--os",
        "eos",
        "--source",
        "Ethernet1/1",
        "--monitor",
        "Ethernet33/1",
    ]
    words += ["--source", "Ethernet2/1", "--source-gbps", "100", "--monitor-gbps", "100"]
    assert CliRunner().invoke(app, words).exit_code == 1
    done = CliRunner().invoke(app, [*words, "--ports-json", str(told)])
    assert done.exit_code == 0
    assert "2 * (21.76 by ports.json) = 43.5" in done.stdout
    for wrong, text in (("is not what", "{}"), ("is not among", '{"pairs": []}')):
        told.write_text(text)
        with pytest.raises(ConfigError, match=wrong):
            app([*words, "--ports-json", str(told)], standalone_mode=False)


def test_a_system_that_numbers_its_sessions_is_given_the_number(tmp_path: Path) -> None:
    tree = layout()
    tree["cable"][0]["ports"] = "ethernet1/{1-4}"
    tree["monitor"][0]["port"] = "ethernet1/32"
    with pytest.raises(ConfigError, match=r"monitor.0..session.*numbers its sessions"):
        choose(tmp_path, tree, os="nxos")
    tree["monitor"][0]["session"] = 7
    found = choose(tmp_path, tree, os="nxos")
    assert found.commands[0].render.endswith("--session 7")


def test_sonic_s_one_direction_a_monitor_port_is_kept(tmp_path: Path) -> None:
    """Where only one of two nodes has a monitor beside its port, both directions of it are taken:
    one word, `both`, in one session, or a word each in two."""
    tree = layout(nodes=2, monitors=(400.0,))
    tree["cable"] = [
        {"nic": 0, "nodes": "0", "switch": "leaf", "ports": "Ethernet0", "gbps": 100},
        {"nic": 0, "nodes": "1", "switch": "far", "ports": "Ethernet0", "gbps": 100},
    ]
    assert words(choose(tmp_path, tree)) == ["Ethernet0:rx", "Ethernet0:tx"]
    assert "--source Ethernet0:both" in choose(tmp_path, tree, os="sonic").commands[0].render
    tree["monitor"][0]["gbps"] = 100
    tree["monitor"].append({"switch": "leaf", "port": "Ethernet64", "gbps": 100})
    found = choose(tmp_path, tree, os="sonic")
    assert {where for _, where in found.choice.placed} == {0, 1}


def test_cumulus_takes_two_numbers_for_two_directions(tmp_path: Path) -> None:
    tree = layout(nodes=2)
    tree["cable"] = [
        {"nic": 0, "nodes": "0", "switch": "leaf", "ports": "swp1", "gbps": 100},
        {"nic": 0, "nodes": "1", "switch": "far", "ports": "swp1", "gbps": 100},
    ]
    tree["monitor"] = [{"switch": "leaf", "port": "swp32", "gbps": 200, "session": 7}]
    with pytest.raises(ConfigError, match=r"takes 7 and 8; NVIDIA Cumulus .* has 0 to 7"):
        choose(tmp_path, tree, os="cumulus")
    tree["monitor"][0]["session"] = 6
    assert "swp1:both" in choose(tmp_path, tree, os="cumulus").commands[0].render
    # The next number is that of the other session: its directions go to two monitors, or none.
    tree["monitor"].append({"switch": "leaf", "port": "swp31", "gbps": 50, "session": 7})
    assert "swp1:both" in choose(tmp_path, tree, os="cumulus").commands[0].render


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
    with pytest.raises(ConfigError, match="state it, or job"):
        choose(tmp_path, layout(replica={"job": str(job), "parameters": 1}))


def test_names_that_are_hostile_stay_names(tmp_path: Path) -> None:
    evil = '</text><script>alert(1)</script>\x1b[2J[bold]&"'
    tree = layout()
    tree["cable"][0]["switch"] = tree["monitor"][0]["switch"] = evil
    tree["monitor"][0]["machine"] = evil
    found = choose(tmp_path, tree)
    root = ElementTree.fromstring(svg_of(found))
    assert not [one for one in root.iter() if one.tag.endswith("script")]
    assert "\x1b" not in svg_of(found)
    with pytest.raises(ConfigError, match="--source"):
        bad = copy.deepcopy(tree)
        bad["cable"][0]["ports"] = [f"Ethernet{n}; reload" for n in range(4)]
        choose(tmp_path, bad, os="eos")


def test_a_terminal_gets_no_escape_of_a_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = layout()
    tree["cable"][0]["switch"] = tree["monitor"][0]["switch"] = "\x1b[2J[red]leaf"
    monkeypatch.setenv("COLUMNS", "200")
    printed(choose(tmp_path, tree))
    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert "[red]leaf" in told


def test_the_picture_tells_by_shape_and_word(tmp_path: Path) -> None:
    tree = layout(nodes=2, monitors=(400.0,))
    tree["cable"] = [
        {"nic": 0, "nodes": "0", "switch": "leaf", "ports": "p1", "gbps": 100},
        {"nic": 0, "nodes": "1", "switch": "far", "ports": "p2", "gbps": 100},
    ]
    root = ElementTree.fromstring(svg_of(choose(tmp_path, tree)))
    shapes = [one.get("class") for one in root.iter() if one.tag.endswith("polygon")]
    assert sorted(filter(None, shapes)) == ["port rx", "port tx"]
    texts = [one.text or "" for one in root.iter() if one.tag.endswith("text")]
    assert "rx" in texts and "tx" in texts
    assert any("leaf p1:rx (rx: what node 0 sends by NIC 0)" in text for text in texts)
    nodes = [one for one in root.iter() if "node" in (one.get("class") or "").split()]
    assert len(nodes) == 2 and all("assumed" in (n.get("class") or "") for n in nodes)


def test_the_verb_prints_a_table_json_and_a_picture(tmp_path: Path) -> None:
    svg = tmp_path / "ports.svg"
    done = CliRunner().invoke(app, ["ports", str(SIXTEEN), "--json", "--svg", str(svg)])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["least"], told["exact"], len(told["pairs"])) == (16, True, 16)
    assert all(ring["assumed"] for ring in told["rings"]) and told["assumed"]
    root = ElementTree.parse(svg).getroot()
    left, _, wide, _ = map(float, root.attrib["viewBox"].split())
    circles = [one for one in root.iter() if one.tag.endswith("circle")]
    assert len(circles) == 16 * (len(circles) // 16) > 0
    for one in circles:
        middle, radius = float(one.attrib["cx"]), float(one.attrib["r"])
        assert left + 2 < middle - radius < middle + radius < wide - 2
    done = CliRunner().invoke(app, ["ports", str(SIXTEEN), "--os", "eos"], env={"COLUMNS": "200"})
    assert "No choice has fewer." in done.stdout and "rx: what node 1 sends by NIC 7" in done.stdout


def test_the_page_shows_the_example_and_what_is_printed_of_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    page = (Path(ports.__file__).parent / "README.md").read_text()
    (layout_of_it,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert layout_of_it == SIXTEEN.read_text()
    (table,) = re.findall(r"```text\n(.*?)\n \.\.\.\n```", page, re.DOTALL)
    printed(chosen_by(Asked(file=SIXTEEN)))
    told = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())
    assert table in told
