"""What anchors.jsonl of a run tells: readers of it need nothing of a replica."""

from __future__ import annotations

import msgspec

from flowcheck.stages.bounded import whole_lines
from flowcheck.stages.rundir import RunDir
from flowcheck.step_numbers import Step


class AnchorLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of anchors.jsonl."""

    step: Step
    file: str
    request: str
    """Tells it apart from others of the same step."""
    at: int
    """The replica's step then."""
    refused: str = ""


def anchor_lines(run: RunDir) -> list[AnchorLine]:
    """All of a run, the oldest first; a line that a kill tore is none."""
    lines = whole_lines(run.anchors)
    return [msgspec.json.decode(line, type=AnchorLine) for line in lines]


def anchor_line(run: RunDir, request: str) -> AnchorLine | None:
    """What came of a request; None: nothing yet."""
    return next((line for line in anchor_lines(run) if line.request == request), None)
