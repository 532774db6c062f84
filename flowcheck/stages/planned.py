"""The plans of a learned job at every mirror point: installed, restored, and how far they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from flowcheck.plane.extractor import PLAN_ACTIVE, PLAN_SUSPENDED, PLAN_UNKNOWN, Extractor
from flowcheck.stages.gaps import explain
from flowcheck.stages.recut import Recuts
from flowcheck.stages.rundir import RunDir
from flowcheck.wire.job import Job
from flowcheck.wire.plan import compile_flow_plans
from flowcheck.wire.seen import FlowKey

PASSED_STEPS = 2
"""A step is given up when every flow is so many steps beyond it."""
SILENT_S = 10.0
"""A live mirror point from which nothing comes for so long may have died."""


class Planned:
    """The flows that a job names, of all rings."""

    def __init__(
        self,
        run: RunDir,
        job: Job,
        extractors: Sequence[Extractor],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._extractors = extractors
        self._plans = {plan.flow: plan for plan in compile_flow_plans(job)}
        self._frontiers = {key: number for number, key in enumerate(self._plans)}
        self._looked = [0] * len(extractors)
        self._clock = clock
        self._heads = [(-1, clock()) for _ in extractors]
        """[ring] its head, and since when it has not moved."""
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
                key = keys[index]
                plan = None if lost else self._plans.get(key)
                if plan is None or not extractor.install(plan, frontier=self._frontiers[key]):
                    extractor.ignore(index)
                else:
                    self.recuts.restore(extractor, index, keys[index])
            self._looked[number] = len(keys)

    def explain(self, numbers: Mapping[tuple[FlowKey, int], int]) -> list[str]:
        """What was lost and can only have been as planned is waited for no more."""
        return explain(self._extractors, self._plans, numbers)

    def passed(self, step: int) -> str:
        """Why no ring still brings what `step` lacks; empty while one may.

        Each flow is as far as the slowest ring that carries it. A ring that ended brings
        nothing more; one that was silent for SILENT_S is not waited for either.
        """
        silent = self._silent()
        if not silent and self._undecided():
            return ""
        last: dict[FlowKey, int] = {}
        ended: dict[FlowKey, int] = {}
        for number, extractor in enumerate(self._extractors):
            over = number in silent or extractor.ring.drained
            plans = extractor.staging.plans()
            for index, key in enumerate(extractor.keys()):
                plan = plans[index]
                if plan["state"] not in (PLAN_ACTIVE, PLAN_SUSPENDED) or not plan["each_sends"]:
                    continue
                at = int(plan["last_step"])
                if over:
                    ended[key] = max(ended.get(key, 0), at)
                else:
                    last[key] = min(last.get(key, at), at)
        last = ended | last
        if not last or any(at < step + PASSED_STEPS for at in last.values()):
            return ""
        why = "every flow went on without it"
        if silent:
            total = len(self._extractors)
            why += f"; {len(silent)} of {total} mirror points, silent for {SILENT_S:g} s, "
            why += "not waited for"
        return why

    def _undecided(self) -> bool:
        """What is staged on one of several rings may be of any step until all went by it."""
        if len(self._extractors) < 2 or all(x.ring.drained for x in self._extractors):
            return False
        suspended = any(
            int(extractor.staging.plans()["state"][index]) == PLAN_SUSPENDED
            for extractor in self._extractors
            for index in range(len(extractor.keys()))
        )
        return suspended or any(x.staged_unnumbered for x in self._extractors)

    def _silent(self) -> set[int]:
        """Rings where nothing came for long while others went on, and all that came is taken."""
        now_s = self._clock()
        silent = set()
        for number, extractor in enumerate(self._extractors):
            ring = extractor.ring
            head = ring.head
            if head != self._heads[number][0] or ring.tail != head:
                self._heads[number] = (head, now_s)
            elif now_s - self._heads[number][1] >= SILENT_S and not ring.drained:
                silent.add(number)
        return silent if len(silent) < len(self._extractors) else set()
