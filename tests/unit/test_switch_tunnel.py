"""Tunnels: a port of our own that nobody else's is taken for, and words no switch may be told."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.refused_as import Wanted, like, refused_as

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_mirror_sessions import (
    BROADCAST,
    LOOPBACK,
    MULTICAST,
    NOT_ONE_MACHINE,
    RESERVED,
    SAME_ENDS,
    THIS_NETWORK,
    TUNNEL_NUMBER,
)
from flowcheck.findings.finding import Entry
from flowcheck.ops.switch import mirror_session_options, session_rules, switch_platforms
from flowcheck.ops.switch.config_rendering import CommandPart, paste_order
from tests.unit.test_cli import flowcheck, refused
from tests.unit.test_switch_render import bare, port, words

SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")
PROGRAMS = ("ovsdb-tool", "ovsdb-server", "ovs-vsctl")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Callable[[str], tuple[int, str]]]:
    """Commands beside a database of Open vSwitch that has br0 with eth1; no daemon, no devices."""
    if not (SCHEMA.exists() and all(map(shutil.which, PROGRAMS))):
        pytest.skip("no openvswitch-switch here")
    database = f"--db=unix:{tmp_path}/s --no-wait"

    def run(text: str) -> tuple[int, str]:
        text = text.replace("--timeout=10", "--timeout=1").replace("vsctl ", f"vsctl {database} ")
        done = subprocess.run(
            ["bash", "-c", text], check=False, capture_output=True, text=True, timeout=60
        )
        return done.returncode, done.stdout

    subprocess.run(["ovsdb-tool", "create", tmp_path / "db", SCHEMA], check=True)
    command = ["ovsdb-server", f"--remote=punix:{tmp_path}/s", f"--unixctl={tmp_path}/c"]
    with subprocess.Popen([*command, tmp_path / "db"], stderr=subprocess.DEVNULL) as server:
        try:
            assert run("ovs-vsctl --timeout=9 --retry init")[0] == 0
            assert run("ovs-vsctl add-br br0 -- add-port br0 eth1")[0] == 0
            yield run
        finally:
            server.terminate()


def test_somebodys_port_of_that_name_is_seen_first_and_neither_taken_nor_deleted(
    shell: Callable[[str], tuple[int, str]],
) -> None:
    part = {
        one: bare("openvswitch", "--source", "eth1", "--part", one, erspan=True)
        for one in CommandPart
    }
    assert shell(part[CommandPart.LOOK]) == (0, "")
    shell("ovs-vsctl add-port br0 fc-es5")
    assert "fc-es5" in shell(part[CommandPart.LOOK])[1]
    assert shell(part[CommandPart.SETUP])[0] == 1
    assert shell("ovs-vsctl list mirror")[1] == ""
    assert shell(part[CommandPart.REMOVE])[0] != 0
    assert shell("ovs-vsctl list-ports br0")[1].split() == ["eth1", "fc-es5"]
    shell("ovs-vsctl del-port fc-es5")
    assert shell(part[CommandPart.SETUP])[0] == 0
    output = shell("ovs-vsctl get mirror flowcheck output_port")[1]
    assert output == shell("ovs-vsctl get port fc-es5 _uuid")[1]
    assert shell(part[CommandPart.REMOVE])[0] == 0
    assert shell("ovs-vsctl list mirror; ovs-vsctl list-ports br0") == (0, "eth1\n")


def test_behind_a_command_of_tcs_tunnel_that_fails_nothing_is_done() -> None:
    out = bare("tc", "--source", "eth1:both", "--part", "setup", erspan=True)
    chain = out[out.index("ip link add") :]
    # Programs that do nothing, but for the first: a device of that name is there.
    fakes = 'ip() { [ "$2" != add ]; }; tc() { echo copied; }\n'
    done = subprocess.run(
        ["bash", "-c", fakes + chain], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (1, "")
    done = subprocess.run(
        ["bash", "-c", fakes.replace("!=", "=") + chain.replace("ip link set", "true")],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "copied\ncopied\n")


@pytest.mark.parametrize(
    ("given", "order"),
    [
        ("remove save", "remove save"),
        ("save setup", "look setup save"),
        ("save check", "check save"),
        ("remove save check setup", "look setup check save remove save"),
    ],
)
def test_what_is_saved_is_what_was_changed_before(given: str, order: str) -> None:
    assert [part.value for part in paste_order(map(CommandPart, given.split()))] == order.split()
    parts = [word for part in given.split() for word in ("--part", part)]
    out = flowcheck("switch", "render", *words("eos"), "--source", port("eos", 1), *parts)[1]
    assert out.splitlines()[-1] == "copy running-config startup-config"


def no_machine(key: str, why: Entry) -> Wanted:
    return like(NOT_ONE_MACHINE, key=key, kind=why)


@pytest.mark.parametrize(
    ("erspan", "wanted"),
    [
        ("src=127.0.0.1,dst=10.0.0.2", no_machine("src", LOOPBACK)),
        ("src=0.0.0.0,dst=10.0.0.2", no_machine("src", THIS_NETWORK)),
        ("src=10.0.0.1,dst=224.0.0.1", no_machine("dst", MULTICAST)),
        ("src=10.0.0.1,dst=255.255.255.255", no_machine("dst", BROADCAST)),
        ("src=10.0.0.1,dst=250.0.0.1", no_machine("dst", RESERVED)),
        ("src=10.0.0.1,dst=10.0.0.1", SAME_ENDS),
        ("src=10.0.0.1,dst=10.0.0.2,id=0", like(TUNNEL_NUMBER, key="id", least=1)),
        ("src=10.0.0.1,dst=10.0.0.2,ttl=0", like(TUNNEL_NUMBER, key="ttl", least=1)),
    ],
)
def test_an_address_no_machine_has_is_refused(erspan: str, wanted: Wanted) -> None:
    with refused_as(wanted, kind=ConfigError):
        mirror_session_options.parse_tunnel(erspan)


def test_words_the_switch_is_not_told_are_named() -> None:
    given = ["--os", "junos", "--source", port("junos", 1), "--erspan"]
    _, _, err = flowcheck("switch", "render", *given, "src=10.0.0.1,dst=10.0.0.2,ttl=9")
    assert "Not said to the switch, no word for it is known here: src=10.0.0.1, ttl=9." in err


def test_the_one_origin_address_of_a_whole_switch_is_looked_at_before_it_is_set() -> None:
    given = ("--source", port("nxos", 1), *words("nxos", erspan=True))
    _, out, err = flowcheck("switch", "render", *given)
    assert 'include "monitor erspan origin"' in out.partition("configure terminal")[0]
    assert "or this very address" in " ".join(err.split())
    assert "origin" not in bare(
        "nxos", "--source", port("nxos", 1), "--part", "remove", erspan=True
    )


@pytest.mark.parametrize(("os", "most"), [("nxos", 32), ("comware", 15), ("onyx", 7), ("rgos", 64)])
def test_a_number_no_switch_has_is_refused(os: str, most: int) -> None:
    platform = switch_platforms.platform_named(os)
    for number in (1, most):
        request = mirror_session_options.parse_session(
            platform, [port(os, 1)], monitor=port(os, 32), session=str(number)
        )
        assert session_rules.platform_sessions(platform, request)
    for number in (0, most + 1):
        given = ("--source", port(os, 1), "--monitor", port(os, 32), "--session", str(number))
        assert f"takes {number}" in refused("switch", "render", "--os", os, *given)
