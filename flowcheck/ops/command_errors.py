"""Turns an operator's error into one line on stderr and exit code 2.

For a command with --json the line is a JSON object (ops/watch/README.md describes it): stdout may
hold a document already, or a part of one.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path

from flowcheck.errors import ConfigError, FlowCheckError, has_no_room
from flowcheck.findings.catalog.general_errors import FILE_ERROR, NO_ROOM
from flowcheck.findings.catalog.refused_commands import FOLDER_REMOVED
from flowcheck.findings.finding import Finding

OPERATOR_ERROR = 2
JSON_OPTION = "--json"


def asks_for_json() -> bool:
    """Whether this command line has --json; what follows a `--` is no option."""
    words = sys.argv[1:]
    return JSON_OPTION in words[: words.index("--") if "--" in words else None]


def exit_on_error(run: Callable[[], object]) -> None:
    """Runs a command: our own errors become one line on stderr and exit code 2."""
    try:
        _refuse_nowhere()
        run()
        return
    except FlowCheckError as error:
        found = error.finding
    except OSError as error:
        if error.filename is None and not has_no_room(error):
            raise
        found = _of_system(error)
    from flowcheck.ops.lifecycle.progress_messages import ERROR, print_message

    ending = {"remedy": remedy_of(found) or None, "exit_code": OPERATOR_ERROR}
    print_message(found, ERROR, ending if asks_for_json() else None)
    sys.exit(OPERATOR_ERROR)


def _of_system(error: OSError) -> Finding:
    if not error.filename:
        return NO_ROOM()
    name = errno.errorcode.get(error.errno or 0, "")
    said = error.strerror or type(error).__name__
    return FILE_ERROR(file=str(error.filename), error=said, errno=name)


def remedy_of(found: Finding) -> str:
    """What to do, of the catalogue: the finding's own, else that of the first one in it."""
    inner = [one for one in found.arguments.values() if isinstance(one, Finding)]
    return found.remedy or next(filter(None, map(remedy_of, inner)), "")


def _refuse_nowhere() -> None:
    """Raises ConfigError where the folder that the command was started in is gone: relative paths
    lead nowhere then."""
    try:
        Path.cwd()
    except FileNotFoundError as error:
        at = os.environ.get("PWD", "")
        raise ConfigError("working directory", at, FOLDER_REMOVED()) from error
