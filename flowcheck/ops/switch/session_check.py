"""`flowcheck switch check`: all rules on a mirror session before it is created."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.mirror_session_rules import (
    LINES_FROM_MEMORY,
    LINES_READ,
    MORE_LINES_FROM_MEMORY,
)
from flowcheck.findings.catalog.refused_mirror_sessions import (
    ABOVE_ZERO,
    FIGURES_TOGETHER,
    ONE_OF,
    RING_OF_ONE,
)
from flowcheck.ops.switch import existing_sessions, monitor_capacity, session_rules
from flowcheck.ops.switch.config_rendering import CommandPart, render
from flowcheck.ops.switch.mirror_session import MirrorSession
from flowcheck.ops.switch.session_rules import RuleResult, RuleVerdict
from flowcheck.ops.switch.switch_platforms import Evidence, platform_named, weakest

ROCE_MTUS = (256, 512, 1024, 2048, 4096)
"""Path MTUs of InfiniBand in bytes (IB specification vol. 1, 9.4.3.1)."""

MOST_LINES = 4
"""Lines with evidence M that a finding lists. A choice of layout."""


class MtuSizes(msgspec.Struct, frozen=True, kw_only=True):
    """roce_mtu: payload bytes of a RoCE frame. path_bytes: smallest IP MTU of the tunnel's route;
    None: unknown."""

    roce_mtu: int
    path_bytes: int | None


def check(
    os: str,
    session: MirrorSession,
    speeds: monitor_capacity.LineRates,
    figures: monitor_capacity.JobRates | None,
    sizes: MtuSizes,
    state_file: Path | None,
) -> list[RuleResult]:
    """Checks a mirror session; returns one result per rule.

    os: short name of the platform.
    state_file: TOML file with the existing sessions; None: not stated.

    Raises ConfigError for an invalid state file.
    """
    platform = platform_named(os)
    there = None if state_file is None else existing_sessions.read(state_file)
    found = session_rules.check_ports(platform, session)
    if exit_code(found) == 0:
        found.append(check_evidence(os, session))
        found += existing_sessions.check_overlaps(
            platform, session_rules.platform_sessions(platform, session), there
        )
    found += monitor_capacity.check_line_rates(platform, session, speeds, figures, sizes.roce_mtu)
    found.append(monitor_capacity.check_truncation(platform))
    fits = monitor_capacity.check_path_mtu(platform, session, sizes.roce_mtu, sizes.path_bytes)
    return [*found, fits] if fits else found


def check_evidence(os: str, session: MirrorSession) -> RuleResult:
    """Warns if set-up commands of this session have evidence M (from memory), and lists them."""
    lines = [
        line for line in render(os, session, [CommandPart.SETUP]) if line.part is CommandPart.SETUP
    ]
    letter = weakest(line.evidence for line in lines)
    what = "tunnel" if session.tunnel else "monitor port"
    if letter is not Evidence.M:
        return RuleResult("evidence", RuleVerdict.OK, LINES_READ(what=what, evidence=letter))
    told = dict.fromkeys(line.command.strip() for line in lines if line.evidence is letter)
    first = "; ".join([*told][:MOST_LINES])
    why = LINES_FROM_MEMORY(what=what, lines=first)
    if len(told) > MOST_LINES:
        why = MORE_LINES_FROM_MEMORY(what=what, lines=first, more=len(told) - MOST_LINES)
    return RuleResult("evidence", RuleVerdict.WARN, why)


def exit_code(findings: list[RuleResult]) -> int:
    """1 if a rule refuses the session, else 0."""
    return int(any(found.verdict is RuleVerdict.REFUSE for found in findings))


def line_rates(source_gbps: float, monitor_gbps: float) -> monitor_capacity.LineRates:
    """Line rates from the options, in Gb/s. Raises ConfigError for a rate that is not above 0."""
    _above("--source-gbps", source_gbps)
    _above("--monitor-gbps", monitor_gbps)
    return monitor_capacity.LineRates(source_gbps=source_gbps, monitor_gbps=monitor_gbps)


def mtu_sizes(roce_mtu: int, path_bytes: int | None) -> MtuSizes:
    """Sizes from the options, in bytes. Raises ConfigError for a `roce_mtu` that is not one of
    ROCE_MTUS."""
    if roce_mtu not in ROCE_MTUS:
        raise ConfigError("--roce-mtu", roce_mtu, ONE_OF(ROCE_MTUS))
    return MtuSizes(roce_mtu=roce_mtu, path_bytes=path_bytes)


def job_figures(
    measured_gbps: float | None,
    gradient_bytes: int | None,
    members: int | None,
    step_s: float | None,
    protocol: str,
) -> monitor_capacity.JobRates | None:
    """Mean rate of the job: as measured, or from the ring's formula (ring_rates in
    monitor_capacity.py); None: not stated.

    measured_gbps: measured mean, Gb/s.
    gradient_bytes, members, step_s, protocol: as in ring_rates.

    Raises ConfigError for an invalid value, or if only some of gradient_bytes, members and step_s
    are given.
    """
    if protocol not in monitor_capacity.WIRE_BYTES_PER_DATA_BYTE:
        raise ConfigError(
            "--protocol", protocol, ONE_OF(tuple(monitor_capacity.WIRE_BYTES_PER_DATA_BYTE))
        )
    if measured_gbps is not None:
        _above("--measured-gbps", measured_gbps)
        return monitor_capacity.JobRates(
            direction_gbps=measured_gbps, formula=f"{measured_gbps:g} measured"
        )
    if gradient_bytes is None and members is None and step_s is None:
        return None
    if gradient_bytes is None or members is None or step_s is None:
        raise ConfigError("--gradient-bytes", gradient_bytes, FIGURES_TOGETHER())
    _above("--gradient-bytes", gradient_bytes)
    _above("--step-s", step_s)
    if members < 2:
        raise ConfigError("--members", members, RING_OF_ONE())
    return monitor_capacity.ring_rates(gradient_bytes, members, step_s, protocol)


def _above(key: str, value: float) -> None:
    if not math.isfinite(value) or value <= 0:
        raise ConfigError(key, value, ABOVE_ZERO())
