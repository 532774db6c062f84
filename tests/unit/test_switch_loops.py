"""Copies of Linux tc that would be copied again, and whose filter it is that does so."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowcheck.errors import ConfigError, StateError
from flowcheck.ops.switch import asked, platforms
from flowcheck.ops.switch.apply import commands, ovs, ovs_daemon, tc_asked
from flowcheck.ops.switch.apply.bring import Step
from flowcheck.ops.switch.apply.journal import Journal
from flowcheck.ops.switch.apply.made import Made
from flowcheck.ops.switch.apply.tc import Goal, Tc
from flowcheck.ops.switch.apply.tc_state import Filter, Hook, Link, State

DEVICES = ("eth1", "eth2", "eth3", "eth9")
LIVE = b"b".hex()


def filter_at(device: str, way: str, to: str, cookie: str, control: str = "continue") -> Filter:
    return Filter(
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


def goal(tmp_path: Path, session: str, source: str, monitor: str, *there: Filter) -> Goal:
    """Of devices that could all be asked for anything, with these filters."""
    links = {
        name: Link(name=name, index=n, mac="", mtu=9000, up=True, master=None, addresses=())
        for n, name in enumerate(DEVICES)
    }
    hooks = {one.device: Hook(kind="clsact", shared=False, chains=False) for one in there}
    state = State(links=links, hooks=hooks, root={}, filters=list(there))
    wanted = asked.asked(platforms.named("tc"), [source], monitor=monitor, session=session)
    tc = Tc(session, "", Made(Journal(tmp_path, "tc")))
    return tc_asked.goal(tc, wanted, state, lambda _: None)


@pytest.mark.parametrize(
    ("source", "monitor"),
    [("eth9:tx", "eth2"), ("eth9", "eth2"), ("eth1:tx", "eth2"), ("eth9", "eth3")],
)
@pytest.mark.parametrize(
    ("live", "whose"),
    [
        (filter_at("eth2", "egress", "eth9", LIVE), "of session b of FlowCheck's"),
        (filter_at("eth2", "ingress", "eth9", "aa"), "that is not ours"),
        (filter_at("eth2", "ingress", "eth9", LIVE, "pipe"), "that is not ours"),
    ],
)
def test_a_monitor_that_is_watched_and_a_source_copies_go_to_are_refused(
    tmp_path: Path, source: str, monitor: str, live: Filter, whose: str
) -> None:
    with pytest.raises(ConfigError, match=f"{whose}.*copied again"):
        goal(tmp_path, "c", source, monitor, live)


def test_what_this_very_session_does_now_is_no_reason_to_refuse_what_it_shall_do(
    tmp_path: Path,
) -> None:
    live = filter_at("eth2", "egress", "eth9", LIVE)
    (copy,) = goal(tmp_path, "b", "eth9:tx", "eth2", live)
    assert str(copy) == "eth9 egress -> eth2"
    assert goal(tmp_path, "c", "eth1", "eth3", live)


@pytest.mark.parametrize(("answers", "sentence"), [(False, "vswitchd does not"), (True, "timeout")])
def test_a_dead_daemon_is_named_and_not_the_alarm_that_ended_the_wait(
    monkeypatch: pytest.MonkeyPatch, answers: bool, sentence: str
) -> None:
    def gave_up(command: list[str], **_: float) -> str:
        if command[0] == "ovs-vsctl":
            return commands.run(["sh", "-c", "kill -ALRM $$; sleep 5"])
        if answers:
            return "ovs-vswitchd (Open vSwitch) 3.1.0"
        raise StateError("cannot read pidfile")

    monkeypatch.setattr(ovs, "run", gave_up)
    monkeypatch.setattr(ovs_daemon, "run", gave_up)
    with pytest.raises(StateError, match=sentence):
        step = Step(what="+", command=("ovs-vsctl", "set", "x"))
        ovs.OpenVSwitch("flowcheck", None).run(step, back=False)
