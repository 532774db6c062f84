"""Switch operating systems: what is known of each, read from the head of its command template."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable
from enum import StrEnum
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal

import msgspec

from flowcheck.config.config_decoding import ConfigSection, convert
from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog.refused_mirror_sessions import (
    BUNDLE_AS_MONITOR,
    DID_YOU_MEAN,
    LEADING_ZERO,
    NOT_A_PORT_NAME,
    ONE_OF,
)
from flowcheck.findings.catalog.switch_changes import BAD_TEMPLATE, NO_TEMPLATES
from flowcheck.ops.switch.mirror_session import MirrorDirection

PACKAGE = Path(__file__).resolve().parents[2]
FOLDERS = (PACKAGE / "_switch_configs", PACKAGE.parent / "switch_configs")
"""In an installed wheel, and beside the package in a source tree."""


class Evidence(StrEnum):
    """Where a line was learned. None was ever tried on a device by us."""

    V = "V"
    """Read in the vendor's or project's own page or repository."""
    D = "D"
    """Read in a copy of the manual, or in another vendor's official document."""
    M = "M"
    """From memory: check it on your release first."""


EVIDENCE = {
    Evidence.V: "vendor's own page",
    Evidence.D: "copy of a manual",
    Evidence.M: "from memory: check on your release",
}


def weakest(letters: Iterable[Evidence]) -> Evidence:
    """M below D below V. Raises ValueError for none."""
    return max(letters, key=[*Evidence].index)


class DirectionWords(ConfigSection, frozen=True):
    """The platform's words for the switch's directions; `both` is missing where it has none."""

    rx: tuple[str, ...]
    tx: tuple[str, ...]
    both: tuple[str, ...] = ()


class Platform(ConfigSection, frozen=True):
    """What is known of a switch operating system beside its commands."""

    title: str
    models: str
    port: str
    """A pattern the whole name of a port matches; nothing else comes into a command."""
    example: str
    identity: Literal["name", "number"]
    """What its sessions are called by."""
    span: Evidence
    """The weakest of its set-up's lines, whatever the direction; `erspan` the same of a tunnel."""
    truncation: str
    """Its word for cutting copies."""
    absent: str
    """What the look before a set-up must find."""
    ways: DirectionWords
    written: str = r"\g<0>"
    """How a command writes the port that was matched (a template of `re`)."""
    free_names: tuple[Literal["port", "bundle"], ...] = ()
    """Names somebody chose, in which 01 is not 1; elsewhere it is, and 01 is refused."""
    bundle: str | None = None
    """A pattern of port channels, which can be watched but are no monitor."""
    numbers: tuple[int, int] | None = None
    """Smallest and largest session number, where they are known."""
    numbers_from: str = ""
    """Where that was learned."""
    one_way: Literal["split", "refuse"] | None = None
    """Where a session has one direction: another session is taken, or it cannot be said."""
    both_sessions: int | None = None
    """Sessions that can watch both directions; the next one is rx only."""
    prefix_collides: bool = False
    """The switch compares port names by their beginning."""
    bridge: bool = False
    erspan: Evidence | None = None
    erspan_port: bool = False
    """Its tunnel names the port it leaves by."""
    erspan_absent: str | None = None
    """What the look must find before a tunnel's set-up, where that is more than `absent`."""
    erspan_unsaid: tuple[Literal["src", "id", "ttl", "dscp"], ...] = ()
    """Words of a tunnel its commands have no place for."""
    tunnel_bytes: int = 16
    """Between outer IP header and mirrored frame: GRE with sequence 8 and ERSPAN II 8
    (draft-foschiano-erspan-03, 4.1 and 4.2), plain GRE 4 (RFC 2784, 2.1)."""
    forms: tuple[str, ...] = ("",)
    tried: str = "None of these commands was ever tried on a device by us."
    remarks: tuple[str, ...] = msgspec.field(name="notes", default=())
    """What to know before pasting, as the template says it."""
    span_remarks: tuple[str, ...] = msgspec.field(name="span_notes", default=())
    """Of a monitor port only."""
    erspan_remarks: tuple[str, ...] = msgspec.field(name="erspan_notes", default=())
    """Of a tunnel only."""

    def go_on_if(self, *, tunnel: bool) -> str:
        """What the look before a set-up must find."""
        return self.erspan_absent if tunnel and self.erspan_absent else self.absent

    def spelled(self, port: str, *, monitor: bool = False) -> str:
        """`port` as this platform's commands write it.

        Raises ConfigError for a name that no port of this platform has.
        """
        key = "--monitor" if monitor else "--source"
        if (written := _written(self.port, self.written, port)) is not None:
            self._one_spelling(key, port, "port")
            return written
        if self.bundle and re.fullmatch(self.bundle, port, re.ASCII):
            if monitor:
                raise ConfigError(key, port, BUNDLE_AS_MONITOR())
            self._one_spelling(key, port, "bundle")
            return port
        why = NOT_A_PORT_NAME(platform=self.title, example=self.example)
        raise ConfigError(key, port, why)

    def _one_spelling(self, key: str, port: str, kind: Literal["port", "bundle"]) -> None:
        if kind not in self.free_names and re.search(r"(?<![0-9])0[0-9]", port):
            raise ConfigError(key, port, LEADING_ZERO())

    def words(self, direction: MirrorDirection) -> tuple[str, ...]:
        """The platform's words for a direction."""
        ways: dict[MirrorDirection, tuple[str, ...]] = {
            MirrorDirection.RX: self.ways.rx,
            MirrorDirection.TX: self.ways.tx,
            MirrorDirection.BOTH: self.ways.both,
        }
        return ways[direction]


@lru_cache(maxsize=4096)
def _written(pattern: str, written: str, port: str) -> str | None:
    """A port by the pattern, as `written`; None: it is none. Kept, as a search for ports asks for
    the same few some 100,000 times, and expanding parses `written` again each time."""
    found = re.fullmatch(pattern, port, re.ASCII)
    return None if found is None else found.expand(written)


def folder() -> Path:
    """Where the templates are. Raises StateError where there are none."""
    for candidate in FOLDERS:
        if candidate.is_dir():
            return candidate
    looked = " and ".join(map(str, FOLDERS))
    raise StateError(NO_TEMPLATES(looked))


@cache
def all_platforms() -> dict[str, Platform]:
    """Every platform by its short name, in the alphabet's order."""
    return {path.stem: _read(path) for path in sorted(folder().glob("*.j2"))}


def platform_named(name: str) -> Platform:
    """Raises ConfigError, with the nearest name, where there is no such platform."""
    known = all_platforms()
    if name not in known:
        near = difflib.get_close_matches(name.lower(), known, n=1)
        near += [one for one in known if name and name.lower() in known[one].title.lower()]
        choices = tuple(known)
        why = DID_YOU_MEAN(nearest=near[0], choices=choices) if near else ONE_OF(choices)
        raise ConfigError("--os", name, why)
    return known[name]


def _read(path: Path) -> Platform:
    text = path.read_text()
    head = re.match(r"\{#\n(.*?)\n#\}", text, re.DOTALL)
    if head is None:
        raise StateError(BAD_TEMPLATE(path))
    return convert(tomllib.loads(head[1]), Platform)
