"""Mirror sessions already on the switch, as the operator states them in TOML, and overlaps with
them."""

from __future__ import annotations

import tomllib
from pathlib import Path

from flowcheck.config.config_decoding import ConfigSection, convert
from flowcheck.errors import ConfigError, naming_file
from flowcheck.ops.switch.mirror_session import MirrorDirection, MirrorSession, MirrorSource
from flowcheck.ops.switch.session_parser import parse_source
from flowcheck.ops.switch.session_rules import RuleFinding, RuleVerdict, finding
from flowcheck.ops.switch.switch_platforms import Platform


class ExistingSession(ConfigSection, frozen=True):
    """One `[[session]]`: what it is called, what it watches, where its copies go."""

    session: str | int
    sources: tuple[str, ...]
    monitor: str | None = None


class ExistingSessionsFile(ConfigSection, frozen=True):
    """The file."""

    session: tuple[ExistingSession, ...] = ()


def read(path: Path) -> tuple[ExistingSession, ...]:
    """Sessions stated in `path`. Raises ConfigError for what is not `[[session]]` tables."""
    with naming_file(path):
        content = path.read_bytes()
    try:
        return convert(tomllib.loads(content.decode()), ExistingSessionsFile).session
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError("--state", str(path), f"is no TOML: {error}") from error


def check_overlaps(
    platform: Platform, planned: list[MirrorSession], held: tuple[ExistingSession, ...] | None
) -> list[RuleFinding]:
    """What is asked, against what is there."""
    if held is None:
        why = "not looked at: state what the switch holds as [[session]] tables, with --state"
        return [finding("overlap", RuleVerdict.WARN, why)]
    found = [_clash(platform, one, other) for one in planned for other in held]
    if platform.both_sessions is not None:
        found.append(_both(platform, planned, held))
    wrong = [why for why in found if why]
    if wrong:
        return [finding("overlap", RuleVerdict.REFUSE, why) for why in wrong]
    return [finding("overlap", RuleVerdict.OK, f"none with {len(held)} that are there")]


def _sources(platform: Platform, held: ExistingSession) -> list[MirrorSource]:
    return [parse_source(platform, word) for word in held.sources]


def _clash(platform: Platform, one: MirrorSession, other: ExistingSession) -> str | None:
    called = str(one.number) if platform.identity == "number" else one.name
    there = f"session {other.session}"
    sources = _sources(platform, other)
    monitor = None if other.monitor is None else platform.spelled(other.monitor, monitor=True)
    if str(other.session) == called:
        return f"{there} is there already and would be changed: take a free one"
    if monitor is not None and monitor == one.monitor:
        return f"{there} sends its copies to {monitor} too: their sum would have to fit it"
    if one.monitor in {source.port for source in sources}:
        return f"{there} watches {one.monitor}: copies would be copied again"
    if monitor in {source.port for source in one.sources}:
        return f"{monitor} is the monitor port of {there}: its copies would be copied again"
    for source in one.sources:
        for theirs in sources:
            ways = set(source.direction.ways()) & set(theirs.direction.ways())
            if source.port == theirs.port and ways:
                return f"{there} watches {theirs} already: the same packets twice"
            begins = theirs.port.startswith(source.port) or source.port.startswith(theirs.port)
            if platform.prefix_collides and begins and ways:
                return (
                    f"{source.port} and {theirs.port} of {there}: {platform.title} compares port "
                    "names by their beginning and would refuse"
                )
    return None


def _both(
    platform: Platform, planned: list[MirrorSession], held: tuple[ExistingSession, ...]
) -> str | None:
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
        return f"{len(full)} sessions watch both directions: the next one is rx only"
    return None
