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

from flowcheck.errors import ConfigError, FlowCheckError, is_disk_full
from flowcheck.findings.catalog.refused_commands import (
    FILE_ERROR,
    FOLDER_REMOVED,
    NO_INODE_AT,
    NO_ROOM,
    NO_ROOM_AT,
)
from flowcheck.findings.finding import Finding
from flowcheck.ops.json_option import asks_for_json

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
        if error.filename is None and not is_disk_full(error):
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


def file_error_finding(error: OSError) -> Finding:
    """What a system call said of a file: where it is full, with what is free there."""
    if not error.filename:
        return NO_ROOM()
    path = Path(os.fsdecode(error.filename))
    there = next((one for one in (path, *path.absolute().parents) if one.is_dir()), None)
    if not is_disk_full(error) or there is None:
        name = errno.errorcode.get(error.errno or 0, "")
        return FILE_ERROR(path=path, error=error.strerror or type(error).__name__, errno=name)
    found = os.statvfs(there)
    mount, free_mib = _mount(there), found.f_bavail * found.f_frsize >> 20
    if found.f_files and not found.f_favail:
        return NO_INODE_AT(path=path, mount=mount, free_mib=free_mib)
    return NO_ROOM_AT(
        path=path,
        mount=mount,
        error=error.strerror,
        free_mib=free_mib,
        total_mib=found.f_blocks * found.f_frsize >> 20,
    )


def _mount(folder: Path) -> Path:
    """Where the file system of a folder is mounted."""
    above = folder.absolute()
    while not above.is_mount():
        above = above.parent
    return above


def _refuse_nowhere() -> None:
    """Raises ConfigError where the folder that the command was started in is gone: relative paths
    lead nowhere then."""
    try:
        Path.cwd()
    except FileNotFoundError as error:
        at = os.environ.get("PWD", "")
        raise ConfigError("working directory", at, FOLDER_REMOVED()) from error
