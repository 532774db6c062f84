"""Rules on the ports, directions and session numbers of a mirror session, by platform."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

import msgspec

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.mirror_session_rules import (
    ANY_FREE_NAME,
    DIRECTIONS,
    MONITOR_NOT_WATCHED,
    MONITOR_WATCHED,
    NUMBER_BEYOND_GUESS,
    NUMBER_FITS,
    NUMBER_OUT_OF_RANGE,
    NUMBER_UNCHECKED,
    ONE_DIRECTION_ONLY,
    PORT_TWICE,
    PORTS_ONCE,
    TUNNEL_NOT_WATCHED,
    TWO_SESSIONS,
)
from flowcheck.findings.finding import Finding
from flowcheck.ops.switch.mirror_session import MirrorDirection, MirrorSession
from flowcheck.ops.switch.switch_platforms import Platform

SESSION_NUMBER_MAX = 64
"""Largest accepted session number where the platform's limit is unknown: no known switch has more
sessions."""


class RuleVerdict(StrEnum):
    """Verdict of a rule on a mirror session."""

    OK = "ok"
    WARN = "warn"
    REFUSE = "refuse"


class RuleResult(msgspec.Struct, frozen=True):
    """Result of one rule on a mirror session: its name, verdict and reason."""

    rule: str
    verdict: RuleVerdict
    why: Finding
    """Reason, with the formula and its numbers."""


def check_ports(platform: Platform, session: MirrorSession) -> list[RuleResult]:
    """Checks ports, monitor port, directions and session number against the platform's limits;
    returns one result per rule."""
    return [
        _twice(session),
        _monitor_apart(session),
        _directions(platform, session),
        _numbers(platform, session),
    ]


def platform_sessions(platform: Platform, session: MirrorSession) -> list[MirrorSession]:
    """The sessions that the switch needs for `session`: one, or two (rx and tx) on platforms whose
    sessions have one direction.

    Raises ConfigError where a rule of check_ports() refuses the session.
    """
    for found in check_ports(platform, session):
        if found.verdict is RuleVerdict.REFUSE:
            key, value = "--source", ", ".join(map(str, session.sources))
            if found.rule == "session":
                key, value = "--session", str(session.number)
            raise ConfigError(key, value, found.why)
    if platform.one_way != "split":
        return [session]
    split: list[MirrorSession] = []
    for way in (MirrorDirection.RX, MirrorDirection.TX):
        sources = tuple(
            msgspec.structs.replace(source, direction=way)
            for source in session.sources
            if way in source.direction.ways()
        )
        if sources:
            number = None if session.number is None else session.number + len(split)
            split.append(msgspec.structs.replace(session, sources=sources, number=number))
    return split


def _twice(session: MirrorSession) -> RuleResult:
    counts = Counter(source.port for source in session.sources)
    again = [port for port, count in counts.items() if count > 1]
    if again:
        return RuleResult("ports", RuleVerdict.REFUSE, PORT_TWICE(again))
    return RuleResult("ports", RuleVerdict.OK, PORTS_ONCE(len(counts)))


def _monitor_apart(session: MirrorSession) -> RuleResult:
    if session.monitor in {source.port for source in session.sources}:
        return RuleResult("monitor", RuleVerdict.REFUSE, MONITOR_WATCHED(session.monitor))
    why = MONITOR_NOT_WATCHED(session.monitor) if session.monitor else TUNNEL_NOT_WATCHED()
    return RuleResult("monitor", RuleVerdict.OK, why)


def _directions(platform: Platform, session: MirrorSession) -> RuleResult:
    seen = sorted({source.direction for source in session.sources})
    ways = {way for direction in seen for way in direction.ways()}
    if platform.one_way == "refuse" and len(seen) > 1:
        why = ONE_DIRECTION_ONLY(platform=platform.title, directions=seen)
        return RuleResult("direction", RuleVerdict.REFUSE, why)
    if platform.one_way == "split" and len(ways) > 1:
        return RuleResult("direction", RuleVerdict.OK, TWO_SESSIONS())
    return RuleResult("direction", RuleVerdict.OK, DIRECTIONS(seen))


def _numbers(platform: Platform, session: MirrorSession) -> RuleResult:
    if session.number is None:
        return RuleResult("session", RuleVerdict.OK, ANY_FREE_NAME(session.name))
    ways = {way for source in session.sources for way in source.direction.ways()}
    last = session.number + (1 if platform.one_way == "split" and len(ways) > 1 else 0)
    taken = range(session.number, last + 1)
    if platform.numbers is None:
        if not 1 <= session.number <= last <= SESSION_NUMBER_MAX:
            why = NUMBER_BEYOND_GUESS(numbers=taken, most=SESSION_NUMBER_MAX)
            return RuleResult("session", RuleVerdict.REFUSE, why)
        return RuleResult("session", RuleVerdict.WARN, NUMBER_UNCHECKED(taken))
    least, most = platform.numbers
    if not least <= session.number <= last <= most:
        why = NUMBER_OUT_OF_RANGE(numbers=taken, platform=platform.title, least=least, most=most)
        return RuleResult("session", RuleVerdict.REFUSE, why)
    why = NUMBER_FITS(numbers=taken, least=least, most=most)
    return RuleResult("session", RuleVerdict.OK, why)
