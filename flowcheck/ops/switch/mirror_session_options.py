"""Parses the command line's port, direction, session and tunnel options into a mirror session."""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv4Address, IPv4Network

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_mirror_sessions import (
    BRIDGE_NEEDED,
    BROADCAST,
    DIRECTION_SUFFIX,
    LOOPBACK,
    MONITOR_BESIDE_ERSPAN,
    MONITOR_NEEDED,
    MONITOR_OR_ERSPAN_NEEDED,
    MONITOR_WITH_ERSPAN,
    MULTICAST,
    NO_BRIDGES,
    NO_TUNNEL_KNOWN,
    NOT_A_BRIDGE_NAME,
    NOT_ONE_MACHINE,
    RESERVED,
    SAME_ENDS,
    SESSION_NAME,
    SESSION_NUMBER,
    SESSION_NUMBER_WITHIN,
    THIS_NETWORK,
    TUNNEL_ADDRESS,
    TUNNEL_FORM,
    TUNNEL_NUMBER,
)
from flowcheck.findings.finding import Finding
from flowcheck.ops.switch.mirror_session import (
    ErspanTunnel,
    MirrorDirection,
    MirrorSession,
    MirrorSource,
)
from flowcheck.ops.switch.switch_platforms import Platform

SESSION_NAME_PATTERN = r"[A-Za-z][A-Za-z0-9_-]{0,15}"
"""A valid session name: at most 16 bytes, the size of a tc action's cookie (linux/pkt_cls.h,
TC_COOKIE_MAX_SIZE)."""
LIMITS = {"id": (1, 1023), "ttl": (1, 255), "dscp": (0, 63)}


def parse_session(
    platform: Platform,
    sources: list[str],
    *,
    monitor: str | None,
    erspan: str | None = None,
    session: str | None = None,
    bridge: str | None = None,
) -> MirrorSession:
    """The mirror session that the command line describes, with port names as the platform's
    commands write them.

    sources: texts as parse_source() reads them.
    monitor: monitor port.
    erspan: text as parse_tunnel() reads it.
    session: name or number; None: the default name.
    bridge: Open vSwitch only.

    Raises ConfigError that names the option and the accepted values.
    """
    name, number = _identity(platform, session)
    tunnel = parse_tunnel(erspan) if erspan is not None else None
    _target(platform, monitor, tunnel)
    if platform.bridge and bridge is None:
        raise ConfigError("--bridge", None, BRIDGE_NEEDED())
    if bridge is not None and not (platform.bridge and re.fullmatch(platform.port, bridge)):
        right = NOT_A_BRIDGE_NAME() if platform.bridge else NO_BRIDGES(platform.title)
        raise ConfigError("--bridge", bridge, right)
    return MirrorSession(
        name=name,
        number=number,
        sources=tuple(parse_source(platform, word) for word in sources),
        monitor=platform.canonical_port(monitor, monitor=True) if monitor is not None else None,
        tunnel=tunnel,
        bridge=bridge,
    )


def parse_source(platform: Platform, word: str) -> MirrorSource:
    """A source port from `PORT`, `PORT:rx`, `PORT:tx` or `PORT:both`. Raises ConfigError."""
    port, colon, last = word.rpartition(":")
    if colon and last in tuple(MirrorDirection):
        return MirrorSource(port=platform.canonical_port(port), direction=MirrorDirection(last))
    if colon and last.isalpha():
        raise ConfigError("--source", word, DIRECTION_SUFFIX())
    return MirrorSource(port=platform.canonical_port(word))


def parse_tunnel(word: str) -> ErspanTunnel:
    """An ERSPAN tunnel from `src=A,dst=B[,id=N][,ttl=N][,dscp=N]`, with IPv4 addresses A and B.
    Raises ConfigError."""
    parts: dict[str, str] = {}
    for part in word.split(","):
        key, _, value = part.partition("=")
        if key not in ("src", "dst", *LIMITS) or not value or key in parts:
            raise ConfigError("--erspan", word, TUNNEL_FORM())
        parts[key] = value
    if not {"src", "dst"} <= set(parts):
        raise ConfigError("--erspan", word, TUNNEL_FORM())
    numbers: dict[str, int] = {}
    for key, (least, most) in LIMITS.items():
        value = parts.get(key, "1" if key == "id" else "64" if key == "ttl" else "0")
        if not re.fullmatch(r"[0-9]{1,4}", value) or not least <= int(value) <= most:
            why = TUNNEL_NUMBER(key=key, least=least, most=most)
            raise ConfigError("--erspan", word, why)
        numbers[key] = int(value)
    try:
        source, destination = IPv4Address(parts["src"]), IPv4Address(parts["dst"])
    except AddressValueError as error:
        raise ConfigError("--erspan", word, TUNNEL_ADDRESS(str(error))) from error
    for key, address in (("src", source), ("dst", destination)):
        if kind := _no_host(address):
            raise ConfigError("--erspan", word, NOT_ONE_MACHINE(key=key, kind=kind))
    if source == destination:
        raise ConfigError("--erspan", word, SAME_ENDS())
    return ErspanTunnel(
        source=source,
        destination=destination,
        number=numbers["id"],
        ttl=numbers["ttl"],
        dscp=numbers["dscp"],
    )


def _no_host(address: IPv4Address) -> Finding | None:
    """What an address is that no single machine is reached by (RFC 6890, 2.2.2; RFC 5771)."""
    if address in IPv4Network("0.0.0.0/8"):
        return THIS_NETWORK()
    if address.is_loopback:
        return LOOPBACK()
    if address.is_multicast:
        return MULTICAST()
    if int(address) == 0xFFFFFFFF:
        return BROADCAST()
    if address.is_reserved:
        return RESERVED()
    return None


def _identity(platform: Platform, session: str | None) -> tuple[str, int | None]:
    if platform.identity == "name":
        name = "flowcheck" if session is None else session
        if not re.fullmatch(SESSION_NAME_PATTERN, name, re.ASCII):
            raise ConfigError("--session", name, SESSION_NAME())
        return name, None
    right = SESSION_NUMBER(platform.title)
    if platform.numbers:
        least, most = platform.numbers
        right = SESSION_NUMBER_WITHIN(platform=platform.title, least=least, most=most)
    if session is None:
        raise ConfigError("--session", None, right)
    if not re.fullmatch(r"[0-9]{1,4}", session, re.ASCII):
        raise ConfigError("--session", session, right)
    return "flowcheck", int(session)


def _target(platform: Platform, monitor: str | None, tunnel: ErspanTunnel | None) -> None:
    if tunnel is not None and platform.erspan is None:
        raise ConfigError("--erspan", str(tunnel), NO_TUNNEL_KNOWN(platform.title))
    if tunnel is None and monitor is None:
        why = MONITOR_OR_ERSPAN_NEEDED() if platform.erspan else MONITOR_NEEDED()
        raise ConfigError("--monitor", None, why)
    if tunnel is not None and monitor is not None and not platform.erspan_port:
        raise ConfigError("--monitor", monitor, MONITOR_BESIDE_ERSPAN())
    if tunnel is not None and monitor is None and platform.erspan_port:
        raise ConfigError("--monitor", None, MONITOR_WITH_ERSPAN(platform.title))
