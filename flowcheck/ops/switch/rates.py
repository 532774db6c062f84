"""Whether copies fit: the monitor port's speed, and the size of frames on a tunnel's path."""

from __future__ import annotations

import msgspec

from flowcheck.ops.switch.platforms import Platform
from flowcheck.ops.switch.rules import Finding, Verdict, finding
from flowcheck.ops.switch.session import Direction, Session

ROCE_BYTES = 20 + 8 + 12 + 16 + 4 + 4
"""IPv4, UDP, BTH, RETH, immediate, ICRC (IB specification vol. 1, chapter 9 and annex A17)."""
LINK_BYTES = 14 + 4
"""Ethernet and one 802.1Q tag (IEEE 802.3, 802.1Q): a tunnel carries them, not the checksum."""
IP_BYTES = 20
PADDING = {"simple": 1.0, "ll": 2.0, "ll128": 128 / 120}
"""Bytes on the wire a byte of payload, by NCCL's protocol: LL's flags are half of each line,
LL128's 8 bytes of 128 (nccl src/include/device.h, NCCL_LL_LINE..., NCCL_LL128_DATAELEMS)."""


class Speeds(msgspec.Struct, frozen=True, kw_only=True):
    """Line rates in Gb/s, one for all sources, one for the monitor port or the tunnel's route."""

    source_gbps: float
    monitor_gbps: float


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The job's own mean over a step, in Gb/s for one direction of one port, and its formula."""

    direction_gbps: float
    formula: str


def of_ring(gradient_bytes: int, members: int, step_s: float, protocol: str) -> Figures:
    """What one direction of one port of a ring carries: `2 * (R - 1) / R * G` bytes a step (half
    reduce-scatter, half all-gather), times the protocol's padding."""
    sent = 2 * (members - 1) / members * gradient_bytes * PADDING[protocol]
    formula = (
        f"2*({members}-1)/{members}*{gradient_bytes} bytes * {PADDING[protocol]:.4g} ({protocol}) "
        f"/ {step_s:g} s"
    )
    return Figures(direction_gbps=sent * 8 / step_s / 1e9, formula=formula)


def speed(
    platform: Platform, session: Session, speeds: Speeds, figures: Figures | None, roce_mtu: int
) -> list[Finding]:
    """The sum of the sources against the monitor port, and both directions of one port.

    Line rates decide: an all-reduce runs at line rate in bursts. The job's figures may only turn a
    refusal into a warning.
    """
    count = sum(len(source.direction.ways()) for source in session.sources)
    growth, grown = 1.0, ""
    if session.tunnel:
        inner = LINK_BYTES + ROCE_BYTES + roce_mtu
        added = 14 + IP_BYTES + platform.tunnel_bytes
        growth, grown = (inner + added) / inner, f" * ({inner}+{added})/{inner} (tunnel)"
    total = count * speeds.source_gbps * growth
    each = "direction" if count == 1 else "directions"
    formula = f"{count} {each} * {speeds.source_gbps:g}{grown} = {total:.4g} Gb/s"
    found = [_verdict("speed", formula, total, speeds, count * growth, figures)]
    if any(source.direction is Direction.BOTH for source in session.sources):
        formula = f"rx and tx of one port: 2 * {speeds.source_gbps:g}{grown}"
        needed = 2 * speeds.source_gbps * growth
        found.append(_verdict("both ways", formula, needed, speeds, 2 * growth, figures))
    return found


def _verdict(
    rule: str, formula: str, total: float, speeds: Speeds, times: float, figures: Figures | None
) -> Finding:
    monitor = speeds.monitor_gbps
    if total <= monitor:
        return finding(rule, Verdict.OK, f"{formula}, of {monitor:g} Gb/s")
    why = f"{formula}, over {monitor:g} Gb/s by {total - monitor:.4g}"
    if figures is None:
        return finding(rule, Verdict.REFUSE, f"{why}: fewer directions or a faster monitor port")
    mean = times * figures.direction_gbps
    own = f"the job's mean is {times:.4g} * ({figures.formula}) = {mean:.4g} Gb/s"
    if mean > monitor:
        return finding(rule, Verdict.REFUSE, f"{why}, and {own}")
    own += ", which fits only as long as the switch's buffer holds each burst at line rate"
    return finding(rule, Verdict.WARN, f"{why}; {own}")


def truncation(platform: Platform) -> Finding:
    """Nothing we print cuts copies; whether something else does is told by the switch alone."""
    why = f"none is asked; on the switch, see that this stays unset: {platform.truncation}"
    return finding("truncation", Verdict.OK, why)


def outer_bytes(platform: Platform, roce_mtu: int) -> tuple[int, str]:
    """The IP packet a tunnel makes of a whole RoCE frame, bytes, and its parts."""
    needed = IP_BYTES + platform.tunnel_bytes + LINK_BYTES + ROCE_BYTES + roce_mtu
    formula = (
        f"{IP_BYTES} (IP) + {platform.tunnel_bytes} (tunnel) + {LINK_BYTES} (Ethernet, VLAN) + "
        f"{ROCE_BYTES} (RoCE) + {roce_mtu}"
    )
    return needed, formula


def path_mtu(
    platform: Platform, session: Session, roce_mtu: int, path_bytes: int | None
) -> Finding | None:
    """Whether a whole RoCE frame fits a tunnel's route; None without a tunnel."""
    if session.tunnel is None:
        return None
    needed, formula = outer_bytes(platform, roce_mtu)
    formula = f"{formula} = {needed} bytes"
    if path_bytes is None:
        return finding("path MTU", Verdict.WARN, f"needs {formula}: state --path-mtu to check it")
    if path_bytes < needed:
        return finding("path MTU", Verdict.REFUSE, f"{formula}, over {path_bytes}: frames are cut")
    return finding("path MTU", Verdict.OK, f"{formula}, of {path_bytes}")
