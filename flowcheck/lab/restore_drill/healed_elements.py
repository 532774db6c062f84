"""What made tainted elements of a drill's replica exact again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowcheck.stages.job_state.heal_log import HealRecord
from flowcheck.step_numbers import Step

HOOK = "hook at "
"""How the source of values that the hook told begins (stages/healing/hook_stage.py)."""


@dataclass(frozen=True, slots=True)
class HealedElements:
    """Elements by who told their values."""

    by_hook: int
    by_saves: int
    """By files of the trainer."""
    answers: int
    """Answers of the hook that healed elements."""
    asked_bytes: int
    """Bytes of the values in these answers."""
    refused: int
    """Answers of the hook whose values were not taken."""
    refused_bytes: int
    steps_until_exact: tuple[int, ...]
    """Each time that no element was left tainted: steps that the replica had made since the first
    one that lacked bytes, 0: none."""

    def sentences(self, lost_packets: int) -> list[str]:
        """The same for people. lost_packets: dropped copies with payload."""
        found = []
        if self.answers or self.refused:
            said = f"the hook healed {self.by_hook:,} elements in {self.answers} answers: "
            said += f"{self.asked_bytes:,} bytes asked"
            if lost_packets:
                said += f", {self.asked_bytes / lost_packets:,.0f} per dropped copy with payload"
            if self.refused:
                said += f"; {self.refused} more answers ({self.refused_bytes:,} bytes) not taken"
            found.append(said)
        if self.by_saves:
            found.append(f"the trainer's saves healed {self.by_saves:,} elements")
        if self.steps_until_exact:
            least, most = min(self.steps_until_exact), max(self.steps_until_exact)
            steps = f"{least} to {most}" if least < most else f"{most}"
            times = len(self.steps_until_exact)
            found.append(f"exact again {times} times, {steps} steps behind the first loss")
        return found


def healed_elements(records: Sequence[HealRecord], partial: Sequence[Step]) -> HealedElements:
    """records: of heals.jsonl, oldest first; partial: steps that lacked bytes."""
    told = [one for one in records if one.source.startswith(HOOK)]
    done = [one for one in told if one.refused is None]
    refused = [one for one in told if one.refused is not None]
    return HealedElements(
        by_hook=sum(one.elements for one in done),
        by_saves=sum(o.elements for o in records if o.refused is None and o not in told),
        answers=len(done),
        asked_bytes=sum(one.asked_bytes for one in done),
        refused=len(refused),
        refused_bytes=sum(one.asked_bytes for one in refused),
        steps_until_exact=_steps_until_exact(records, partial),
    )


def _steps_until_exact(records: Sequence[HealRecord], partial: Sequence[Step]) -> tuple[int, ...]:
    found, behind = [], 0
    for one in records:
        if one.refused is not None or one.left:
            continue
        lost = [step for step in partial if behind < step <= one.at]
        if lost:
            found.append(one.at - min(lost))
        behind = one.at
    return tuple(found)
