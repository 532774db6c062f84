"""Records of anchors.jsonl: trainer checkpoints that replaced the state of the replica. Needs
no torch."""

from __future__ import annotations

import msgspec

from flowcheck.stages.run_directory.log_files import complete_lines
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step


class AnchorRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of anchors.jsonl."""

    step: Step
    file: str
    request: str
    """Tells it apart from others of the same step."""
    at: int
    """The replica's step then."""
    refused: str = ""


def anchor_lines(run: RunDir) -> list[AnchorRecord]:
    """All of a run, the oldest first; a line that a kill tore is none."""
    lines = complete_lines(run.anchors)
    return [msgspec.json.decode(line, type=AnchorRecord) for line in lines]


def anchor_line(run: RunDir, request: str) -> AnchorRecord | None:
    """What came of a request; None: nothing yet."""
    return next((line for line in anchor_lines(run) if line.request == request), None)
