"""Copies of Linux tc that would be copied again, and whose filter it is that does so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from support.refused_as import refused_as

from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog.refused_tc_mirrors import (
    FILTER_OF_OTHERS,
    FILTER_OF_SESSION,
    MONITOR_IN_USE,
    TC_MONITOR_TAKEN,
    TC_MONITOR_WATCHED,
    TC_SOURCE_GETS_COPIES,
)
from flowcheck.findings.catalog.switch_changes import (
    ADD_CLSACT,
    BRIDGE_OWN_PORT,
    MONITOR_CARRIES_FRAMES,
    OVS_SILENT,
    PROGRAM_TIMED_OUT,
)
from flowcheck.findings.finding import Entry, Finding
from flowcheck.ops.switch import mirror_session_options, switch_platforms
from flowcheck.ops.switch.apply import command_runner, ovs_mirror, ovs_state, tc_mirror, tc_state
from flowcheck.ops.switch.apply.apply_journal import ApplyJournal
from flowcheck.ops.switch.apply.reconciler import CommandStep
from flowcheck.ops.switch.apply.tc_mirror import Goal, TcMirrors
from flowcheck.ops.switch.apply.tc_state import FilterQdisc, NetDevice, TcFilter, TcJournal, TcState

DEVICES = ("eth1", "eth2", "eth3", "eth9")
LIVE = b"b".hex()


def filter_at(device: str, way: str, to: str, cookie: str, control: str = "continue") -> TcFilter:
    return TcFilter(
        device=device,
        way=way,
        protocol="all",
        pref=1000,
        kind="matchall",
        chain=0,
        handle="0x1",
        cookies=(cookie,),
        controls=(control,),
        copies_to=(to,),
        matches_all=True,
        in_hardware_only=False,
    )


def goal(
    tmp_path: Path,
    session: str,
    source: str,
    monitor: str,
    *there: TcFilter,
    frames: tuple[int, int] = (0, 0),
    warn: Callable[[Finding], None] = lambda _: None,
) -> Goal:
    """Of devices that could all be asked for anything and carried `frames`, with these filters."""
    links = {
        name: NetDevice(
            name=name,
            index=n,
            mac="",
            mtu=9000,
            up=True,
            master=None,
            addresses=(),
            frames=frames,
        )
        for n, name in enumerate(DEVICES)
    }
    hooks = {one.device: FilterQdisc(kind="clsact", shared=False, chains=False) for one in there}
    state = TcState(links=links, hooks=hooks, root={}, filters=list(there))
    wanted = mirror_session_options.parse_session(
        switch_platforms.platform_named("tc"), [source], monitor=monitor, session=session
    )
    tc = TcMirrors(session, "", TcJournal(ApplyJournal(tmp_path, "tc")))
    return tc_mirror.tc_goal(tc, wanted, state, warn)


@pytest.mark.parametrize(
    ("source", "monitor"),
    [("eth9:tx", "eth2"), ("eth9", "eth2"), ("eth1:tx", "eth2"), ("eth9", "eth3")],
)
@pytest.mark.parametrize(
    ("live", "whose"),
    [
        (filter_at("eth2", "egress", "eth9", LIVE), FILTER_OF_SESSION(session="b", pref=1000)),
        (filter_at("eth2", "ingress", "eth9", "aa"), FILTER_OF_OTHERS(1000)),
        (filter_at("eth2", "ingress", "eth9", LIVE, "pipe"), FILTER_OF_OTHERS(1000)),
    ],
)
def test_a_monitor_that_is_watched_and_a_source_copies_go_to_are_refused(
    tmp_path: Path, source: str, monitor: str, live: TcFilter, whose: Finding
) -> None:
    with pytest.raises(ConfigError) as caught:
        goal(tmp_path, "c", source, monitor, live)
    gets = TC_SOURCE_GETS_COPIES(maker=whose, device="eth2", way=live.way)
    assert caught.value.right == (TC_MONITOR_WATCHED(whose) if monitor == "eth2" else gets)


def test_what_this_very_session_does_now_is_no_reason_to_refuse_what_it_shall_do(
    tmp_path: Path,
) -> None:
    live = filter_at("eth2", "egress", "eth9", LIVE)
    (copy,) = goal(tmp_path, "b", "eth9:tx", "eth2", live)
    assert str(copy) == "eth9 egress -> eth2"
    assert goal(tmp_path, "c", "eth1", "eth3", live)


@pytest.mark.parametrize(
    "there",
    [
        filter_at("eth2", "ingress", "eth9", "aa"),
        filter_at("eth2", "ingress", "eth9", LIVE, "pipe"),
        msgspec.structs.replace(
            filter_at("eth2", "egress", "eth9", LIVE), copies_to=(), hands_to=("eth9",)
        ),
    ],
)
def test_a_monitor_port_somebody_else_sends_frames_to_is_refused_whatever_is_watched(
    tmp_path: Path, there: TcFilter
) -> None:
    with pytest.raises(ConfigError) as caught:
        goal(tmp_path, "c", "eth1", "eth9", there)
    taken = TC_MONITOR_TAKEN(maker=FILTER_OF_OTHERS(1000), device="eth2", way=there.way)
    assert (caught.value.value, caught.value.right) == ("eth9", taken)
    assert goal(tmp_path, "c", "eth1", "eth3", there)


@pytest.mark.parametrize("action", ["redirect egress", "mirror ingress", "mirror egress"])
def test_every_way_tc_gives_frames_to_a_device_is_read(action: str) -> None:
    """As `tc -j filter show` of iproute2 6.1 printed it."""
    what, way = action.split()
    mirred = {"order": 1, "kind": "mirred", "mirred_action": what, "direction": way}
    actions = [mirred | {"to_dev": "eth9", "control_action": {"type": "stolen"}}]
    options = {"fh": "800::800", "match": {"value": "0", "mask": "0"}, "actions": actions}
    shown = {"protocol": "all", "pref": 9, "kind": "u32", "chain": 0, "options": options}
    one = tc_state.filter_of("eth2", "ingress", shown)
    assert one.copies_to + one.hands_to == ("eth9",)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ((9, 7), (9, 57), "refused"),
        ((9, 7), (59, 7), "refused"),
        ((9, 7), (10, 8), "warned"),
        ((9, 7), (9, 7), ""),
    ],
)
def test_a_monitor_port_that_carries_other_traffic_is_refused_and_one_of_ours_is_not(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: tuple[int, int],
    after: tuple[int, int],
    told: str,
) -> None:
    looks = iter([before, after])
    monkeypatch.setattr(tc_mirror, "LOOK_S", 0)
    monkeypatch.setattr(tc_state, "frames", lambda _: next(looks))
    said: list[Finding] = []
    ours = filter_at("eth2", "ingress", "eth9", LIVE)
    for session in ("b", "c"):
        assert goal(tmp_path, session, "eth1", "eth9", ours, frames=before, warn=said.append)
    assert goal(tmp_path, "c", "eth1", "eth9", warn=said.append), "it never carried a frame"
    assert said == []
    if told == "refused":
        with pytest.raises(ConfigError) as caught:
            goal(tmp_path, "c", "eth1", "eth9", frames=before)
        got, sent = (now - was for now, was in zip(after, before, strict=True))
        assert caught.value.right == MONITOR_IN_USE(received=got, sent=sent, seconds=0)
        return
    assert goal(tmp_path, "c", "eth1", "eth9", frames=before, warn=said.append)
    warned = MONITOR_CARRIES_FRAMES(device="eth9", received=1, sent=1, seconds=0)
    assert said == ([warned] if told else [])


def test_the_own_port_of_a_bridge_of_open_vswitch_is_told_to_be_no_servers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds = {"br0": "internal", "eth1": "", "vm1": "internal", "eth9": ""}
    ports = {
        name: ovs_state.OvsPort(
            uuid=name, name=name, tag=None, vlan_mode=None, kinds=(kind,), numbers=(n,), errors=()
        )
        for n, (name, kind) in enumerate(kinds.items())
    }
    bridge = ovs_state.OvsBridge(
        name="br0", ports=frozenset(ports), mirrors=frozenset(), controlled=False
    )
    state = ovs_state.OvsState(
        bridges={"br0": bridge}, ports=ports, mirrors={}, virtual_network=False, counts_after_ms=1
    )
    monkeypatch.setattr(ovs_state.OvsDaemon, "learned", lambda *_: "")
    told = {}
    for source in ("br0", "eth1", "vm1"):
        said: list[Finding] = []
        wanted = mirror_session_options.parse_session(
            switch_platforms.platform_named("openvswitch"), [source], monitor="eth9", bridge="br0"
        )
        ovs_mirror.ovs_goal(ovs_mirror.OpenVSwitch("flowcheck", None), wanted, state, said.append)
        told[source] = said
    assert told == {"br0": [BRIDGE_OWN_PORT("br0")], "eth1": [], "vm1": []}


@pytest.mark.parametrize(
    ("answers", "entry"),
    [(False, OVS_SILENT), (True, PROGRAM_TIMED_OUT)],
)
def test_a_dead_daemon_is_named_and_not_the_alarm_that_ended_the_wait(
    monkeypatch: pytest.MonkeyPatch, answers: bool, entry: Entry
) -> None:
    def gave_up(command: list[str], **_: float) -> str:
        if command[0] == "ovs-vsctl":
            return command_runner.run_switch_command(["sh", "-c", "kill -ALRM $$; sleep 5"])
        if answers:
            return "ovs-vswitchd (Open vSwitch) 3.1.0"
        raise StateError("cannot read pidfile")

    monkeypatch.setattr(ovs_mirror, "run_switch_command", gave_up)
    monkeypatch.setattr(ovs_state, "run_switch_command", gave_up)
    with refused_as(entry):
        step = CommandStep(what=ADD_CLSACT("eth1"), command=("ovs-vsctl", "set", "x"))
        ovs_mirror.OpenVSwitch("flowcheck", None).run(step, back=False)
