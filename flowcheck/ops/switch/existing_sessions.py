"""Mirror sessions already on the switch, as the operator states them in TOML, and overlaps with
them."""

from __future__ import annotations

import tomllib
from pathlib import Path

from flowcheck.config.config_decoding import ConfigSection, convert
from flowcheck.errors import ConfigError, naming_file
from flowcheck.findings.catalog.mirror_session_rules import (
    MONITOR_SHARED,
    MONITOR_WATCHED_BY,
    NO_OVERLAP,
    ONLY_RX_LEFT,
    OVERLAP_UNCHECKED,
    PORT_NAMES_COLLIDE,
    SESSION_EXISTS,
    SOURCE_IS_MONITOR_OF,
    SOURCE_WATCHED_BY,
)
from flowcheck.findings.catalog.refused_mirror_sessions import NOT_TOML
from flowcheck.findings.finding import Finding
from flowcheck.ops.switch.mirror_session import MirrorDirection, MirrorSession, MirrorSource
from flowcheck.ops.switch.mirror_session_options import parse_source
from flowcheck.ops.switch.session_rules import RuleResult, RuleVerdict
from flowcheck.ops.switch.switch_platforms import Platform
from flowcheck.untrusted_text import decode_text


class ExistingSession(ConfigSection, frozen=True):
    """One `[[session]]` table: name or number, source ports, monitor port."""

    session: str | int
    sources: tuple[str, ...]
    monitor: str | None = None


class ExistingSessionsFile(ConfigSection, frozen=True):
    """The TOML file with all existing sessions."""

    session: tuple[ExistingSession, ...] = ()


def read(path: Path) -> tuple[ExistingSession, ...]:
    """The sessions in the TOML file `path`. Raises ConfigError if it is not TOML or has anything
    but `[[session]]` tables."""
    with naming_file(path):
        content = path.read_bytes()
    text = decode_text("--state", path, content, ending=".toml")
    try:
        return convert(tomllib.loads(text), ExistingSessionsFile).session
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError("--state", str(path), NOT_TOML(str(error))) from error


def check_overlaps(
    platform: Platform, planned: list[MirrorSession], held: tuple[ExistingSession, ...] | None
) -> list[RuleResult]:
    """Checks the planned sessions against the existing ones. held: the existing sessions; None:
    not stated, which gives a warning."""
    if held is None:
        return [RuleResult("overlap", RuleVerdict.WARN, OVERLAP_UNCHECKED())]
    found = [_clash(platform, one, other) for one in planned for other in held]
    if platform.both_sessions is not None:
        found.append(_both(platform, planned, held))
    wrong = [why for why in found if why is not None]
    if wrong:
        return [RuleResult("overlap", RuleVerdict.REFUSE, why) for why in wrong]
    return [RuleResult("overlap", RuleVerdict.OK, NO_OVERLAP(len(held)))]


def _sources(platform: Platform, held: ExistingSession) -> list[MirrorSource]:
    return [parse_source(platform, word) for word in held.sources]


def _clash(platform: Platform, one: MirrorSession, other: ExistingSession) -> Finding | None:
    called = str(one.number) if platform.identity == "number" else one.name
    there = str(other.session)
    sources = _sources(platform, other)
    monitor = (
        None if other.monitor is None else platform.canonical_port(other.monitor, monitor=True)
    )
    if there == called:
        return SESSION_EXISTS(there)
    if monitor is not None and monitor == one.monitor:
        return MONITOR_SHARED(session=there, port=monitor)
    if one.monitor in {source.port for source in sources}:
        return MONITOR_WATCHED_BY(session=there, port=one.monitor)
    if monitor in {source.port for source in one.sources}:
        return SOURCE_IS_MONITOR_OF(port=monitor, session=there)
    for source in one.sources:
        for theirs in sources:
            ways = set(source.direction.ways()) & set(theirs.direction.ways())
            if source.port == theirs.port and ways:
                return SOURCE_WATCHED_BY(session=there, source=str(theirs))
            begins = theirs.port.startswith(source.port) or source.port.startswith(theirs.port)
            if platform.prefix_collides and begins and ways:
                return PORT_NAMES_COLLIDE(
                    port=source.port, other=theirs.port, session=there, platform=platform.title
                )
    return None


def _both(
    platform: Platform, planned: list[MirrorSession], held: tuple[ExistingSession, ...]
) -> Finding | None:
    full = [
        other
        for other in held
        if {way for one in _sources(platform, other) for way in one.direction.ways()}
        == set(MirrorDirection) - {MirrorDirection.BOTH}
    ]
    sends = any(
        source.direction is not MirrorDirection.RX for one in planned for source in one.sources
    )
    if platform.both_sessions is not None and len(full) >= platform.both_sessions and sends:
        return ONLY_RX_LEFT(len(full))
    return None
