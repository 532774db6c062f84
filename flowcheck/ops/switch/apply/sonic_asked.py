"""What is asked of SONiC, against what its databases hold."""

from __future__ import annotations

from collections.abc import Callable

from flowcheck.errors import ConfigError
from flowcheck.ops.switch.apply.sonic import Sonic
from flowcheck.ops.switch.apply.sonic_state import Entry, State, plain, ports_of
from flowcheck.ops.switch.session import Session

GRE = "0x88be"


def goal(sonic: Sonic, session: Session, state: State, warn: Callable[[str], None]) -> Entry:
    """The row of CONFIG_DB `session` asks for (sonic-utilities config/main.py, add_span and
    add_erspan).

    warn: is told what is no reason to refuse. Raises ConfigError that says why it cannot be.
    """
    ways = {source.direction for source in session.sources}
    (way,) = ways
    ports = frozenset(source.port for source in session.sources)
    for port in sorted(ports):
        if port not in state.ports and port not in state.bundles:
            raise ConfigError("--source", port, "is no port in the switch's CONFIG_DB")
    common = {"src_port": ",".join(sorted(ports)), "direction": way.upper()}
    tunnel = session.tunnel
    if tunnel is not None:
        where = {"src_ip": str(tunnel.source), "dst_ip": str(tunnel.destination)}
        numbers = {"dscp": str(tunnel.dscp), "ttl": str(tunnel.ttl), "queue": "0"}
        wanted = {"type": "ERSPAN", **where, **numbers, "gre_type": GRE, **common}
    else:
        assert session.monitor is not None
        _monitor(state, session.monitor)
        for one in way.ways():
            if one in state.incapable:
                raise ConfigError("--source", str(way), f"this switch's ASIC cannot mirror {one}")
        wanted = {"type": "SPAN", "dst_port": session.monitor, **common}
    wanted = plain(wanted)
    there = state.sessions.get(session.name)
    if there is not None and there != wanted and sonic.own(state) is None:
        right = (
            "is there already and was not made from this machine: take another name, or have its "
            "owner remove it"
        )
        raise ConfigError("--session", session.name, right)
    for name, other in state.sessions.items():
        if name != session.name:
            _clash(name, other, session, way.ways(), warn)
    return wanted


def _monitor(state: State, name: str) -> None:
    if name not in state.ports:
        raise ConfigError("--monitor", name, "is no port in the switch's CONFIG_DB")
    if name in state.members:
        raise ConfigError("--monitor", name, f"is a member of {state.members[name]}")
    if name in state.routed:
        raise ConfigError("--monitor", name, "is a routed port: it has an address")


def _clash(
    name: str, other: Entry, session: Session, ways: tuple[str, ...], warn: Callable[[str], None]
) -> None:
    theirs = ports_of(other)
    if session.monitor and session.monitor == other.get("dst_port"):
        right = f"is the monitor port of session {name}; a port is that of one session only"
        raise ConfigError("--monitor", session.monitor, right)
    if session.monitor in theirs:
        raise ConfigError("--monitor", session.monitor, f"is watched by session {name}")
    same_way = other.get("direction", "BOTH").lower() in ("both", *ways) or len(ways) > 1
    for source in session.sources:
        if source.port == other.get("dst_port"):
            raise ConfigError("--source", source.port, f"is the monitor port of session {name}")
        if not same_way:
            continue
        if source.port in theirs:
            raise ConfigError("--source", str(source), f"session {name} watches it already")
        begins = sorted(port for port in theirs if port.startswith(source.port))
        if begins:
            warn(
                f"{source.port} is how {begins[0]} of session {name} begins: older releases "
                "compare port names so and would refuse; then take both into one session"
            )
