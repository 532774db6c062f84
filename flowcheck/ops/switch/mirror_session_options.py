"""Parses the command line's port, direction, session and tunnel options into a mirror session."""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv4Address, IPv4Network

from flowcheck.errors import ConfigError
from flowcheck.ops.switch.mirror_session import (
    ErspanTunnel,
    MirrorDirection,
    MirrorSession,
    MirrorSource,
)
from flowcheck.ops.switch.switch_platforms import Platform

SESSION_NAME_PATTERN = r"[A-Za-z][A-Za-z0-9_-]{0,15}"
"""16 bytes: as long as a tc action's cookie can be (linux/pkt_cls.h, TC_COOKIE_MAX_SIZE)."""
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
    """The session these words ask for, ports spelled as the platform's commands write them.

    Raises ConfigError that names the option and what is right.
    """
    name, number = _identity(platform, session)
    tunnel = parse_tunnel(erspan) if erspan is not None else None
    _target(platform, monitor, tunnel)
    if platform.bridge and bridge is None:
        raise ConfigError(
            "--bridge", "not given", "must be stated: the bridge its ports are on, br0"
        )
    if bridge is not None and not (platform.bridge and re.fullmatch(platform.port, bridge)):
        right = "a bridge's name, br0" if platform.bridge else f"{platform.title} has none"
        raise ConfigError("--bridge", bridge, right)
    return MirrorSession(
        name=name,
        number=number,
        sources=tuple(parse_source(platform, word) for word in sources),
        monitor=platform.spelled(monitor, monitor=True) if monitor is not None else None,
        tunnel=tunnel,
        bridge=bridge,
    )


def parse_source(platform: Platform, word: str) -> MirrorSource:
    """`PORT`, or `PORT:rx`, `PORT:tx`, `PORT:both`. Raises ConfigError."""
    port, colon, last = word.rpartition(":")
    if colon and last in tuple(MirrorDirection):
        return MirrorSource(port=platform.spelled(port), direction=MirrorDirection(last))
    if colon and last.isalpha():
        raise ConfigError("--source", word, "ends in :rx, :tx or :both, or has no direction (rx)")
    return MirrorSource(port=platform.spelled(word))


def parse_tunnel(word: str) -> ErspanTunnel:
    """`src=A,dst=B[,id=N][,ttl=N][,dscp=N]`, A and B IPv4 addresses. Raises ConfigError."""
    right = "is src=ADDRESS,dst=ADDRESS and, if wanted, id=N, ttl=N, dscp=N"
    parts: dict[str, str] = {}
    for part in word.split(","):
        key, _, value = part.partition("=")
        if key not in ("src", "dst", *LIMITS) or not value or key in parts:
            raise ConfigError("--erspan", word, right)
        parts[key] = value
    if not {"src", "dst"} <= set(parts):
        raise ConfigError("--erspan", word, right)
    numbers: dict[str, int] = {}
    for key, (least, most) in LIMITS.items():
        value = parts.get(key, "1" if key == "id" else "64" if key == "ttl" else "0")
        if not re.fullmatch(r"[0-9]{1,4}", value) or not least <= int(value) <= most:
            raise ConfigError("--erspan", word, f"{key} is a number from {least} to {most}")
        numbers[key] = int(value)
    try:
        source, destination = IPv4Address(parts["src"]), IPv4Address(parts["dst"])
    except AddressValueError as error:
        raise ConfigError("--erspan", word, f"{error}; {right}") from error
    for key, address in (("src", source), ("dst", destination)):
        if kind := _no_host(address):
            raise ConfigError(
                "--erspan", word, f"{key} is {kind}: state the address of one machine"
            )
    if source == destination:
        raise ConfigError("--erspan", word, "src is the switch's own address, dst the capture's")
    return ErspanTunnel(
        source=source,
        destination=destination,
        number=numbers["id"],
        ttl=numbers["ttl"],
        dscp=numbers["dscp"],
    )


def _no_host(address: IPv4Address) -> str | None:
    """What an address is that no single machine is reached by (RFC 6890, 2.2.2; RFC 5771)."""
    if address in IPv4Network("0.0.0.0/8"):
        return 'of "this network", 0.0.0.0/8'
    if address.is_loopback:
        return "a loopback address"
    if address.is_multicast:
        return "a multicast address"
    if int(address) == 0xFFFFFFFF:
        return "the broadcast address"
    if address.is_reserved:
        return "in the reserved 240.0.0.0/4"
    return None


def _identity(platform: Platform, session: str | None) -> tuple[str, int | None]:
    if platform.identity == "name":
        name = "flowcheck" if session is None else session
        if not re.fullmatch(SESSION_NAME_PATTERN, name, re.ASCII):
            right = "a letter, then letters, digits, _ and -, 16 together at most"
            raise ConfigError("--session", name, right)
        return name, None
    known = f", {platform.numbers[0]} to {platform.numbers[1]}" if platform.numbers else ""
    right = f"{platform.title} numbers its sessions: state a number{known}, that is not in use"
    if session is None:
        raise ConfigError("--session", "not given", f"{right} (one that exists would be changed)")
    if not re.fullmatch(r"[0-9]{1,4}", session, re.ASCII):
        raise ConfigError("--session", session, right)
    return "flowcheck", int(session)


def _target(platform: Platform, monitor: str | None, tunnel: ErspanTunnel | None) -> None:
    if tunnel is not None and platform.erspan is None:
        right = f"no way to say it is known for {platform.title}: use --monitor"
        raise ConfigError("--erspan", str(tunnel), right)
    if tunnel is None and monitor is None:
        other = ", or --erspan" if platform.erspan else ""
        raise ConfigError(
            "--monitor", "not given", f"must be stated: the port copies leave by{other}"
        )
    if tunnel is not None and monitor is not None and not platform.erspan_port:
        raise ConfigError(
            "--monitor", monitor, "not beside --erspan: copies go where its route goes"
        )
    if tunnel is not None and monitor is None and platform.erspan_port:
        right = f"{platform.title} names the port its tunnel leaves by: state it too"
        raise ConfigError("--monitor", "not given", right)
