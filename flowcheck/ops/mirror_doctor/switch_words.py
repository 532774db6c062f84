"""What the settings of a mirror session are called on a switch system, and how to look at them."""

from __future__ import annotations

import re

import msgspec

from flowcheck.findings.catalog.mirror_port import BOTH_WORD, RX_WORD, SWITCH_WORDS, TX_WORD
from flowcheck.findings.finding import Finding
from flowcheck.ops.switch.config_rendering import CommandPart, render
from flowcheck.ops.switch.mirror_session import MirrorSession, MirrorSource
from flowcheck.ops.switch.switch_platforms import Platform, platform_named

LAST_NUMBER = re.compile(r"\d+(?!.*\d)")
SESSION_NAME, BRIDGE = "flowcheck", "br0"
"""What `flowcheck switch render` calls a session by default, and a bridge in its help."""


class SwitchWords(msgspec.Struct, frozen=True, kw_only=True):
    """For the report."""

    os: str
    found: Finding
    commands: tuple[str, ...]
    """Commands of the switch that show its mirror sessions."""


def switch_words(os: str) -> SwitchWords:
    """The words of a system. Raises ConfigError for an unknown one."""
    platform: Platform = platform_named(os)
    directions = [
        RX_WORD(" + ".join(platform.ways.rx)),
        TX_WORD(" + ".join(platform.ways.tx)),
        *([BOTH_WORD(" + ".join(platform.ways.both))] if platform.ways.both else []),
    ]
    found = SWITCH_WORDS(
        title=platform.title, truncation=platform.truncation, directions=directions
    )
    return SwitchWords(os=os, found=found, commands=_commands(platform, os))


def _commands(platform: Platform, os: str) -> tuple[str, ...]:
    """Those that show its sessions, as the templates of switch_configs have them; commands about
    one port are left out, since none is named."""
    other = LAST_NUMBER.sub(lambda number: str(int(number[0]) + 1), platform.example)
    monitor = platform.canonical_port(other, monitor=True)
    session = MirrorSession(
        name=SESSION_NAME,
        number=max(1, platform.numbers[0]) if platform.numbers else 1,
        sources=(MirrorSource(port=platform.canonical_port(platform.example)),),
        monitor=monitor,
        bridge=BRIDGE if platform.bridge else None,
    )
    lines = render(os, session, (CommandPart.LOOK, CommandPart.CHECK))
    about_port = (monitor, other)
    shown = (one.command for one in lines if not any(port in one.command for port in about_port))
    return tuple(dict.fromkeys(shown))
