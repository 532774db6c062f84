"""What became of each step of a job whose copies were dropped: exact, partial, tainted, or not
followed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from flowcheck.errors import DECODE_ERRORS
from flowcheck.findings.finding import Finding
from flowcheck.ops.watch.state.chain_state import JobState
from flowcheck.stages.replica_update.healing import LINES_BEFORE
from flowcheck.stages.replica_update.step_log import StepRecord
from flowcheck.step_numbers import Step

SHOWN = 5
"""Most steps in a sentence. A choice of layout."""


@dataclass(frozen=True, slots=True)
class FollowedSteps:
    """What the replica made of the steps of a job."""

    steps: int
    """Steps of the whole job."""
    followed: int
    """Steps that the replica applied."""
    exact: int
    """Those of them after which no element was tainted."""
    partial: tuple[Step, ...]
    """Those that lacked bytes themselves, ascending."""
    tainted: tuple[Step, ...]
    """Those after which an element was tainted, by this step or an earlier one."""
    tainted_at_end: dict[str, int]
    """{parameter: tainted elements} after the last step that was applied; {}: none."""
    not_followed: tuple[Step, ...]
    why_not_followed: tuple[Finding, ...]
    """What the chain says of the job, if it did not follow each step."""

    @property
    def tainted_elements(self) -> int:
        """Tainted elements after the last step that was applied."""
        return sum(self.tainted_at_end.values())

    def sentences(self) -> list[str]:
        """The same for people."""
        found = [
            f"{self.followed} of {self.steps} steps followed: {self.exact} exact, "
            f"{len(self.partial)} partial, as they lacked bytes themselves{_shown(self.partial)}",
            f"{self.tainted_elements:,} elements tainted at the end, "
            f"in {len(self.tainted_at_end)} parameters",
        ]
        if self.not_followed:
            why = "; ".join(map(str, self.why_not_followed)) or "the chain names no reason"
            count = len(self.not_followed)
            found.append(f"{count} steps not followed{_shown(self.not_followed)}: {why}")
        return found


def _shown(steps: tuple[Step, ...]) -> str:
    more = ", ..." if len(steps) > SHOWN else ""
    return f" ({', '.join(map(str, steps[:SHOWN]))}{more})" if steps else ""


def step_outcomes(path: Path) -> dict[Step, StepRecord]:
    """{step: its record} of steps.jsonl; of a step that was applied twice the later one. What a
    step lacked is told even if it was healed since: the lines from before lie in a file beside."""
    found = {one.step: one for one in _records(path)}
    for one in _records(path.with_name(LINES_BEFORE)):
        now = found.get(one.step)
        if now is not None and one.missing_elements > now.missing_elements:
            lacked = one.missing_elements
            found[one.step] = msgspec.structs.replace(now, missing_elements=lacked)
    return found


def _records(path: Path) -> Iterator[StepRecord]:
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with suppress(*DECODE_ERRORS):
            yield msgspec.json.decode(line, type=StepRecord)


def followed_steps(
    records: Mapping[Step, StepRecord], steps: Step, job: JobState | None
) -> FollowedSteps:
    """What was followed of a job of so many steps. job: its state at the end."""
    applied = [records[step] for step in sorted(records) if step >= 1]
    missing = tuple(step for step in map(Step, range(1, steps + 1)) if step not in records)
    return FollowedSteps(
        steps=steps,
        followed=len(applied),
        exact=sum(not one.tainted for one in applied),
        partial=tuple(one.step for one in applied if one.missing_elements),
        tainted=tuple(one.step for one in applied if one.tainted),
        tainted_at_end=applied[-1].tainted if applied else {},
        not_followed=missing,
        why_not_followed=_reasons(job) if missing and job is not None else (),
    )


def _reasons(job: JobState) -> tuple[Finding, ...]:
    """Why a job is not followed to its end; the lost step first. What another one gives as its own
    reason is not said twice."""
    lost = () if job.lost_why is None else (job.lost_why,)
    found = tuple(dict.fromkeys((*lost, *job.why_not, job.health.reason)))
    within = {reason for one in found for reason in one.arguments.values()}
    return tuple(one for one in found if one not in within)
