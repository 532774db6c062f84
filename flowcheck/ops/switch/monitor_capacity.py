"""Whether copies fit: the monitor port's line rate, and frame size against the tunnel's path
MTU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.mirror_session_rules import (
    BURSTS_OVER_MONITOR,
    FITS_MONITOR,
    MEAN_OVER_MONITOR,
    NOT_TRUNCATED,
    ONE_PORT_BOTH_WAYS,
    OVER_MONITOR,
    PATH_MTU_FITS,
    PATH_MTU_TOO_SMALL,
    PATH_MTU_UNCHECKED,
    SUM_OF_SOURCES,
)
from flowcheck.findings.catalog.refused_mirror_sessions import (
    MONITOR_SLOWER,
    MONITOR_SLOWER_WITH_OTHERS,
)
from flowcheck.findings.finding import Finding
from flowcheck.ops.switch.mirror_session import MirrorDirection, MirrorSession
from flowcheck.ops.switch.session_rules import RuleResult, RuleVerdict
from flowcheck.ops.switch.switch_platforms import Platform

ROCE_BYTES = 20 + 8 + 12 + 16 + 4 + 4
"""Bytes of the headers of a RoCEv2 frame: IPv4 20, UDP 8, BTH 12, RETH 16, immediate 4, ICRC 4 (IB
specification vol. 1, chapter 9 and annex A17)."""
LINK_BYTES = 14 + 4
"""Bytes of Ethernet header and one 802.1Q tag (IEEE 802.3, 802.1Q). A tunnel carries these, but
not the frame checksum."""
IP_BYTES = 20
"""Bytes of a tunnel's IPv4 header without options (RFC 791)."""
WIRE_BYTES_PER_DATA_BYTE = {"simple": 1.0, "ll": 2.0, "ll128": 128 / 120}
"""Bytes on the wire per payload byte, by NCCL protocol: in LL flags are half of each line, in
LL128 8 of 128 bytes (nccl src/include/device.h, NCCL_LL_LINE..., NCCL_LL128_DATAELEMS)."""


class LineRates(msgspec.Struct, frozen=True, kw_only=True):
    """Line rates in Gb/s: `source_gbps` of each source port, `monitor_gbps` of the monitor port or
    the tunnel's route."""

    source_gbps: float
    monitor_gbps: float


class JobRates(msgspec.Struct, frozen=True, kw_only=True):
    """Mean rate of the job over a step in Gb/s, for one direction of one port, and the formula
    that gave it as text."""

    direction_gbps: float
    formula: str


def ring_rates(gradient_bytes: int, members: int, step_s: float, protocol: str) -> JobRates:
    """Mean rate of a ring all-reduce in one direction of one port: `2 * (R - 1) / R * G` bytes per
    step (half reduce-scatter, half all-gather), times WIRE_BYTES_PER_DATA_BYTE.

    gradient_bytes: G, bytes of all gradients.
    members: R, ranks of the ring.
    step_s: seconds per step.
    protocol: key of WIRE_BYTES_PER_DATA_BYTE; another one raises KeyError.
    """
    sent = 2 * (members - 1) / members * gradient_bytes * WIRE_BYTES_PER_DATA_BYTE[protocol]
    formula = (
        f"2*({members}-1)/{members}*{gradient_bytes} bytes * "
        f"{WIRE_BYTES_PER_DATA_BYTE[protocol]:.4g} ({protocol}) / {step_s:g} s"
    )
    return JobRates(direction_gbps=sent * 8 / step_s / 1e9, formula=formula)


def check_line_rates(
    platform: Platform,
    session: MirrorSession,
    speeds: LineRates,
    figures: JobRates | None,
    roce_mtu: int,
) -> list[RuleResult]:
    """Compares the sum of the source rates with the monitor port, and both directions of one port.

    figures: mean rates of the job; None: not stated. Line rates decide, since an all-reduce runs
    at line rate in bursts; the job's figures can only turn a refusal into a warning.
    roce_mtu: payload bytes of a RoCE frame.
    """
    count = sum(len(source.direction.ways()) for source in session.sources)
    growth, grown = 1.0, ""
    if session.tunnel:
        inner = LINK_BYTES + ROCE_BYTES + roce_mtu
        added = 14 + IP_BYTES + platform.tunnel_bytes
        growth, grown = (inner + added) / inner, f" * ({inner}+{added})/{inner} (tunnel)"
    total = count * speeds.source_gbps * growth
    each = "direction" if count == 1 else "directions"
    added_up = f"{count} {each} * {speeds.source_gbps:g}{grown}"
    formula = SUM_OF_SOURCES(sum=added_up, gbps=_rounded(total))
    found = [_verdict("speed", formula, total, speeds, count * growth, figures)]
    if any(source.direction is MirrorDirection.BOTH for source in session.sources):
        formula = ONE_PORT_BOTH_WAYS(f"2 * {speeds.source_gbps:g}{grown}")
        needed = 2 * speeds.source_gbps * growth
        found.append(_verdict("both ways", formula, needed, speeds, 2 * growth, figures))
    return found


def _verdict(
    rule: str,
    formula: Finding,
    total: float,
    speeds: LineRates,
    times: float,
    figures: JobRates | None,
) -> RuleResult:
    monitor = _rounded(speeds.monitor_gbps, 6)
    if total <= speeds.monitor_gbps:
        return RuleResult(rule, RuleVerdict.OK, FITS_MONITOR(sum=formula, gbps=monitor))
    over = _rounded(total - speeds.monitor_gbps)
    if figures is None:
        why = OVER_MONITOR(sum=formula, gbps=monitor, over=over)
        return RuleResult(rule, RuleVerdict.REFUSE, why)
    mean = times * figures.direction_gbps
    fits = mean <= speeds.monitor_gbps
    why = (BURSTS_OVER_MONITOR if fits else MEAN_OVER_MONITOR)(
        sum=formula,
        gbps=monitor,
        over=over,
        times=_rounded(times),
        formula=figures.formula,
        mean=_rounded(mean),
    )
    return RuleResult(rule, RuleVerdict.WARN if fits else RuleVerdict.REFUSE, why)


def _rounded(value: float, digits: int = 4) -> float:
    """To as many digits as its sentence shows."""
    return float(f"{value:.{digits}g}")


def check_truncation(platform: Platform) -> RuleResult:
    """Reports whether the switch may truncate copies. No printed command does; only the switch can
    show whether another setting does."""
    return RuleResult("truncation", RuleVerdict.OK, NOT_TRUNCATED(platform.truncation))


def outer_bytes(platform: Platform, roce_mtu: int) -> tuple[int, str]:
    """(bytes of the tunnel's IP packet for a full RoCE frame, their sum as text). roce_mtu:
    payload bytes of a RoCE frame."""
    needed = IP_BYTES + platform.tunnel_bytes + LINK_BYTES + ROCE_BYTES + roce_mtu
    formula = (
        f"{IP_BYTES} (IP) + {platform.tunnel_bytes} (tunnel) + {LINK_BYTES} (Ethernet, VLAN) + "
        f"{ROCE_BYTES} (RoCE) + {roce_mtu}"
    )
    return needed, formula


def check_path_mtu(
    platform: Platform, session: MirrorSession, roce_mtu: int, path_bytes: int | None
) -> RuleResult | None:
    """Checks that a full RoCE frame fits the route of the tunnel; None: no tunnel.

    roce_mtu: payload bytes of a RoCE frame.
    path_bytes: smallest IP MTU of the route; None: unknown.
    """
    if session.tunnel is None:
        return None
    needed, formula = outer_bytes(platform, roce_mtu)
    if path_bytes is None:
        why = PATH_MTU_UNCHECKED(formula=formula, bytes=needed)
        return RuleResult("path MTU", RuleVerdict.WARN, why)
    fits = path_bytes >= needed
    made = PATH_MTU_FITS if fits else PATH_MTU_TOO_SMALL
    why = made(formula=formula, bytes=needed, path_bytes=path_bytes)
    return RuleResult("path MTU", RuleVerdict.OK if fits else RuleVerdict.REFUSE, why)


SYSFS = Path("/sys/class/net")


def check_monitor_speed(
    session: MirrorSession, gbps: Callable[[str], float | None], other_sources: Sequence[str] = ()
) -> None:
    """Checks that the monitor port is as fast as all its source ports together, since an
    all-reduce runs at line rate in bursts.

    gbps: line rate of a port in Gb/s; None: unknown (a virtual port), then nothing is refused.
    other_sources: ports that other sessions copy to the same monitor port, one entry per
    direction.

    Raises ConfigError with the sum of the rates.
    """
    if session.monitor is None or (room := gbps(session.monitor)) is None:
        return
    found = [(gbps(source.port), len(source.direction.ways())) for source in session.sources]
    found += [(gbps(port), 1) for port in other_sources]
    known = [(speed, ways) for speed, ways in found if speed is not None]
    total = sum(speed * ways for speed, ways in known)
    if total <= room:
        return
    parts = " + ".join(f"{speed:g}" if ways == 1 else f"2 * {speed:g}" for speed, ways in known)
    rates = {"gbps": _rounded(room, 6), "parts": parts, "total": _rounded(total, 6)}
    right = (
        MONITOR_SLOWER_WITH_OTHERS(others=list(other_sources), **rates)
        if other_sources
        else MONITOR_SLOWER(**rates)
    )
    raise ConfigError("--monitor", session.monitor, right)


def device_gbps(name: str) -> float | None:
    """Line rate of a physical network device in Gb/s; None: unknown or virtual (Linux
    Documentation/ABI/testing/sysfs-class-net: speed, in Mb/s, -1 or an error if unknown)."""
    place = SYSFS / name
    try:
        speed = int((place / "speed").read_text())
    except (OSError, ValueError):
        return None
    return speed / 1000 if speed > 0 and (place / "device").exists() else None
