"""Which incarnation of a job is followed, and how its iterations map to trainer steps."""

from __future__ import annotations

import msgspec

from flowcheck.atomic_write import write_atomically
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Iteration, Step


class Incarnation(msgspec.Struct, frozen=True, kw_only=True):
    """Which incarnation of the job is followed."""

    number: int = 1
    iterations: Iteration = Iteration(0)
    """The shard's number of the last iteration before its first one."""
    step: Step | None = Step(0)
    """The trainer's step that iteration ended; None: nobody knows, and a base is waited for."""
    base: Step | None = None
    """The step of the base that was given; None: there was none."""
    audits: int = 0
    """Lines of audits.jsonl that are of what was before it, or before `anchored`."""
    anchored: Step | None = None
    """The last step whose state was replaced by that of the trainer's own file, as they differed;
    None: there was none."""

    def iteration_of(self, step: Step, each: int) -> Iteration:
        """The shard's number of the iteration that ends `step`; each: iterations per step."""
        assert self.step is not None
        return Iteration(self.iterations + (step - self.step) * each)

    def step_within(self, iteration: Iteration, each: int) -> Step:
        """The step an iteration belongs to; while nobody knows, its place in this incarnation."""
        return Step((self.step or 0) - (self.iterations - iteration) // each)

    def step_of(self, iteration: Iteration, each: int) -> Step | None:
        """The step an iteration ends; None where it only adds to one."""
        assert self.step is not None
        steps, rest = divmod(iteration - self.iterations, each)
        return None if rest else Step(self.step + steps)


def incarnation_of(run: RunDir) -> Incarnation:
    if not run.incarnation.exists():
        return Incarnation()
    return msgspec.json.decode(run.incarnation.read_bytes(), type=Incarnation)


def mark_base_awaited(run: RunDir) -> None:
    """The first incarnation is one whose state nobody knows, as it was resumed, or joined amid its
    run: without a base none of its steps is taken."""
    if not run.incarnation.exists():
        write_atomically(run.incarnation, msgspec.json.encode(Incarnation(step=None)))
