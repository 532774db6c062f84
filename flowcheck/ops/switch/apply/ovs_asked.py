"""What is asked of Open vSwitch, against what its database has."""

from __future__ import annotations

import re
from collections.abc import Callable

from flowcheck.errors import ConfigError, StateError
from flowcheck.ops.switch.apply.ovs import Goal, OpenVSwitch
from flowcheck.ops.switch.apply.ovs_state import Bridge, Mirror, Port, State
from flowcheck.ops.switch.session import Direction, Session

TAG_IS_CUT = ("access", "native-untagged", "dot1q-tunnel")
"""vlan_mode of ports that take tags off or put others on."""


def goal(ovs: OpenVSwitch, session: Session, state: State, warn: Callable[[str], None]) -> Goal:
    """The mirror `session` asks for.

    warn: is told what is no reason to refuse. Raises ConfigError that says why it cannot be.
    """
    if session.tunnel is not None or session.monitor is None or session.bridge is None:
        right = "a tunnel of Open vSwitch's is not made by apply: use `render` and paste"
        raise ConfigError("--erspan", str(session.tunnel), right)
    bridge = state.bridges.get(session.bridge)
    if bridge is None:
        known = ", ".join(sorted(state.bridges)) or "no bridge"
        raise ConfigError("--bridge", session.bridge, f"is not there; there is {known}")
    monitor = _port(state, bridge, "--monitor", session.monitor)
    ways: dict[Direction, set[str]] = {Direction.RX: set(), Direction.TX: set()}
    for source in session.sources:
        port = _port(state, bridge, "--source", source.port)
        if port.name == bridge.name:
            warn(
                f"{port.name} is the bridge's own port: rx is only what this host itself sends "
                "through it, tx only what this host gets; frames from one port to another are in "
                "neither. For a server, take the port it is at"
            )
        for way in source.direction.ways():
            ways[way].add(port.uuid)
    mine = ovs.mine(state)
    _names(session.name, bridge, state, mine)
    _monitor(monitor)
    for other in state.mirrors.values():
        if other not in mine and state.bridge_of(other.uuid):
            _clash(state, other, monitor, ways[Direction.RX] | ways[Direction.TX])
    if not any(one.output == monitor.uuid for one in mine):
        _talking(ovs, bridge, monitor, warn)
    if ovs.daemon.remote:
        warn(
            "flows in use are copied only when its daemon looks at them again: on its machine, any "
            f"flow that comes and goes does it (ovs-ofctl add-flow and del-flows {bridge.name})"
        )
    if bridge.controlled or state.virtual_network:
        warn(f"{bridge.name} obeys a controller, which may change or remove mirrors: look again")
    return Goal(
        bridge=bridge.name,
        output=monitor.uuid,
        rx=frozenset(ways[Direction.RX]),
        tx=frozenset(ways[Direction.TX]),
    )


def _port(state: State, bridge: Bridge, option: str, name: str) -> Port:
    port = state.port(name)
    if port is None:
        raise ConfigError(option, name, "is no port of this Open vSwitch")
    if port.uuid not in bridge.ports:
        there = state.bridge_of(port.uuid)
        where = there.name if there else "no bridge"
        right = f"is on {where}: a mirror's ports are all on its own bridge, {bridge.name}"
        raise ConfigError(option, name, right)
    if len(port.kinds) > 1:
        raise ConfigError(option, name, "is a bond: no mirror of apply's has one; use `render`")
    if "patch" in port.kinds:
        raise ConfigError(option, name, "is a patch port: take the port the server is at")
    return port


def _names(name: str, bridge: Bridge, state: State, mine: list[Mirror]) -> None:
    for uuid in bridge.mirrors:
        other = state.mirrors.get(uuid)
        if other is not None and other not in mine and other.name == name:
            right = (
                f"is a mirror of {bridge.name} that is not marked as ours "
                f"(external_ids:flowcheck={name}): take another name, or have its owner remove it"
            )
            raise ConfigError("--session", name, right)


def _monitor(port: Port) -> None:
    if port.tag is not None or port.vlan_mode in TAG_IS_CUT:
        how = f"vlan_mode={port.vlan_mode}" if port.vlan_mode else f"tag={port.tag}"
        right = f"has {how}: copies would lose their VLAN tags; it must have neither"
        raise ConfigError("--monitor", port.name, right)
    if "internal" in port.kinds:
        right = "is the host's own port, of type internal: take one a capture card is at"
        raise ConfigError("--monitor", port.name, right)


def _clash(state: State, other: Mirror, monitor: Port, sources: set[str]) -> None:
    whose = f"of session {other.mark} of FlowCheck's" if other.mark else "which is not ours"
    if other.output == monitor.uuid:
        right = f"mirror {other.name}, {whose}, has it as its output already"
        raise ConfigError("--monitor", monitor.name, right)
    if monitor.uuid in other.rx | other.tx:
        right = f"mirror {other.name}, {whose}, watches it: copies would be copied again"
        raise ConfigError("--monitor", monitor.name, right)
    if other.output in sources:
        port = state.ports[str(other.output)].name
        right = f"is the output of mirror {other.name}: its copies would be copied again"
        raise ConfigError("--source", port, right)


def _talking(ovs: OpenVSwitch, bridge: Bridge, monitor: Port, warn: Callable[[str], None]) -> None:
    """A mirror's output takes no other traffic: who is reached through it would be cut off."""
    try:
        if ovs.daemon.remote:
            raise StateError("the daemon is on another machine")
        shown = ovs.daemon.learned(bridge.name)
    except StateError as error:
        warn(f"not looked at, whether anybody is reached through {monitor.name}: {error}")
        return
    known = [
        line.split()[2]
        for line in shown.splitlines()
        if re.match(r"\s*\d+\s", line) and int(line.split()[0]) in monitor.numbers
    ]
    if known:
        right = (
            f"{', '.join(known[:3])} is reached through it and would be cut off. Is it the capture "
            f"card itself, silence it and `ovs-appctl fdb/flush {bridge.name}`"
        )
        raise ConfigError("--monitor", monitor.name, right)
