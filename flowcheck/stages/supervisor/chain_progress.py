"""What a chain has done so far, as its messages report: steps, losses, notes, restarts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from flowcheck.findings.catalog.chain_processes import STAGE_SAYS
from flowcheck.findings.finding import Finding
from flowcheck.messages import Drained, Hello, Message, Note, SourceEnded, StepApplied, StepLost
from flowcheck.stages.stage_table import stage_named

MOST_NOTES = 1000
"""Notes. Of a chain that runs for months the last ones; all are in events.jsonl, as far as that
goes. A choice that bounds memory."""


class OperatorNotes:
    """What the operator should know: the last MOST_NOTES, and how many there were."""

    def __init__(self) -> None:
        self._last: deque[Finding] = deque(maxlen=MOST_NOTES)
        self.count = 0
        """Of all, also those that are gone."""

    def append(self, found: Finding) -> None:
        self._last.append(found)
        self.count += 1

    def since(self, count: int) -> list[Finding]:
        """Those after the first `count`, as far as they are kept."""
        new = min(self.count - count, len(self._last))
        return list(self._last)[len(self._last) - new :]

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._last)


@dataclass
class ChainProgress:
    """What the chain has done so far, as its messages report."""

    steps: int = 0
    digest: str = ""
    lost: StepLost | None = None
    in_flight: StepLost | None = None
    """A step that was incomplete when the chain was asked to end: not a loss."""
    ended_sources: set[int] = field(default_factory=set)
    """Numbers of sources that have ended."""
    complete_steps: int | None = None
    """Steps the whole stream held, once it is extracted to its end."""
    why: Finding | None = None
    """What kept it from more of them."""
    notes: OperatorNotes = field(default_factory=OperatorNotes)
    up: set[str] = field(default_factory=set)
    """Stages that have come up."""
    restarts: int = 0

    def note_restart(self, why: Finding) -> None:
        """A stage of the chain died, and is started again."""
        self.notes.append(why)
        self.restarts += 1

    def count_message(self, message: Message, *, ending: bool, sources: Sequence[int]) -> None:
        """ending: the chain was asked to end; sources: [ring] the number of its source."""
        match message:
            case Hello(stage=stage):
                self.up.add(stage)
            case StepApplied(step=step, digest=digest):
                self.steps, self.digest = max(self.steps, step), digest
            case StepLost() if ending:
                self.in_flight = self.in_flight or message
            case StepLost():
                self.lost = self.lost or message
            case SourceEnded(ring=ring):
                self.ended_sources.add(sources[ring])
            case Drained(stage=stage, steps=steps, why=why) if _counts_whole_steps(stage):
                self.complete_steps, self.why = steps, why
            case Note(stage=stage, finding=found):
                self.notes.append(STAGE_SAYS(stage=stage, what=found))
            case _:
                pass


def _counts_whole_steps(stage: str) -> bool:
    return stage_named(stage).spec.counts_whole_steps
