"""The Range header of HTTP (RFC 9110, sections 14.1.1 to 14.2 and 15.5.17). Pure."""

from __future__ import annotations

import re

RANGES_MAX = 16
"""Most ranges of one request. A request for more is answered with the whole file, as the RFC allows
(14.2). A choice: restores ask for one."""
_ONE = re.compile(r"(\d{0,40})-(\d{0,40})", re.ASCII)
"""One range. Up to 40 digits: no file is longer, and Python's int() refuses numbers of thousands of
digits."""

Span = tuple[int, int]
"""(first byte, byte after the last)."""


def requested_ranges(header: str, size_bytes: int) -> list[Span] | None:
    """The requested spans of a file, in the order of the request. []: none of them is within the
    file. None: the header is to be ignored, since it has another unit, is malformed or has too many
    ranges."""
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


def if_range_matches(header: str, tag: str) -> bool:
    """Whether an If-Range header (13.1.5) matches the file. tag: the file's strong ETag without
    quotes. A date never matches, since the server states none."""
    return header.strip() == f'"{tag}"'


def if_none_match(header: str, tag: str) -> bool:
    """Whether an If-None-Match header (13.1.2) shows that the client has this content already."""
    asked = [one.strip().removeprefix("W/") for one in header.split(",")]
    return header.strip() == "*" or f'"{tag}"' in asked


def content_range(span: Span, size_bytes: int) -> str:
    """The value of a Content-Range header."""
    return f"bytes {span[0]}-{span[1] - 1}/{size_bytes}"


def part_heads(parts: list[Span], size_bytes: int, boundary: str) -> tuple[list[bytes], bytes]:
    """(bytes before each part of a multipart/byteranges body, bytes after the last part)."""
    heads = [
        f"\r\n--{boundary}\r\nContent-Type: application/octet-stream\r\n"
        f"Content-Range: {content_range(part, size_bytes)}\r\n\r\n".encode()
        for part in parts
    ]
    return heads, f"\r\n--{boundary}--\r\n".encode()
