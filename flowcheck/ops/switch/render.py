"""A session as commands that can be pasted, each with its evidence beside it, never inside."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from flowcheck.errors import ConfigError, StateError
from flowcheck.ops.switch.platforms import Evidence, Platform, folder, named
from flowcheck.ops.switch.rules import planned
from flowcheck.ops.switch.session import Direction, Session, Source

if TYPE_CHECKING:
    from jinja2 import Environment

MARKED = re.compile(r"([VDM])\| ?([^\x00-\x1f\x7f-\x9f\u2028\u2029]*\S)\s?")
"""A line of a template: its evidence, a bar, the command."""


class Part(StrEnum):
    """What commands are for. `look` goes before a set-up; `save` is never in one."""

    LOOK = "look"
    SETUP = "setup"
    CHECK = "check"
    SAVE = "save"
    REMOVE = "remove"


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line to paste."""

    part: Part
    command: str
    evidence: Evidence


def render(os: str, session: Session, parts: Iterable[Part], form: str | None = None) -> list[Line]:
    """The commands of these parts for `session`, `in_order`.

    Raises ConfigError where the platform cannot hold the session or has no such form.
    """
    platform = named(os)
    template = _environment().get_template(f"{os}.j2")
    sessions = planned(platform, session)
    context = template.new_context(
        {
            "session": session,
            "sessions": sessions,
            "form": _form(platform, form),
            "ways": {way: platform.words(way) for way in Direction},
        }
    )
    return [
        _line(os, part, text)
        for part in in_order(parts)
        for text in "".join(template.blocks[part](context)).splitlines()
        if text
    ]


def in_order(parts: Iterable[Part]) -> list[Part]:
    """As they are pasted: `setup` begins with its look, and `save` is behind each part that
    changes something, so it comes twice where both set-up and removal are asked."""
    wanted = set(parts)
    found: list[Part] = []
    for part in (Part.LOOK, Part.SETUP, Part.CHECK):
        if part in wanted or (part is Part.LOOK and Part.SETUP in wanted):
            found.append(part)
    if Part.SAVE in wanted and (Part.SETUP in wanted or Part.REMOVE not in wanted):
        found.append(Part.SAVE)
    if Part.REMOVE in wanted:
        found += [Part.REMOVE, Part.SAVE] if Part.SAVE in wanted else [Part.REMOVE]
    return found


def _form(platform: Platform, form: str | None) -> str:
    if form is None:
        return platform.forms[0]
    if form not in platform.forms or not form:
        known = ", ".join(platform.forms) or "none: leave it out"
        raise ConfigError("--form", form, f"{platform.title} has {known}")
    return form


def _line(os: str, part: Part, text: str) -> Line:
    found = MARKED.fullmatch(text)
    if found is None:
        raise StateError(f"{os}.j2: {part}: a line without its evidence, or not of words: {text!r}")
    return Line(part=part, command=found[2], evidence=Evidence(found[1]))


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    def selected(sources: Sequence[Source], ways: dict[Direction, tuple[str, ...]]) -> str:
        """Columns of a mirror of Open vSwitch, each with the local names of its ports."""
        columns: dict[str, list[str]] = {}
        for place, source in enumerate(sources, start=1):
            for way in ways[source.direction]:
                columns.setdefault(way, []).append(f"@s{place}")
        return " ".join(f"{way}={','.join(names)}" for way, names in columns.items())

    environment = Environment(
        loader=FileSystemLoader(folder()),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    environment.filters |= {
        "by_direction": by_direction,
        "runs": runs,
        "selected": selected,
        "hex": lambda name: str(name).encode().hex(),
    }
    return environment


def by_direction(sources: Sequence[Source]) -> list[tuple[Direction, list[str]]]:
    """Ports of each direction, in the order asked."""
    groups: dict[Direction, list[str]] = {}
    for source in sources:
        groups.setdefault(source.direction, []).append(source.port)
    return list(groups.items())


def runs(ports: Sequence[str]) -> list[str]:
    """Neighbours that follow each other as one range: `ethernet 1/1-2`."""
    found: list[tuple[str, int, int]] = []
    for port in ports:
        stem, digits = re.fullmatch(r"(.*?)(\d+)", port, re.ASCII).groups()  # type: ignore[union-attr]
        if found and found[-1][0] == stem and found[-1][2] + 1 == int(digits):
            found[-1] = (stem, found[-1][1], int(digits))
        else:
            found.append((stem, int(digits), int(digits)))
    return [f"{stem}{first}" + (f"-{last}" if last > first else "") for stem, first, last in found]
