"""Records of heals.jsonl: values of the trainer that tainted elements of the replica were replaced
by. Needs neither torch nor safetensors, as the supervisor reads them too."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from flowcheck.errors import DECODE_ERRORS
from flowcheck.findings.finding import Finding
from flowcheck.stages.run_directory.bounded_log_files import complete_lines
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step


class HealRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of heals.jsonl."""

    time_ns: int
    """Since 1970."""
    step: Step
    """The step that the values are of."""
    source: str
    """The trainer's file, or the address of its hook."""
    request: str
    """The request's identifier."""
    at: Step
    """The replica's step when it was healed."""
    elements: int = 0
    """Elements of the parameters that are exact since."""
    left: int = 0
    """Elements that are tainted still."""
    asked_bytes: int = 0
    """Bytes that the trainer sent for it; 0: they are from a file that was there."""
    refused: Finding | None = None
    """Why nothing was healed; None: something was."""


def read_heal_records(run: RunDir) -> list[HealRecord]:
    """All records of a run, oldest first."""
    found: list[HealRecord] = []
    for line in complete_lines(run.heals):
        with suppress(*DECODE_ERRORS):
            found.append(msgspec.json.decode(line, type=HealRecord))
    return found
