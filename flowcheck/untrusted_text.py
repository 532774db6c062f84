"""Text from outside: files that a user names, decoded as UTF-8 or refused with what lies there
instead; characters escaped, so that no text controls a terminal or forges log lines."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path

from flowcheck.checkpoint_signatures import checkpoint_kind
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_files import (
    FILES_THERE,
    IN_UTF_16,
    IS_FOLDER,
    NOT_TEXT,
    NOT_UTF_8,
    PACKED,
    TEXT_IS_CHECKPOINT,
)
from flowcheck.findings.finding import Finding

COMPRESSED = (
    (b"\x1f\x8b", "gzip", ".gz"),
    (b"\xfd7zXZ\0", "xz", ".xz"),
    (b"\x28\xb5\x2f\xfd", "zstd", ".zst"),
    (b"BZh", "bzip2", ".bz2"),
    (b"\x04\x22\x4d\x18", "lz4", ".lz4"),
)
"""(first bytes, program, ending of its files): RFC 1952 2.3.1, the formats' own specifications."""
ARCHIVES = (
    (b"PK\x03\x04", "zip", "unzip {path}"),
    (b"7z\xbc\xaf\x27\x1c", "7-Zip", "7z x {path}"),
)
"""(first bytes, program, command that unpacks)."""
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
"""The byte order marks that a text in UTF-16 begins with, as Windows writes it."""
BEGIN_BYTES = 512
"""Bytes that are looked at. A choice: enough to tell text from anything else."""
FILES_SHOWN = 3
"""Files of a folder that an error names. A choice of layout."""
BEGIN_SHOWN = 8
"""Bytes of the beginning that are shown. A choice of layout."""


def unpack_command(path: Path, begin: bytes, ending: str) -> tuple[str, str] | None:
    """The program that packed a file, and the command that unpacks it and overwrites nothing; None
    where it is not packed. begin: its first bytes; ending: of the new name, where the packed
    file's own tells none."""
    name = shlex.quote(str(path))
    for first, program, command in ARCHIVES:
        if begin.startswith(first):
            return program, command.format(path=name)
    for first, program, own in COMPRESSED:
        if begin.startswith(first):
            if path.suffix == own:
                return program, f"{program} -dk {name}"
            # without it the program does not know the new name
            new = shlex.quote(str(renamed(path, "unpacked", ending)))
            return program, f"{program} -dc {name} > {new}"
    return None


def folder_problem(path: Path, ending: str) -> Finding | None:
    """Says that `path` is a folder, with files of this ending (".toml") in it; None: it is none."""
    if not path.is_dir():
        return None
    found: list[str] = []
    with suppress(OSError):
        found = sorted(str(one) for one in path.iterdir() if one.suffix == ending)
    return IS_FOLDER(FILES_THERE(found[:FILES_SHOWN]) if found else None)


def renamed(path: Path, how: str, ending: str) -> Path:
    """A name for a converted copy of a file: j.toml as j.unpacked.toml; j as j.unpacked.toml where
    the ending is .toml."""
    return path.with_name(f"{path.stem}.{how}{path.suffix or ending}")


def decode_text(key: str, path: Path, content: bytes, *, ending: str, lenient: bool = False) -> str:
    """The text of a file that was named as `key`. ending: of a file of its kind, such as ".toml".
    lenient: bytes that are no UTF-8 are replaced, as in a log that several programs write. Raises
    ConfigError, which says what the file is, where it is no text in UTF-8."""
    if (why := _not_text(path, content[:BEGIN_BYTES], ending)) is not None:
        raise ConfigError(key, str(path), why)
    try:
        return content.decode("utf-8-sig", errors="replace" if lenient else "strict")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(key, str(path), NOT_UTF_8(line)) from error


def _not_text(path: Path, begin: bytes, ending: str) -> Finding | None:
    if (kind := checkpoint_kind(begin)) is not None:
        return TEXT_IS_CHECKPOINT(kind)
    if (packed := unpack_command(path, begin, ending)) is not None:
        program, command = packed
        return PACKED(program=program, command=command)
    if begin.startswith(UTF_16):
        name, new = shlex.quote(str(path)), shlex.quote(str(renamed(path, "utf8", ending)))
        return IN_UTF_16(f"iconv -f UTF-16 -t UTF-8 {name} > {new}")
    if b"\0" in begin:
        return NOT_TEXT(begin[:BEGIN_SHOWN].hex(" "))
    return None


def printable(told: str) -> str:
    """What does not print is shown by its number, as in a Python string."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in told)


def printable_lines(told: str) -> str:
    """The same of each line."""
    return "\n".join(map(printable, told.split("\n")))
