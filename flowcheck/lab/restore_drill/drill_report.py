"""Result of a drill, and the report at its end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import msgspec
from rich.console import Console

from flowcheck.findings.finding import Finding
from flowcheck.lab.job_run.digest_comparison import DigestComparison, Digests
from flowcheck.lab.mirror_loss.loss_count import MirrorLossCount
from flowcheck.lab.restore_drill.healed_elements import HealedElements
from flowcheck.lab.restore_drill.step_outcomes import FollowedSteps
from flowcheck.ops.watch.state.chain_state import ChainState
from flowcheck.step_numbers import Step


@dataclass(frozen=True, slots=True)
class FollowedJob:
    """One of several jobs of which copies were dropped."""

    name: str
    number_in_chain: int
    """The chain counts jobs in the order in which it learns them, from 1."""
    followed: FollowedSteps
    healed: HealedElements


@dataclass(slots=True)
class DrillOutcome:
    """Result of a drill."""

    steps: int
    killed_at: Step | None = None
    """The trainer's last step before it was killed; None: it was not."""
    restored_step: Step | None = None
    bases: list[Step] = field(default_factory=list)
    """Steps of the trainer's checkpoints that were given as bases, if FlowCheck was absent for a
    time."""
    comparison: DigestComparison | None = None
    untold: tuple[Step, ...] = ()
    """Steps that were in flight when the trainers were killed and that no trainer recorded; they
    cannot be compared."""
    final: Digests = field(default_factory=dict)
    """Digests of the trainer's state after the last step."""
    control: Digests | None = None
    """Final digests of the control run that ended at the same step with its own checkpoint and
    resumed."""
    unbroken: Digests | None = None
    """Final digests of the control run that was never stopped."""
    mirror_loss: MirrorLossCount | None = None
    """What the monitor port dropped while the chain ran; None: no loss was asked for."""
    followed: FollowedSteps | None = None
    """With a loss: what the chain made of each step."""
    healed: HealedElements | None = None
    """With a loss: what made tainted elements exact again."""
    of_jobs: list[FollowedJob] = field(default_factory=list)
    """With a loss and several jobs: the same two of each; `followed` and `healed` are then None."""
    restored_equal: bool | None = None
    """With a loss: whether what was restored is bit-equal to the trainer's state at that step;
    None: nothing was restored, or no trainer recorded the step."""
    restore_refused: Finding | None = None
    """Why no step could be restored, so that the trainer's own save was taken."""
    own_save_step: Step | None = None
    """Step of that save."""
    seconds: float = 0.0
    chain: ChainState | None = None


FAILED = 1


def show(outcome: DrillOutcome, *, as_json: bool) -> int:
    """Prints the statements about a drill; returns 0 if all are true, else 1."""
    found = statements(outcome)
    good = bool(found) and all(holds for holds, _ in found)
    if as_json:
        told = asdict(outcome) | {
            "passed": good,
            "facts": list(facts(outcome)),
            "statements": [{"holds": holds, "says": says} for holds, says in found],
        }
        print(json.dumps(msgspec.to_builtins(told)))
        return 0 if good else FAILED
    console = Console(highlight=False, soft_wrap=True)
    console.print()
    for holds, says in found:
        mark = "[green]holds[/]" if holds else "[red]FAILS[/]"
        console.print(f"  {mark}  {says}")
    for fact in facts(outcome):
        console.print(f"         {fact}")
    console.print(f"  {outcome.seconds:.0f} s in all")
    return 0 if good else FAILED


def facts(outcome: DrillOutcome) -> Sequence[str]:
    """What a loss at the monitor port did, as sentences; (): there was none."""
    if outcome.mirror_loss is None:
        return ()
    refused, own = outcome.restore_refused, outcome.own_save_step
    found = [str(outcome.mirror_loss)]
    if outcome.followed is not None:
        found += outcome.followed.sentences()
    if outcome.healed is not None:
        found += outcome.healed.sentences(outcome.mirror_loss.dropped_roce)
    for job in outcome.of_jobs:
        # Which job's a dropped copy was is not counted.
        told = (*job.followed.sentences(), *job.healed.sentences(0))
        found += (f"{job.name}, the chain's job {job.number_in_chain}: {each}" for each in told)
    if refused is not None:
        found.append(f"nothing restored, the trainer's own save of step {own} was taken: {refused}")
    return found


def statements(outcome: DrillOutcome) -> Sequence[tuple[bool, str]]:
    """(whether it is true, text) of each statement that a drill checks. Where copies were dropped,
    what the replica says of itself is checked: no step that it calls exact may differ."""
    found: list[tuple[bool, str]] = []
    comparison = outcome.comparison
    followed = [one.followed for one in outcome.of_jobs]
    followed += [] if outcome.followed is None else [outcome.followed]
    lossy = bool(followed)
    if comparison is not None and lossy:
        exact = sum(one.exact for one in followed)
        said = f"{comparison.equal} of {exact} steps that the replica calls exact"
        said += ": parameters and optimizer state bit-equal to the trainer's"
        if not exact:
            said = "the replica calls no step exact, so that nothing is compared"
        if comparison.different:
            step, what = comparison.different[0]
            said += f"; {len(comparison.different)} differ, first {what} at step {step}"
        found.append((exact > 0 and not comparison.different, said))
    elif comparison is not None:
        said = f"{comparison.equal} of {outcome.steps} steps: parameters and optimizer state "
        said += "bit-equal to the trainer's"
        if comparison.different:
            step, what = comparison.different[0]
            said += f"; {len(comparison.different)} differ, first {what} at step {step}"
        if comparison.missing:
            said += f"; {len(comparison.missing)} not followed, first {comparison.missing[0]}"
        if outcome.untold:
            steps = ", ".join(map(str, outcome.untold))
            said += f"; step {steps} was in flight at the kill, and no trainer tells what it was"
        found.append((comparison.exact, said))
    if outcome.bases:
        said = f"followed on the trainer's own checkpoint of step {outcome.bases[-1]}"
        found.append((outcome.chain is not None, said))
    if outcome.killed_at is not None and outcome.restored_step is not None:
        lost = outcome.killed_at - outcome.restored_step
        said = f"killed after step {outcome.killed_at}, resumed from step {outcome.restored_step}: "
        said += "nothing was lost" if lost <= 0 else f"{lost} steps were lost"
        if outcome.restored_equal is not None:
            said += ", its newest exact step"
            said += ", bit-equal" if outcome.restored_equal else ", NOT equal"
            found.append((outcome.restored_equal, said + " to the trainer's state at that step"))
        else:
            said += ", the newest exact step" if lossy else " but the step in flight"
            found.append((lost <= 0 or lossy, said))
    for name, other in (
        ("stopped and resumed by the trainer's own save", outcome.control),
        ("never stopped", outcome.unbroken),
    ):
        if other is not None:
            same = bool(other) and outcome.final == other
            found.append((same, f"the final state is bit-equal to a run {name}"))
    return found
