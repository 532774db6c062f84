"""The run that this process works on, as the commands in its texts name it.

A command is printed to be pasted, so it names the run that its text is about: without `--run` it
would act on the default run, which may be another job's. The default run is not named.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DEFAULT_RUN = "/run/flowcheck/job"
"""Run directory of a command without `--run`, and of a job file without `run`."""
RUN_TO_KEEP = "DIR"
"""Stands in a command for the run directory that a replay is told to keep."""
FIELD = "this_run"
"""Stands in the texts of the catalogue for the run of the process that shows them; what it is about
is known there, and not where most facts are found."""


class _NamedRun:
    root: str | None = None


_NAMED = _NamedRun()


def set_named_run(root: Path | None) -> None:
    """Commands in texts of this process are about this run from now on; None: about none, as for a
    command that reads files only. A relative path is of the present working directory."""
    _NAMED.root = None if root is None else str(root.absolute())


@contextmanager
def texts_about(root: Path) -> Iterator[None]:
    """Commands in texts are about this run within the block."""
    before, _NAMED.root = _NAMED.root, str(root)
    try:
        yield
    finally:
        _NAMED.root = before


def name_run_to_keep() -> None:
    """Commands in texts are about a run that the reader has to make first, from now on: that of
    this process is removed."""
    _NAMED.root = RUN_TO_KEEP


def named_run() -> str | None:
    """Absolute path of that run, or RUN_TO_KEEP; None: there is none."""
    return _NAMED.root


def run_option(root: object) -> str:
    """` --run DIR` for a command about the run in `root`, quoted for a shell; "" for the default
    run, and where there is none."""
    if not root or os.path.normpath(str(root)) == DEFAULT_RUN:
        return ""
    return f" --run {shlex.quote(str(root))}"
