"""Rules on the ports, directions and session numbers of a mirror session, by platform."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

import msgspec

from flowcheck.errors import ConfigError
from flowcheck.ops.switch.mirror_session import MirrorDirection, MirrorSession
from flowcheck.ops.switch.switch_platforms import Platform

SANE = 64
"""A session's number where no limit is known: no switch read of has so many."""


class RuleVerdict(StrEnum):
    """What a rule says."""

    OK = "ok"
    WARN = "warn"
    REFUSE = "refuse"


class RuleFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One rule, what it says, and why: the formula with its numbers."""

    rule: str
    verdict: RuleVerdict
    why: str


def finding(rule: str, verdict: RuleVerdict, why: str) -> RuleFinding:
    """A line of a report."""
    return RuleFinding(rule=rule, verdict=verdict, why=why)


def check_ports(platform: Platform, session: MirrorSession) -> list[RuleFinding]:
    """The rules on ports, directions and the platform's limits."""
    return [
        _twice(session),
        _monitor_apart(session),
        _directions(platform, session),
        _numbers(platform, session),
    ]


def platform_sessions(platform: Platform, session: MirrorSession) -> list[MirrorSession]:
    """The sessions of the platform that hold `session`: one, or two where each has one direction.

    Raises ConfigError where a rule on ports refuses it.
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


def _twice(session: MirrorSession) -> RuleFinding:
    counts = Counter(source.port for source in session.sources)
    again = [port for port, count in counts.items() if count > 1]
    if again:
        why = f"{', '.join(again)} is named more than once: say each port once, with :both for both"
        return finding("ports", RuleVerdict.REFUSE, why)
    return finding("ports", RuleVerdict.OK, f"{len(counts)} watched, each once")


def _monitor_apart(session: MirrorSession) -> RuleFinding:
    if session.monitor in {source.port for source in session.sources}:
        why = f"{session.monitor} is watched too: its own copies would be copied again"
        return finding("monitor", RuleVerdict.REFUSE, why)
    return finding("monitor", RuleVerdict.OK, f"{session.monitor or 'a tunnel'} is not watched")


def _directions(platform: Platform, session: MirrorSession) -> RuleFinding:
    seen = sorted({source.direction for source in session.sources})
    ways = {way for direction in seen for way in direction.ways()}
    if platform.one_way == "refuse" and len(seen) > 1:
        why = (
            f"{platform.title} has one direction word for all ports of a session, and a monitor "
            f"port is in one session only; asked were {', '.join(seen)}: two monitor ports, "
            "or one word"
        )
        return finding("direction", RuleVerdict.REFUSE, why)
    if platform.one_way == "split" and len(ways) > 1:
        why = "one direction a session: two sessions, this number rx and the next tx"
        return finding("direction", RuleVerdict.OK, why)
    why = f"{', '.join(seen)}, as the switch sees it: rx is what the server sends"
    return finding("direction", RuleVerdict.OK, why)


def _numbers(platform: Platform, session: MirrorSession) -> RuleFinding:
    if session.number is None:
        return finding("session", RuleVerdict.OK, f"called {session.name}; any name that is free")
    ways = {way for source in session.sources for way in source.direction.ways()}
    last = session.number + (1 if platform.one_way == "split" and len(ways) > 1 else 0)
    taken = f"{session.number}" if last == session.number else f"{session.number} and {last}"
    if platform.numbers is None:
        if not 1 <= session.number <= last <= SANE:
            why = f"takes {taken}; the platform's limits are unknown, 1 to {SANE} is taken here"
            return finding("session", RuleVerdict.REFUSE, why)
        return finding(
            "session", RuleVerdict.WARN, f"takes {taken}; the platform's limits are unknown"
        )
    least, most = platform.numbers
    if not least <= session.number <= last <= most:
        why = f"takes {taken}; {platform.title} has {least} to {most}"
        return finding("session", RuleVerdict.REFUSE, why)
    return finding("session", RuleVerdict.OK, f"takes {taken} of {least} to {most}")
