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
"""Folders of the command templates: in an installed wheel, and in a source tree."""


class Evidence(StrEnum):
    """Where a command of a template comes from. None was tested on a device by the project."""

    V = "V"
    """Verified in the vendor's or project's own documentation or repository."""
    D = "D"
    """Documented in a copy of the manual, or in another vendor's official document."""
    M = "M"
    """From memory: check it on your release before use."""


EVIDENCE = {
    Evidence.V: "vendor's own page",
    Evidence.D: "copy of a manual",
    Evidence.M: "from memory: check on your release",
}


def weakest(letters: Iterable[Evidence]) -> Evidence:
    """The weakest of the letters (M below D below V). Raises ValueError for no letters."""
    return max(letters, key=[*Evidence].index)


class DirectionWords(ConfigSection, frozen=True):
    """The platform's command words for each direction; `both` is None where it has no such word."""

    rx: tuple[str, ...]
    tx: tuple[str, ...]
    both: tuple[str, ...] = ()


class Platform(ConfigSection, frozen=True):
    """A switch operating system, as the head of its command template describes it."""

    title: str
    models: str
    port: str
    """Regular expression for a full port name. Only names that match are put into commands."""
    example: str
    identity: Literal["name", "number"]
    """Whether sessions are identified by name or by number."""
    span: Evidence
    """Weakest evidence among the set-up commands with a monitor port; `erspan` is the same for a
    tunnel."""
    truncation: str
    """The platform's term for truncated copies."""
    absent: str
    """What the output of the look commands must show before the set-up is pasted."""
    ways: DirectionWords
    written: str = r"\g<0>"
    """How commands write a matched port name (replacement template of `re`)."""
    free_names: tuple[Literal["port", "bundle"], ...] = ()
    """Kinds of names that users choose freely, where 01 and 1 differ. In all other names 01 is
    refused."""
    bundle: str | None = None
    """Regular expression for port channels, which can be source but not monitor ports; None: the
    template does not support them."""
    numbers: tuple[int, int] | None = None
    """(smallest, largest) session number; None: unknown."""
    numbers_from: str = ""
    """Source of `numbers`."""
    one_way: Literal["split", "refuse"] | None = None
    """For sessions with one direction: "split" uses a second session for the other one, "refuse"
    cannot mirror both; None: a session can have both directions."""
    both_sessions: int | None = None
    """Number of sessions that can mirror both directions; further ones mirror rx only. None: no
    such limit is known."""
    prefix_collides: bool = False
    """True: the switch matches port names by their prefix."""
    bridge: bool = False
    erspan: Evidence | None = None
    erspan_port: bool = False
    """True: commands of a tunnel name the port through which it leaves."""
    erspan_absent: str | None = None
    """What the look commands must show before a tunnel's set-up, where that differs from
    `absent`."""
    erspan_unsaid: tuple[Literal["src", "id", "ttl", "dscp"], ...] = ()
    """Tunnel options that the platform's commands cannot set."""
    tunnel_bytes: int = 16
    """Bytes between the tunnel's IP header and the mirrored frame: GRE with sequence number 8 and
    ERSPAN II 8 (draft-foschiano-erspan-03, 4.1 and 4.2); plain GRE 4 (RFC 2784, 2.1)."""
    forms: tuple[str, ...] = ("",)
    tried: str = "None of these commands was ever tried on a device by us."
    remarks: tuple[str, ...] = msgspec.field(name="notes", default=())
    """Notes that are printed before the commands, from the template."""
    span_remarks: tuple[str, ...] = msgspec.field(name="span_notes", default=())
    """Further notes for a session with a monitor port."""
    erspan_remarks: tuple[str, ...] = msgspec.field(name="erspan_notes", default=())
    """Further notes for a tunnel."""

    def go_on_if(self, *, tunnel: bool) -> str:
        """What the output of the look commands must show before the set-up is pasted."""
        return self.erspan_absent if tunnel and self.erspan_absent else self.absent

    def canonical_port(self, port: str, *, monitor: bool = False) -> str:
        """`port` as this platform's commands write it. monitor: it is to be the monitor port.
        Raises ConfigError for a text that is not a port name of this platform."""
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
        """The platform's command words for a direction."""
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
    """The folder with the command templates. Raises StateError where there is none."""
    for candidate in FOLDERS:
        if candidate.is_dir():
            return candidate
    looked = " and ".join(map(str, FOLDERS))
    raise StateError(NO_TEMPLATES(looked))


@cache
def all_platforms() -> dict[str, Platform]:
    """All platforms by short name, in alphabetical order."""
    return {path.stem: _read(path) for path in sorted(folder().glob("*.j2"))}


def platform_named(name: str) -> Platform:
    """The platform with this short name. Raises ConfigError with the most similar name where there
    is none."""
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
