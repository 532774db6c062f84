"""The chosen ports as words for `flowcheck switch`, by what each system can."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from support.port_layouts import SIXTEEN, choose, layout, words
from support.refused_as import refused_as
from typer.testing import CliRunner

from flowcheck.cli.main import app
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.mirror_session_rules import NUMBER_OUT_OF_RANGE
from flowcheck.findings.catalog.refused_layouts import SESSION_NUMBER
from flowcheck.findings.catalog.refused_mirror_sessions import (
    MONITOR_BESIDE_ERSPAN,
    MONITOR_WITH_ERSPAN,
    NOT_PORTS_JSON,
    PORT_NOT_IN_FILE,
)
from flowcheck.ops.mirror_ports.mirror_plan import PortsRequest, make_mirror_plan
from flowcheck.ops.mirror_ports.ports_report import as_dict


def test_command_lines_are_those_that_switch_render_takes(tmp_path: Path) -> None:
    found = make_mirror_plan(PortsRequest(file=SIXTEEN, os="eos"))
    assert len(found.commands) == 8
    for command in found.commands:
        done = CliRunner().invoke(app, shlex.split(command.render)[1:])
        assert done.exit_code == 0, done.output
        assert "monitor session flowcheck source Ethernet1/1 rx" in done.stdout


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
    told.write_text(json.dumps(as_dict(make_mirror_plan(PortsRequest(file=SIXTEEN)))))
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
    for wrong, text in (
        (NOT_PORTS_JSON, "{}"),
        (PORT_NOT_IN_FILE, '{"pairs": []}'),
    ):
        told.write_text(text)
        with refused_as(wrong, kind=ConfigError):
            app([*words, "--ports-json", str(told)], standalone_mode=False)


def test_a_system_that_numbers_its_sessions_is_given_the_number(tmp_path: Path) -> None:
    tree = layout()
    tree["cable"][0]["ports"] = "ethernet1/{1-4}"
    tree["monitor"][0]["port"] = "ethernet1/32"
    with refused_as(SESSION_NUMBER, kind=ConfigError, key="monitor[0].session"):
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
    with refused_as(
        NUMBER_OUT_OF_RANGE,
        kind=ConfigError,
        numbers=(7, 8),
        platform=re.compile("^NVIDIA Cumulus"),
        least=0,
        most=7,
    ):
        choose(tmp_path, tree, os="cumulus")
    tree["monitor"][0]["session"] = 6
    assert "swp1:both" in choose(tmp_path, tree, os="cumulus").commands[0].render
    # The next number is that of the other session: its directions go to two monitors, or none.
    tree["monitor"].append({"switch": "leaf", "port": "swp31", "gbps": 50, "session": 7})
    assert "swp1:both" in choose(tmp_path, tree, os="cumulus").commands[0].render


def test_a_tunnel_that_names_the_port_it_leaves_by_is_stated_with_it(tmp_path: Path) -> None:
    """H3C Comware; elsewhere the route decides."""
    tree = layout(nodes=2)
    tree["cable"][0]["ports"] = "HundredGigE1/0/{1-2}"
    tree["monitor"] = [
        {"switch": "leaf", "erspan": "src=10.0.0.1,dst=10.0.0.2", "gbps": 400, "session": 1}
    ]
    with refused_as(MONITOR_WITH_ERSPAN, kind=ConfigError):
        choose(tmp_path, tree, os="comware")
    tree["monitor"][0]["port"] = "HundredGigE1/0/32"
    (command,) = choose(tmp_path, tree, os="comware").commands
    assert command.monitor == "erspan src=10.0.0.1,dst=10.0.0.2"
    done = CliRunner().invoke(app, shlex.split(command.render)[1:])
    assert "monitor-port HundredGigE1/0/32 destination-ip 10.0.0.2" in done.stdout
    with refused_as(MONITOR_BESIDE_ERSPAN, kind=ConfigError):
        tree["cable"][0]["ports"], tree["monitor"][0]["port"] = "swp{1-2}", "swp32"
        choose(tmp_path, tree, os="cumulus")
