"""A TOML file that a user named, as tables that nothing has checked yet."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from flowcheck.errors import ConfigError, MissingFileError
from flowcheck.findings.catalog.general_errors import FILE_MISSING
from flowcheck.findings.catalog.refused_settings import NOT_TOML, UNREADABLE
from flowcheck.findings.finding import Entry
from flowcheck.untrusted_text import decode_text, folder_problem


def read_toml(
    path: Path,
    kind: str,
    key: str,
    *,
    most: tuple[int, Entry] | None = None,
    unreadable: Entry = UNREADABLE,
    not_toml: Entry = NOT_TOML,
) -> dict[str, Any]:
    """The tables of the file.

    kind: what such a file is called, as "job file". key: how errors name the argument. most: (bytes
    that it may have, what is said of a larger one); None: any number. unreadable, not_toml: what is
    said of a file that is there and cannot be read, or is no TOML. Raises MissingFileError and
    ConfigError.
    """
    try:
        if most is not None and path.stat().st_size > most[0]:
            raise ConfigError(key, str(path), most[1](most[0]))
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise MissingFileError(FILE_MISSING(key=kind, file=path)) from error
    except OSError as error:
        why = folder_problem(path, ".toml") or unreadable(error.strerror)
        raise ConfigError(key, str(path), why) from error
    text = decode_text(key, path, content, ending=".toml")
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(key, str(path), not_toml(str(error))) from error
