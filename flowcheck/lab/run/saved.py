"""Checkpoints that the lab's own script writes: one name for them (jobs/gpt.py, Job.save)."""

from __future__ import annotations

import re
from pathlib import Path

_NAME = re.compile(r"step-(\d+)(\.pt)?")
"""A file of torch.save, or a folder of DCP."""


def saved(folder: Path, step: int) -> Path:
    """The file of `step`."""
    return folder / f"step-{step}.pt"


def step_of(path: Path) -> int | None:
    """Of a file or a folder the script wrote; None of anything else."""
    found = _NAME.fullmatch(path.name)
    return int(found[1]) if found else None


def every_saved(folder: Path) -> dict[int, Path]:
    """{step: its file or folder} of all that is there, in the order of steps."""
    found = {step_of(path): path for path in folder.glob("step-*")}
    return {step: found[step] for step in sorted(step for step in found if step is not None)}
