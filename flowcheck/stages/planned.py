"""The plans of a learned job at every mirror point: installed, restored, and how far they are."""

from __future__ import annotations

from collections.abc import Sequence

from flowcheck.plane.extractor import PLAN_ACTIVE, PLAN_SUSPENDED, PLAN_UNKNOWN, Extractor
from flowcheck.stages.recut import Recuts
from flowcheck.stages.rundir import RunDir
from flowcheck.wire.job import Job
from flowcheck.wire.plan import compile_flow_plans
from flowcheck.wire.seen import FlowKey

PASSED_STEPS = 2
"""A step is given up when every flow is so many steps beyond it."""


class Planned:
    """The flows that a job names, of all rings."""

    def __init__(self, run: RunDir, job: Job, extractors: Sequence[Extractor]) -> None:
        self._extractors = extractors
        self._plans = {plan.flow: plan for plan in compile_flow_plans(job)}
        self._looked = [0] * len(extractors)
        self.recuts = Recuts(run, job, self._plans)

    def restore(self) -> None:
        """Ends what a kill interrupted: every plan gets the cuts that were decided."""
        for extractor in self._extractors:
            states = extractor.staging.plans()["state"]
            for index, key in enumerate(extractor.keys()):
                if key in self._plans and states[index] in (PLAN_ACTIVE, PLAN_SUSPENDED):
                    self.recuts.restore(extractor, index, key)

    def install(self, *, lost: bool) -> None:
        """Plans for flows that appeared; what no plan names is ignored from here on.

        lost: nothing is placed any more.
        """
        for number, extractor in enumerate(self._extractors):
            keys = extractor.keys()
            for index in range(self._looked[number], len(keys)):
                if extractor.staging.plans()["state"][index] != PLAN_UNKNOWN:
                    continue
                plan = None if lost else self._plans.get(keys[index])
                if plan is None or not extractor.install(plan):
                    extractor.ignore(index)
                else:
                    self.recuts.restore(extractor, index, keys[index])
            self._looked[number] = len(keys)

    def passed(self, step: int) -> bool:
        """Every planned flow is well beyond `step` at every mirror point."""
        last: dict[FlowKey, int] = {}
        for extractor in self._extractors:
            plans = extractor.staging.plans()
            for index, key in enumerate(extractor.keys()):
                plan = plans[index]
                if plan["state"] in (PLAN_ACTIVE, PLAN_SUSPENDED) and plan["each_sends"]:
                    last[key] = max(last.get(key, 0), int(plan["last_step"]))
        return bool(last) and all(at >= step + PASSED_STEPS for at in last.values())
