"""Turns an operator's error into one line on stderr and exit code 2.

For a command with --json the line is a JSON object (ops/watch/README.md describes it): stdout may
hold a document already, or a part of one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from flowcheck.errors import ConfigError, FlowCheckError
from flowcheck.findings.catalog.refused_commands import FOLDER_REMOVED
from flowcheck.ops.json_option import asks_for_json
from flowcheck.stages.file_error import file_error_finding, tells_of_file

OPERATOR_ERROR = 2


def exit_on_error(run: Callable[[], object]) -> None:
    """Runs a command: our own errors become one line on stderr and exit code 2."""
    try:
        _refuse_nowhere()
        run()
        return
    except FlowCheckError as error:
        found = error.finding
    except OSError as error:
        if not tells_of_file(error):
            raise
        found = file_error_finding(error)
    from flowcheck.ops.lifecycle.progress_messages import ERROR, print_message

    ending = {
        "cause": found.cause or None,
        "remedy": found.remedy or None,
        "exit_code": OPERATOR_ERROR,
    }
    print_message(found, ERROR, ending if asks_for_json() else None)
    sys.exit(OPERATOR_ERROR)


def _refuse_nowhere() -> None:
    """Raises ConfigError where the folder that the command was started in is gone: relative paths
    lead nowhere then."""
    try:
        Path.cwd()
    except FileNotFoundError as error:
        at = os.environ.get("PWD", "")
        raise ConfigError("working directory", at, FOLDER_REMOVED()) from error
