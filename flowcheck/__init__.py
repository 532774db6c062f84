"""FlowCheck: a checkpoint of every training step, taken from mirrored all-reduce traffic."""

from __future__ import annotations

from os import PathLike
from typing import Any

from flowcheck.step_numbers import Step

__version__ = "0.1.0"


def load(
    where: str | PathLike[str],
    step: Step | None = None,
    format: str | None = None,
    token_file: str | PathLike[str] | None = None,
    ca: str | PathLike[str] | None = None,
) -> dict[str, Any]:
    """A step in memory, as torch.load would give it: {"model", "optimizer", "scheduler", "scaler",
    "averages", "step"}, as far as there are any.

    where: a run directory (its newest step), a checkpoint folder or a folder of them, or any file
    or folder of a format that is read; of what others wrote it is what they put there; or a URL:
    http://host:port of `flowcheck serve` (token_file: the file with its word; ca: of https the file
    of who vouches for it, by default those this machine trusts), or the target of a job's
    [persist]. step: another than the newest. format: its name, where it cannot be told. What
    FlowCheck wrote is held against its sums first; no code in a file is run, nor any that a
    checkpoint names. Of a run directory the job file's schedule and factory are called, with this
    process's rights, unless the directory is another user's.

    Raises flowcheck.errors.StateError where there is no such step, or something is not whole (the
    tensor is named), ConfigError for an unknown format.
    """
    from flowcheck.ops.restore.load_step import load as load_step

    return load_step(where, step, format, token_file, ca)
