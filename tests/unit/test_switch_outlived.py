"""What goes on or goes away beside a run that looks and acts: a killed one's command, devices."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from support.refused_as import Wanted, like, refused_as

from flowcheck.errors import StateError
from flowcheck.findings.catalog.general_errors import ERROR_TEXT
from flowcheck.findings.catalog.switch_changes import LOCKED, OVS_MIRRORS_CHANGED
from flowcheck.ops.switch.apply import (
    apply_journal,
    command_runner,
    ovs_state,
    tc_commands,
    tc_state,
)
from flowcheck.ops.switch.apply.ovs_mirror import OpenVSwitch, OvsGoal
from flowcheck.ops.switch.apply.tc_mirror import TcMirrors
from flowcheck.ops.switch.apply.tc_state import TcJournal

RUN = """
import sys
from pathlib import Path
from flowcheck.ops.switch.apply import command_runner, apply_journal
with apply_journal.apply_lock(Path(sys.argv[1])):
    command_runner.run_switch_command(["sh", "-c", "echo $$ > $0/pid; exec sleep 30", sys.argv[1]])
"""


def test_the_command_of_a_killed_run_keeps_the_next_one_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what it does comes behind the next one's last look, and stays."""
    os.mkfifo(tmp_path / "pid")
    run = subprocess.Popen([sys.executable, "-c", RUN, str(tmp_path)])
    fifo = os.open(tmp_path / "pid", os.O_RDWR)
    assert select.select([fifo], [], [], 20)[0], "the command has begun"
    command = int(os.read(fifo, 99))
    os.close(fifo)
    run.kill()
    assert run.wait() == -signal.SIGKILL
    monkeypatch.setattr(apply_journal, "LOCK_S", 0.2)
    refused = refused_as(LOCKED)
    with refused, apply_journal.apply_lock(tmp_path):
        pass
    os.kill(command, signal.SIGKILL)
    monkeypatch.setattr(apply_journal, "LOCK_S", 20)
    with apply_journal.apply_lock(tmp_path):
        pass


def test_a_name_with_a_control_character_is_read_as_ip_prints_it() -> None:
    """iproute2 6.1 does not escape it, RFC 8259 (7) says one must."""
    shown = command_runner.run_json(["printf", r'[{"ifname":"x\033[31m","mtu":1500}]'])
    assert shown == [{"ifname": "x\x1b[31m", "mtu": 1500}]


def test_a_device_that_has_gone_holds_nothing_and_one_that_is_there_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tc = TcMirrors("flowcheck", "", TcJournal(apply_journal.ApplyJournal(tmp_path, "tc")))

    def fails(command: object) -> str:
        raise StateError("tc ended with 1: Cannot find device")

    monkeypatch.setattr(tc_state, "run_json", fails)
    monkeypatch.setattr("flowcheck.ops.switch.apply.tc_mirror.run_switch_command", fails)
    assert tc_state.read_hook("gone-before", "ingress") == []
    assert tc_state.read_chains("gone-before", "ingress") == set()
    with refused_as(ERROR_TEXT, text=re.compile("Cannot find")):
        tc_state.read_hook("lo", "ingress")
    tc.run(tc_commands.delete_clsact("gone-before"), back=False)
    there = tc_commands.delete_clsact("lo")
    more = tc_commands.add_clsact("gone-before", lambda: True)
    for step in (there, more):
        with refused_as(ERROR_TEXT, text=re.compile("Cannot find")):
            tc.run(step, back=False)


def test_what_was_of_a_port_that_has_gone_is_not_asked_for_again(tmp_path: Path) -> None:
    tc = TcMirrors("flowcheck", "", TcJournal(apply_journal.ApplyJournal(tmp_path, "tc")))
    there = tc_state.NetDevice(name="b", index=2, mac="", mtu=9, up=True, master=None, addresses=())
    state = tc_state.TcState(links={"b": there, "m": there}, hooks={}, root={}, filters=[])
    kept, gone, nowhere = (
        tc_commands.MirrorFilter(device=device, way="ingress", monitor=monitor)
        for device, monitor in (("b", "m"), ("a", "m"), ("b", "*"))
    )
    assert tc.possible_part(state, frozenset([kept, gone, nowhere])) == {kept}
    ovs = OpenVSwitch("flowcheck", None)
    goal = OvsGoal(bridge="br0", output="q", rx=frozenset(["p", "x"]), tx=frozenset(["x"]))
    left = OvsGoal(bridge="br0", output="q", rx=frozenset(["p"]), tx=frozenset())
    assert ovs.possible_part(_bridge("p", "q"), goal) == left
    assert ovs.possible_part(_bridge("p"), goal) is None


@pytest.mark.parametrize(
    ("mirrors", "wanted"),
    [
        (("n",), OVS_MIRRORS_CHANGED("br0")),
        ((), like(ERROR_TEXT, text=re.compile("no answer"))),
    ],
)
def test_a_mirror_that_came_between_look_and_act_is_told_as_that(
    monkeypatch: pytest.MonkeyPatch, mirrors: tuple[str, ...], wanted: Wanted
) -> None:
    """ovs-vsctl waits for the mirrors that were looked at, and can say no more than that."""
    ovs = OpenVSwitch("flowcheck", None)
    goal = OvsGoal(bridge="br0", output="q", rx=frozenset(["p"]), tx=frozenset())
    (step,) = ovs.steps(_bridge("p", "q"), goal)

    def waits(command: object, limit_s: float) -> str:
        raise command_runner.ProgramTimeoutError(
            "ovs-vsctl had no answer as long as its --timeout is"
        )

    monkeypatch.setattr("flowcheck.ops.switch.apply.ovs_mirror.run_switch_command", waits)
    monkeypatch.setattr(ovs.daemon, "answers", lambda: True)
    monkeypatch.setattr(ovs, "observe", lambda: _bridge("p", "q", mirrors=mirrors))
    with refused_as(wanted):
        ovs.run(step, back=False)


def test_a_silent_daemon_is_waited_for_once_and_not_at_each_bridge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ovs = OpenVSwitch("flowcheck", None)
    one = _bridge("p").bridges["br0"]
    state = msgspec.structs.replace(_bridge(), bridges=dict.fromkeys(("a", "b", "c"), one))
    monkeypatch.setattr(ovs, "observe", lambda: state)
    for error, calls in ((command_runner.ProgramTimeoutError, 1), (StateError, 3)):
        asked: list[str] = []

        def look(bridge: str, asked: list[str] = asked, error: type[Exception] = error) -> None:
            asked.append(bridge)
            raise error

        monkeypatch.setattr(ovs.daemon, "revalidate_flows", look)
        ovs.confirm_mirroring(None)
        assert len(asked) == calls


def _bridge(*ports: str, mirrors: tuple[str, ...] = ()) -> ovs_state.OvsState:
    """br0 with ports, each called as its UUID, and others' mirrors."""
    on = ovs_state.OvsBridge(
        name="br0", ports=frozenset(ports), mirrors=frozenset(mirrors), controlled=False
    )
    rows = {
        one: ovs_state.OvsPort(
            uuid=one, name=one, tag=None, vlan_mode=None, kinds=("",), numbers=(1,), errors=()
        )
        for one in ports
    }
    return ovs_state.OvsState(
        bridges={"br0": on}, ports=rows, mirrors={}, virtual_network=False, counts_after_ms=5000
    )
