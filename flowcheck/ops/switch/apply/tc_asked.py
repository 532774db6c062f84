"""What is asked of tc, against what the machine has: refused before anything is touched."""

from __future__ import annotations

import re
from collections.abc import Callable
from threading import Event

from flowcheck.errors import ConfigError
from flowcheck.ops.switch.apply import tc_state
from flowcheck.ops.switch.apply.tc import Goal, Tc
from flowcheck.ops.switch.apply.tc_state import Filter, Link, State
from flowcheck.ops.switch.apply.tc_steps import Copy
from flowcheck.ops.switch.asked import NAME
from flowcheck.ops.switch.session import Direction, Session, Source

WAY = {Direction.RX: "ingress", Direction.TX: "egress"}
HARMLESS = ("noqueue", "mq", "fq_codel", "fq", "pfifo_fast", "pfifo", "multiq")
"""Root qdiscs that drop nothing while the device keeps up."""
LOOK_S = 0.5
MOST_FRAMES = 4
"""In LOOK_S, one way: what a host says by itself of a device that has come up (IPv6's neighbour and
multicast reports, LLDP, spanning tree) stays below; more is somebody's traffic."""


def goal(tc: Tc, session: Session, state: State, warn: Callable[[str], None]) -> Goal:
    """The copies `session` asks for.

    warn: is told what is no reason to refuse. Raises ConfigError that says why it cannot be.
    """
    if session.tunnel is not None or session.monitor is None:
        right = "a tunnel of tc's is not made by apply: use `render --os tc` and paste"
        raise ConfigError("--erspan", str(session.tunnel), right)
    monitor = _present(state, "--monitor", session.monitor)
    _monitor(state, monitor, warn)
    _loops(tc, state, session)
    wanted: list[Copy] = []
    for source in session.sources:
        link = _present(state, "--source", source.port)
        _sizes(link, monitor)
        if not link.up:
            warn(f"{link.name} is down: nothing to copy until it is up")
        for way in source.direction.ways():
            _hook(state, source, way)
            copy = Copy(device=link.name, way=WAY[way], monitor=monitor.name, form=tc.form)
            _others(tc, state, copy)
            wanted.append(copy)
    if not _taken(tc, state, monitor):
        _talking(monitor, warn)
    return frozenset(wanted)


def _present(state: State, option: str, name: str) -> Link:
    if name not in state.links:
        raise ConfigError(option, name, "is no device of this network namespace")
    return state.links[name]


def _monitor(state: State, monitor: Link, warn: Callable[[str], None]) -> None:
    if monitor.master:
        right = f"belongs to {monitor.master}, which would forward copies or get them back"
        raise ConfigError("--monitor", monitor.name, right)
    if monitor.addresses:
        right = f"has an address ({', '.join(monitor.addresses)}): it is in use"
        raise ConfigError("--monitor", monitor.name, right)
    if not monitor.up:
        raise ConfigError(
            "--monitor",
            monitor.name,
            f"is down, copies would be dropped: ip link set {monitor.name} up",
        )
    root = state.root.get(monitor.name, "noqueue")
    if root not in HARMLESS:
        warn(f"{monitor.name} has the qdisc {root}, which may drop or delay copies")
    if state.on(monitor.name, "egress"):
        warn(f"{monitor.name} has filters of its own on egress, which copies meet")


def _loops(tc: Tc, state: State, session: Session) -> None:
    """A copy that is copied again may come back to where it was copied first, without end."""
    mine = tc.filters(state)
    others = [one for one in state.filters if one.copies_to and one not in mine]
    for one in others:
        if one.device == session.monitor:
            right = f"is watched by a filter {_whose(one)}: copies would be copied again"
            raise ConfigError("--monitor", one.device, right)
    for source in session.sources:
        for one in others:
            if source.port in one.copies_to:
                right = (
                    f"is where a filter {_whose(one)} on {one.device} {one.way} copies to: its "
                    "copies would be copied again"
                )
                raise ConfigError("--source", str(source), right)


def _taken(tc: Tc, state: State, monitor: Link) -> bool:
    """Whether sessions of FlowCheck's, this one or others, copy there already; somebody else's
    frames among them would be taken for copies."""
    mine = tc.filters(state)
    there = [one for one in state.filters if monitor.name in one.copies_to + one.hands_to]
    for one in there:
        if one not in mine and not _session(one):
            right = (
                f"is where a filter {_whose(one)} on {one.device} {one.way} sends frames already: "
                "they would be mixed with ours"
            )
            raise ConfigError("--monitor", monitor.name, right)
    return bool(there)


def _talking(monitor: Link, warn: Callable[[str], None]) -> None:
    """Whether somebody is reached through it: Linux learns no addresses behind a device of no
    bridge, so its counters are looked at twice. One that never carried a frame is not waited for.
    """
    if not any(monitor.frames):
        return
    before = tc_state.frames(monitor.name)
    Event().wait(LOOK_S)
    got, sent = (now - was for now, was in zip(tc_state.frames(monitor.name), before, strict=True))
    what = f"received {got} and sent {sent} frames in {LOOK_S:g} s, and no mirror of ours was there"
    if max(got, sent) > MOST_FRAMES:
        right = (
            f"{what}: it carries other traffic, which copies would mix with. Is it the capture "
            "card that sends, silence it"
        )
        raise ConfigError("--monitor", monitor.name, right)
    if got or sent:
        warn(f"{monitor.name} {what}: look who else uses it")


def _session(one: Filter) -> str:
    """Of FlowCheck's, whose filter it is by its cookie and its form; empty: of none. A cookie alone
    may spell a name by chance."""
    if len(one.cookies) == len(one.copies_to) == 1 and one.controls == ("continue",):
        try:
            name = bytes.fromhex(one.cookies[0]).decode("ascii")
        except ValueError:
            name = ""
        if re.fullmatch(NAME, name):
            return name
    return ""


def _whose(one: Filter) -> str:
    if name := _session(one):
        return f"of session {name} of FlowCheck's (pref {one.pref})"
    return f"that is not ours (pref {one.pref})"


def _sizes(source: Link, monitor: Link) -> None:
    if monitor.mtu < source.mtu:
        right = (
            f"its MTU of {monitor.mtu} is below the {source.mtu} of {source.name}: larger copies "
            "would be dropped in silence"
        )
        raise ConfigError("--monitor", monitor.name, right)


def _hook(state: State, source: Source, way: Direction) -> None:
    hook = state.hooks.get(source.port)
    if hook is None:
        return
    if hook.shared:
        right = "its filters are in a block it shares with other devices: all would be copied"
        raise ConfigError("--source", str(source), right)
    if hook.kind == "ingress" and way is Direction.TX:
        right = (
            "it has somebody's qdisc `ingress`, beside which there is no egress: take rx, or have "
            "its owner put clsact there"
        )
        raise ConfigError("--source", str(source), right)


def _others(tc: Tc, state: State, copy: Copy) -> None:
    mine = tc.filters(state)
    where = f"{copy.device} {copy.way}"
    others = [one for one in state.on(copy.device, copy.way) if one not in mine]
    for one in others:
        if copy.monitor in one.copies_to:
            right = (
                f"{where} is copied there already by a filter {_whose(one)}: "
                "each frame would come twice"
            )
            raise ConfigError("--monitor", copy.monitor, right)
    if tc.pref(state, copy.device, copy.way, mine) is None:
        first = min(one.pref for one in others)
        right = (
            f"{where} has a filter at pref {first} that decides on frames before any of ours could "
            "see them: its owner must move it up"
        )
        raise ConfigError("--source", copy.device, right)
