"""Why a file is not read as a capture: what lies there instead, and what to do about it."""

from __future__ import annotations

import os
from pathlib import Path

from flowcheck.checkpoint_signatures import checkpoint_kind
from flowcheck.findings.catalog import capture_file_problems as problems
from flowcheck.findings.catalog import capture_file_reasons as reasons
from flowcheck.findings.finding import Finding
from flowcheck.private_files import user_name
from flowcheck.untrusted_text import BEGIN_BYTES, unpack_command

LINK_TYPES = {
    0: "BSD loopback",
    12: "raw IP",
    101: "raw IP",
    105: "802.11 without radiotap",
    113: "Linux cooked, of tcpdump -i any",
    127: "802.11 with radiotap",
    228: "raw IPv4",
    229: "raw IPv6",
    247: "InfiniBand",
    276: "Linux cooked 2, of tcpdump -i any",
}
"""https://www.tcpdump.org/linktypes.html: those that somebody may have captured a job with."""
BEGIN_SHOWN = 24
"""Characters of the beginning of a text that are shown. A choice of layout."""
CAPTURE_ENDINGS = (".pcap", ".pcapng", ".cap")
MOST_NAMES = 5
"""Files a sentence names. A choice of layout."""


TORN = (
    reasons.TORN_IN_RECORD_HEADER,
    reasons.TORN_FRAME_LENGTH,
    reasons.TORN_IN_FRAME,
    reasons.TORN_BYTE_ORDER,
    reasons.TORN_SECTION_VERSION,
    reasons.TORN_INTERFACE,
    reasons.TORN_PACKET_BLOCK_SHORT,
    reasons.TORN_PACKET_INTERFACE,
    reasons.TORN_FRAME_OVER_BLOCK,
    reasons.TORN_IN_BLOCK_HEADER,
    reasons.TORN_IN_SECTION_HEADER,
    reasons.TORN_IN_BLOCK,
)
"""What may lie at the byte where a capture is torn."""


def capture_refusal(path: Path, told: Finding) -> Finding:
    """Why `path` was not opened, or not read to its end. told: C's reason, for what is not known
    better here."""
    if told.is_any_of(*TORN):
        byte, frames = told.arguments["byte"], told.arguments["frames"]
        size = path.stat().st_size
        return problems.IS_TORN(path=path, byte=byte, bytes=size, what=told, frames=frames)
    if told.is_any_of(reasons.CAPTURE_NOT_ETHERNET):
        return _other_link_type(path, told.arguments["link_type"])
    if told.is_any_of(reasons.CAPTURE_OF_OTHER_VERSION):
        return problems.OTHER_PCAP_VERSION(path=path, version=told.arguments["version"])
    return _no_capture(path, told)


def _no_capture(path: Path, told: Finding) -> Finding:
    """By what lies there."""
    try:
        with path.open("rb") as file:
            begin, size = file.read(BEGIN_BYTES), os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return problems.IS_MISSING(path=path, folder=path.parent, there=_captures_in(path.parent))
    except OSError as error:
        user = user_name(os.geteuid())
        return problems.IS_UNREADABLE(path=path, error=error.strerror, user=user)
    if not size:
        return problems.IS_EMPTY(path)
    if (kind := checkpoint_kind(begin)) is not None:
        return problems.IS_CHECKPOINT(path=path, kind=kind)
    if (packed := unpack_command(path, begin, ".pcap")) is not None:
        program, command = packed
        return problems.IS_COMPRESSED(path=path, program=program, command=command)
    if told.is_any_of(reasons.CAPTURE_TOO_SHORT, reasons.CAPTURE_HEADER_CUT):
        return problems.IS_TOO_SHORT(path=path, bytes=size)
    if not told.is_any_of(reasons.CAPTURE_FORMAT_UNKNOWN):
        return problems.CAPTURE_REFUSED(path=path, error=told)
    if (text := _text(begin)) is not None:
        return problems.IS_TEXT(path=path, begin=repr(text))
    return problems.IS_NO_CAPTURE(path=path, begin=begin[:8].hex(" "))


def _other_link_type(path: Path, number: object) -> Finding:
    """A capture of frames that are not Ethernet's."""
    known = LINK_TYPES.get(number) if isinstance(number, int) else None
    name = known or "see www.tcpdump.org/linktypes.html"
    return problems.OTHER_LINK_TYPE(path=path, number=number, name=name)


def _text(begin: bytes) -> str | None:
    """The first line of what is text, cut; None for anything else."""
    try:
        text = begin.decode()
    except UnicodeDecodeError as error:
        if error.start < len(begin) - 3:  # a character may be cut by the end of what was read
            return None
        text = begin[: error.start].decode()
    if not all(one.isprintable() or one in "\r\n\t\f" for one in text):
        return None
    return next(iter(text.strip().splitlines()), "")[:BEGIN_SHOWN]


def _captures_in(folder: Path) -> tuple[str | Finding, ...]:
    """Names of the capture files of a folder, or why there are none."""
    try:
        names = sorted(one.name for one in folder.iterdir() if one.suffix in CAPTURE_ENDINGS)
    except FileNotFoundError:
        return (problems.NO_CAPTURE_FOLDER(),)
    except OSError:
        return (problems.NO_CAPTURES_LISTED(),)
    if not names:
        return (problems.NO_CAPTURES(),)
    more = len(names) - MOST_NAMES
    return (*names[:MOST_NAMES], *([problems.MORE_CAPTURES(more)] if more > 0 else []))
