"""Turns an operator's error into one line on stderr and exit code 2."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from flowcheck.errors import ConfigError, FlowCheckError, has_no_room
from flowcheck.findings.catalog.refused_commands import FOLDER_REMOVED
from flowcheck.findings.finding import Finding

OPERATOR_ERROR = 2
NO_ROOM = (
    "no room left on the file system of the run directory, of the checkpoints or of shared memory: "
    "df shows which one is full"
)


def exit_on_error(run: Callable[[], object]) -> None:
    """Runs a command: our own errors become one line on stderr and exit code 2."""
    try:
        _refuse_nowhere()
        run()
        return
    except FlowCheckError as error:
        said: str | Finding = error.finding
    except OSError as error:
        if error.filename is None and not has_no_room(error):
            raise
        said = f"{error.filename}: {error.strerror}" if error.filename else NO_ROOM
    from flowcheck.ops.lifecycle.progress_messages import ERROR, print_message

    print_message(said, ERROR)
    sys.exit(OPERATOR_ERROR)


def _refuse_nowhere() -> None:
    """Raises ConfigError where the folder that the command was started in is gone: relative paths
    lead nowhere then."""
    try:
        Path.cwd()
    except FileNotFoundError as error:
        at = os.environ.get("PWD", "")
        raise ConfigError("working directory", at, FOLDER_REMOVED()) from error
