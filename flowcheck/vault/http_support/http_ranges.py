"""The Range header of HTTP (RFC 9110, sections 14.1.1 to 14.2 and 15.5.17). Pure."""

from __future__ import annotations

import re

RANGES_MAX = 16
"""Ranges of one request. A header that asks for more is answered with the whole file, as the RFC
allows (14.2). A choice: restores ask for one."""
_ONE = re.compile(r"(\d{0,40})-(\d{0,40})", re.ASCII)
"""Numbers with more digits than any file has bytes are not well formed, and Python's own int()
refuses thousands."""

Span = tuple[int, int]
"""First byte, and the one behind the last."""


def spans(header: str, size_bytes: int) -> list[Span] | None:
    """What of a file is asked for, in the order it is; [] where nothing of that is in the file;
    None where the header is to be ignored: of another unit, not well formed, of too many ranges."""
    unit, equals, ranges = header.partition("=")
    if unit.strip().lower() != "bytes" or not equals:
        return None
    asked = [one.strip(" \t") for one in ranges.split(",")]
    asked = [one for one in asked if one]
    if not asked or len(asked) > RANGES_MAX:
        return None
    found: list[Span] = []
    for one in asked:
        told = _ONE.fullmatch(one)
        if told is None or not (told[1] or told[2]):
            return None
        if not told[1]:
            begin, end = max(0, size_bytes - int(told[2])), size_bytes
        else:
            begin = int(told[1])
            if told[2] and int(told[2]) < begin:
                return None
            end = min(size_bytes, int(told[2]) + 1) if told[2] else size_bytes
        if begin < end:
            found.append((begin, end))
    return found


def matches(header: str, tag: str) -> bool:
    """If-Range (13.1.5) against a strong tag without its quotes: only the very same one does; a
    date never does, for none is told."""
    return header.strip() == f'"{tag}"'


def none_match(header: str, tag: str) -> bool:
    """If-None-Match (13.1.2): whether the client has this content already."""
    asked = [one.strip().removeprefix("W/") for one in header.split(",")]
    return header.strip() == "*" or f'"{tag}"' in asked


def content_range(span: Span, size_bytes: int) -> str:
    """A Content-Range."""
    return f"bytes {span[0]}-{span[1] - 1}/{size_bytes}"


def part_heads(parts: list[Span], size_bytes: int, boundary: str) -> tuple[list[bytes], bytes]:
    """(what comes before each part of multipart/byteranges, what comes behind the last)."""
    heads = [
        f"\r\n--{boundary}\r\nContent-Type: application/octet-stream\r\n"
        f"Content-Range: {content_range(part, size_bytes)}\r\n\r\n".encode()
        for part in parts
    ]
    return heads, f"\r\n--{boundary}--\r\n".encode()
