"""What an operator who stated a layout wrongly is told: by the file's names, and the way on."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.port_layouts import Tree, choose, layout
from support.refused_as import like, refused_as

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_layouts import (
    ADD_MONITORS,
    ADD_MONITORS_BESIDE,
    LESS_REDUNDANCY,
    MONITORS_AT,
    NO_CABLE_ENDS_THERE,
    NO_CHUNK_SEEN,
    RING_UNCOVERED,
    SESSION_TWICE,
)
from flowcheck.findings.catalog.refused_settings import ONE_OF
from flowcheck.ops.mirror_ports.ports_report import print_mirror_plan
from flowcheck.ops.mirror_ports.search import branch_and_bound
from flowcheck.ops.mirror_ports.search.branch_and_bound import SEARCH_LIMIT_S, SearchTimer


def two_leaves(**more: object) -> Tree:
    """Two GPUs a node, each by its own leaf, in one group: rings of channel 1 end at blue."""
    cables = [
        {"nic": 0, "gpus": [0], "switch": "red", "ports": "Ethernet{1-4}", "gbps": 100},
        {"nic": 1, "gpus": [1], "switch": "blue", "ports": "Ethernet{1-4}", "gbps": 100},
    ]
    monitors = [
        {"switch": "red", "port": "Ethernet60", "gbps": 400, "machine": "m0"},
        {"switch": "blue", "port": "Ethernet60", "gbps": 400, "machine": "m1"},
    ]
    return layout(gpus=2, channels=2) | {"cable": cables, "monitor": monitors} | more


@pytest.mark.parametrize(
    ("os", "ports", "one", "other"),
    [("nxos", "ethernet1/", 7, "07"), ("eos", "Ethernet", "watch", "watch")],
)
def test_two_monitors_of_one_session_are_named_before_any_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, os: str, ports: str, one: object, other: object
) -> None:
    def never(*_: object) -> None:
        pytest.fail("it searched")

    monkeypatch.setattr(branch_and_bound.PortSearch, "run", never)
    tree = layout(monitors=(200.0, 200.0), switch=[{"name": "leaf", "os": os}])
    tree["cable"][0]["ports"] = ports + "{1-4}"
    for monitor, session, port in zip(tree["monitor"], (one, other), (60, 61), strict=True):
        monitor |= {"port": f"{ports}{port}", "session": session}
    with refused_as(
        SESSION_TWICE,
        kind=ConfigError,
        key="monitor[1].session",
        value=repr(other),
        other=0,
        monitor=f"leaf {ports}60",
        port=f"{ports}61",
    ):
        choose(tmp_path, tree)


def test_a_name_of_switch_tables_that_no_cable_has_is_refused(tmp_path: Path) -> None:
    tree = layout(switch=[{"name": "laef", "os": "eos"}])
    with refused_as(
        NO_CABLE_ENDS_THERE, kind=ConfigError, switches=("leaf",), key="switch.name", value="'laef'"
    ):
        choose(tmp_path, tree)


def test_a_switch_of_no_stated_system_is_named_where_its_commands_would_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = two_leaves(switch=[{"name": "red", "os": "eos"}])
    for monitor in tree["monitor"]:
        monitor["machine"] = "m0"
    print_mirror_plan(choose(tmp_path, tree))
    told = capsys.readouterr().out
    assert "red (eos), copies to" in told
    assert "\nblue: no commands for it" in told
    print_mirror_plan(choose(tmp_path, tree, os="eos"))
    assert "no commands" not in capsys.readouterr().out


def test_a_group_over_two_leaves_is_told_which_monitor_one_machine_lacks(tmp_path: Path) -> None:
    tree = two_leaves()
    with refused_as(
        RING_UNCOVERED,
        kind=ConfigError,
        machine="m0",
        seen=1,
        rings=2,
        part=NO_CHUNK_SEEN(8),
        switches=("blue",),
        add=(ADD_MONITORS(count=1, switch="blue"),),
    ):
        choose(tmp_path, tree)
    tree["monitor"].append({"switch": "blue", "port": "Ethernet61", "gbps": 400, "machine": "m0"})
    assert set(choose(tmp_path, tree).choice.machine_of_group.values()) == {"m0"}


def test_a_redundancy_that_is_too_high_names_the_highest_and_what_it_lacks(tmp_path: Path) -> None:
    tree = layout(monitors=(400.0, 400.0))
    with refused_as(
        LESS_REDUNDANCY,
        kind=ConfigError,
        redundancy=2,
        uncovered=like(
            RING_UNCOVERED,
            machine="flowcheck",
            add=(ADD_MONITORS_BESIDE(count=1, switch="leaf", own=2),),
        ),
    ):
        choose(tmp_path, tree, redundancy=3)
    assert choose(tmp_path, tree, redundancy=2).choice.machine_of_group
    tree["monitor"].append({"switch": "leaf", "port": "Ethernet63", "gbps": 400})
    assert choose(tmp_path, tree, redundancy=3).choice.machine_of_group


def test_too_few_monitors_for_a_redundancy_are_counted_and_named(tmp_path: Path) -> None:
    """Not that the machine sees nothing: with one copy of each chunk it sees all of it. Of two
    machines it is the one that lacks fewer, not the one that the file names first."""
    tree = layout(monitors=(400.0, 400.0))
    for monitor in tree["monitor"]:
        monitor["machine"] = "near"
    tree["monitor"].insert(
        0, {"switch": "leaf", "port": "Ethernet63", "gbps": 400, "machine": "far"}
    )
    with refused_as(
        LESS_REDUNDANCY,
        kind=ConfigError,
        machine="near",
        wanted=3,
        has=(MONITORS_AT(switch="leaf", count=2),),
        add=(ADD_MONITORS_BESIDE(count=1, switch="leaf", own=2),),
    ) as why:
        choose(tmp_path, tree, redundancy=3)
    found = why.value.finding
    assert "none of" not in str(found) and 'machine = "near": 1 more at leaf' in found.remedy


def test_a_protocol_that_is_none_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with refused_as(ONE_OF, kind=ConfigError, choices=("LL", "LL128", "Simple")):
        choose(tmp_path, layout(protocol="LL256"))


def test_a_long_search_says_so_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = [0.0]
    patience = SearchTimer(100, lambda: now_s[0])
    assert not patience.spent(1, None)
    assert capsys.readouterr().err == ""
    now_s[0] = 4.0
    assert not patience.spent(50, 8)
    assert not patience.spent(51, 8)
    told = capsys.readouterr().err
    assert told.startswith("searching ports for 4 s: 50 of at most 100 steps, best choice: 8 pairs")
    assert told.count("\n") == 1
    assert patience.spent(101, 8)
    now_s[0] = SEARCH_LIMIT_S + 1
    assert patience.spent(52, 8)


def test_command_lines_spell_sources_and_monitor_alike(tmp_path: Path) -> None:
    tree = layout()
    tree["cable"][0]["ports"] = "ethernet1/{1-4}"
    tree["monitor"][0] |= {"port": "ethernet1/32", "session": 7}
    (command,) = choose(tmp_path, tree, os="nxos").commands
    assert "'ethernet 1/1:rx'" in command.render
    assert "--monitor 'ethernet 1/32'" in command.render
