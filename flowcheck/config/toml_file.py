"""A TOML file that a user named, as tables that nothing has checked yet."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path
from typing import Any

from flowcheck.errors import ConfigError, MissingFileError
from flowcheck.findings.catalog.general_errors import FILE_MISSING
from flowcheck.findings.catalog.refused_settings import (
    NOT_A_TEXT_FILE,
    NOT_TOML,
    TOML_TOO_LARGE,
    UNREADABLE,
)
from flowcheck.findings.finding import Entry
from flowcheck.untrusted_text import decode_text, folder_problem

MOST_BYTES = 16 << 20
"""Where a kind of file has no limit of its own. A choice: a job file has some hundred bytes for
each source, so that this is far above any, and what it takes to read so much is bounded."""


def read_toml(
    path: Path,
    kind: str,
    key: str,
    *,
    most: tuple[int, Entry] = (MOST_BYTES, TOML_TOO_LARGE),
    unreadable: Entry = UNREADABLE,
    not_toml: Entry = NOT_TOML,
) -> dict[str, Any]:
    """The tables of the file, which is a regular one or a pipe, as `<(...)` of a shell makes it.

    kind: what such a file is called, as "job file". key: how errors name the argument. most: (bytes
    that it may have, what is said of a larger one). unreadable, not_toml: what is said of a file
    that is there and cannot be read, or is no TOML. Raises MissingFileError and ConfigError.
    """
    try:
        mode = path.stat().st_mode
        # A device may give bytes without end. A folder is told below, with the files in it.
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISDIR(mode)):
            raise ConfigError(key, str(path), NOT_A_TEXT_FILE())
        with path.open("rb") as file:
            # Counted as it is read: a pipe has no size, and a file may grow.
            content = file.read(most[0] + 1)
    except FileNotFoundError as error:
        raise MissingFileError(FILE_MISSING(key=kind, file=path)) from error
    except OSError as error:
        why = folder_problem(path, ".toml") or unreadable(error.strerror)
        raise ConfigError(key, str(path), why) from error
    if len(content) > most[0]:
        raise ConfigError(key, str(path), most[1](most[0]))
    text = decode_text(key, path, content, ending=".toml")
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(key, str(path), not_toml(str(error))) from error
