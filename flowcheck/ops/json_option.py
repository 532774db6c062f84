"""Whether the command line asks for JSON, for what is said before and beside a command's result."""

from __future__ import annotations

import sys

JSON_OPTION = "--json"


def asks_for_json() -> bool:
    """Whether this command line has --json; what follows a `--` is no option."""
    words = sys.argv[1:]
    return JSON_OPTION in words[: words.index("--") if "--" in words else None]
