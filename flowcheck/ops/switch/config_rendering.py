"""Renders a mirror session into the commands of a switch platform, each with its evidence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog.refused_mirror_sessions import FORM_REFUSED, NO_FORMS
from flowcheck.findings.catalog.switch_changes import BAD_TEMPLATE_LINE
from flowcheck.ops.switch.mirror_session import MirrorDirection, MirrorSession, MirrorSource
from flowcheck.ops.switch.session_rules import platform_sessions
from flowcheck.ops.switch.switch_platforms import Evidence, Platform, folder, platform_named

if TYPE_CHECKING:
    from jinja2 import Environment

MARKED = re.compile(r"([VDM])\| ?([^\x00-\x1f\x7f-\x9f\u2028\u2029]*\S)\s?")
"""A line of a template: letter of its evidence, "|", command."""


class CommandPart(StrEnum):
    """What a group of commands is for. LOOK comes before SETUP; SAVE is never part of another
    group."""

    LOOK = "look"
    SETUP = "setup"
    CHECK = "check"
    SAVE = "save"
    REMOVE = "remove"


class RenderedLine(msgspec.Struct, frozen=True, kw_only=True):
    """One command line to paste, and how well it is known."""

    part: CommandPart
    command: str
    evidence: Evidence


def render(
    os: str, session: MirrorSession, parts: Iterable[CommandPart], form: str | None = None
) -> list[RenderedLine]:
    """The commands for `session` in these parts, in the order in which the switch needs them.

    os: short name of the platform.
    form: variant of the commands; None: the platform's first one.

    Raises ConfigError where the platform cannot hold the session or does not have this form.
    """
    platform = platform_named(os)
    template = _environment().get_template(f"{os}.j2")
    sessions = platform_sessions(platform, session)
    context = template.new_context(
        {
            "session": session,
            "sessions": sessions,
            "form": _form(platform, form),
            "ways": {way: platform.words(way) for way in MirrorDirection},
        }
    )
    return [
        _line(os, part, text)
        for part in paste_order(parts)
        for text in "".join(template.blocks[part](context)).splitlines()
        if text
    ]


def paste_order(parts: Iterable[CommandPart]) -> list[CommandPart]:
    """The parts in the order in which they are pasted. SETUP includes LOOK. SAVE follows each part
    that changes something, so it comes twice if both SETUP and REMOVE are requested."""
    wanted = set(parts)
    found: list[CommandPart] = []
    for part in (CommandPart.LOOK, CommandPart.SETUP, CommandPart.CHECK):
        if part in wanted or (part is CommandPart.LOOK and CommandPart.SETUP in wanted):
            found.append(part)
    if CommandPart.SAVE in wanted and (
        CommandPart.SETUP in wanted or CommandPart.REMOVE not in wanted
    ):
        found.append(CommandPart.SAVE)
    if CommandPart.REMOVE in wanted:
        found += (
            [CommandPart.REMOVE, CommandPart.SAVE]
            if CommandPart.SAVE in wanted
            else [CommandPart.REMOVE]
        )
    return found


def _form(platform: Platform, form: str | None) -> str:
    if form is None:
        return platform.forms[0]
    if form not in platform.forms or not form:
        known = tuple(filter(None, platform.forms))
        why = FORM_REFUSED(platform=platform.title, forms=known) if known else None
        raise ConfigError("--form", form, why or NO_FORMS(platform.title))
    return form


def _line(os: str, part: CommandPart, text: str) -> RenderedLine:
    found = MARKED.fullmatch(text)
    if found is None:
        raise StateError(BAD_TEMPLATE_LINE(os=os, part=part, line=repr(text)))
    return RenderedLine(part=part, command=found[2], evidence=Evidence(found[1]))


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    def selected(
        sources: Sequence[MirrorSource], ways: dict[MirrorDirection, tuple[str, ...]]
    ) -> str:
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
        "runs": port_ranges,
        "selected": selected,
        "hex": lambda name: str(name).encode().hex(),
    }
    return environment


def by_direction(sources: Sequence[MirrorSource]) -> list[tuple[MirrorDirection, list[str]]]:
    """(direction, ports) for each direction in use, ports in the order in which they were given."""
    groups: dict[MirrorDirection, list[str]] = {}
    for source in sources:
        groups.setdefault(source.direction, []).append(source.port)
    return list(groups.items())


def port_ranges(ports: Sequence[str]) -> list[str]:
    """Ports with consecutive numbers joined as ranges: `ethernet 1/1-2`."""
    found: list[tuple[str, int, int]] = []
    for port in ports:
        stem, digits = re.fullmatch(r"(.*?)(\d+)", port, re.ASCII).groups()  # type: ignore[union-attr]
        if found and found[-1][0] == stem and found[-1][2] + 1 == int(digits):
            found[-1] = (stem, found[-1][1], int(digits))
        else:
            found.append((stem, int(digits), int(digits)))
    return [f"{stem}{first}" + (f"-{last}" if last > first else "") for stem, first, last in found]
