"""Why a file is not read as a capture: what lies there instead, and what to do about it."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

from flowcheck.findings.catalog import capture_file_problems as problems
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
PCAP_HEADER_BYTES = 24
BEGIN_SHOWN = 24
"""Characters of the beginning of a text that are shown. A choice of layout."""
LEAST_BYTES = 12
"""Of a capture file: less holds no header (fc_pcap_open)."""
CAPTURE_ENDINGS = (".pcap", ".pcapng", ".cap")
MOST_NAMES = 5
"""Files a sentence names. A choice of layout."""


def open_refusal(path: Path, code: int, told: str) -> Finding:
    """Why `path` was not opened. code: the errno of it; told: C's sentence, for what is not known
    better here."""
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
    if (packed := unpack_command(path, begin, ".pcap")) is not None:
        program, command = packed
        return problems.IS_COMPRESSED(path=path, program=program, command=command)
    if code == errno.EPROTO and len(begin) >= PCAP_HEADER_BYTES:
        order = "<" if begin[0] in (0xD4, 0x4D) else ">"
        version, _, _, _, _, link = struct.unpack(f"{order}HHiIII", begin[4:PCAP_HEADER_BYTES])
        if version != 2:
            return problems.OTHER_PCAP_VERSION(path=path, version=version)
        return other_link_type(path, link & 0x0FFFFFFF)
    if code != errno.EBADMSG:
        return problems.CAPTURE_REFUSED(path=path, error=told)
    if size < LEAST_BYTES or _is_pcap(begin):
        return problems.IS_TOO_SHORT(path=path, bytes=size)
    if (text := _text(begin)) is not None:
        return problems.IS_TEXT(path=path, begin=repr(text))
    return problems.IS_NO_CAPTURE(path=path, begin=begin[:8].hex(" "))


def other_link_type(path: Path, number: int) -> Finding:
    """A capture of frames that are not Ethernet's."""
    name = LINK_TYPES.get(number, "see www.tcpdump.org/linktypes.html")
    return problems.OTHER_LINK_TYPE(path=path, number=number, name=name)


def _is_pcap(begin: bytes) -> bool:
    """Whether it has a header's beginning, either byte order, in micro- or nanoseconds."""
    return begin[:4] in {
        struct.pack(f"{order}I", magic) for order in "<>" for magic in (0xA1B2C3D4, 0xA1B23C4D)
    }


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


def _captures_in(folder: Path) -> str:
    """The capture files of a folder, in words."""
    try:
        names = sorted(one.name for one in folder.iterdir() if one.suffix in CAPTURE_ENDINGS)
    except OSError:
        return "nothing that can be listed"
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more or "no capture file"
