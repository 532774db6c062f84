"""The plans of a learned job at every mirror point: installed, restored, and how far they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from flowcheck.plane.carrying import staged_unnumbered
from flowcheck.plane.extractor import (
    PLAN_ACTIVE,
    PLAN_IGNORE,
    PLAN_SUSPENDED,
    PLAN_UNKNOWN,
    Extractor,
)
from flowcheck.plane.flows import flow_key
from flowcheck.plane.owners import Name
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
        *,
        base: int = 0,
        name: Callable[[int], int] = int,
        fresh: bool = False,
    ) -> None:
        """base: the shard's steps before this job's first one; name: what the trainer calls one of
        them; fresh: the job was learned just now, so that most flows it does not name belong to it
        all the same."""
        self.job = job
        self._base, self._fresh = base, fresh
        self.late: list[set[int]] = [set() for _ in extractors]
        """[ring] flows that appeared after the job was learned: they stay staged."""
        self._extractors = extractors
        self._plans = {plan.flow: plan for plan in compile_flow_plans(job)}
        self._waiting: list[list[int]] = [[] for _ in extractors]
        """[ring] flows without a plan of which no message came: the other directions of theirs."""
        self._looked = [0] * len(extractors)
        self._clock = clock
        self._heads = [(-1, clock()) for _ in extractors]
        """[ring] its head, and since when it has not moved."""
        self.recuts = Recuts(run, job, self._plans, base, name)

    def restore(self) -> None:
        """Ends what a kill interrupted: every plan gets the cuts that were decided."""
        for extractor in self._extractors:
            states = extractor.staging.plans()["state"]
            for index, key in enumerate(extractor.keys()):
                if key in self._plans and states[index] in (PLAN_ACTIVE, PLAN_SUSPENDED):
                    self.recuts.restore(extractor, index, key)

    def install(self, *, lost: bool) -> None:
        """Plans for flows that appeared; what no plan names may be another job's.

        lost: nothing is placed any more.
        """
        for number, extractor in enumerate(self._extractors):
            keys = extractor.keys()
            beside = self._beside(extractor) if self._fresh else set()
            wrote = extractor.flows.flows()["write_packets"] > 0
            new = [*self._waiting[number], *range(self._looked[number], len(keys))]
            self._waiting[number] = []
            for index in new:
                if extractor.staging.plans()["state"][index] != PLAN_UNKNOWN:
                    continue
                key = keys[index]
                plan = self._plans.get(key)
                if plan is None and not wrote[index]:
                    self._waiting[number].append(index)
                elif plan is None and index not in beside:
                    self.late[number].add(index)
                elif plan is None or lost:
                    extractor.ignore(index)
                else:
                    first = self._base + 1
                    extractor.install(plan, first_step=first, frontier=plan.connection)
                    self.recuts.restore(extractor, index, key)
            self._looked[number] = len(keys)
        self._fresh = False

    def _beside(self, extractor: Extractor) -> set[int]:
        """Flows without a plan that began before the first iteration of all others was over:
        clear-to-send, and what else the job does."""
        keys = extractor.keys()
        records = extractor.staging.records()
        staged = records["message"][records["state"] == 1]
        proved_at = 0
        begins: dict[int, int] = {}
        for m in staged[np.argsort(staged["position"])]:
            plan, position = self._plans.get(keys[int(m["flow"])]), int(m["position"])
            begins.setdefault(int(m["flow"]), position)
            if plan is not None:
                needed = plan.first_number + len(plan.first.sends) + len(plan.each.sends)
                if plan.number(int(m["number"])) < needed:
                    proved_at = max(proved_at, position)
        return {index for index, begin in begins.items() if begin < proved_at}

    def crowded(self, share: float) -> bool:
        """Later flows fill more than a share of what a ring may stage."""
        left = 1 - share
        return any(
            late
            and (
                x.staging.data_free_bytes < left * int(x.staging.handle.header.data_bytes)
                or int(x.staging.handle.header.records_held)
                > share * int(x.staging.handle.header.records_max)
            )
            for x, late in zip(self._extractors, self.late, strict=True)
        )

    def ignore_late(self) -> None:
        """Nothing of the later flows is kept."""
        for extractor, late in zip(self._extractors, self.late, strict=True):
            for index in late:
                extractor.ignore(index)
            late.clear()

    def forget_ignored(self) -> None:
        """Later flows of which nothing is kept are none to look at."""
        for extractor, late in zip(self._extractors, self.late, strict=True):
            states = extractor.staging.plans()["state"]
            late -= {index for index in late if states[index] == PLAN_IGNORE}

    def ignore_planned(self) -> None:
        """The job is over: nothing more of it is placed, nor of what else there was by now."""
        for extractor, late in zip(self._extractors, self.late, strict=True):
            for index in range(len(extractor.keys())):
                if index not in late:
                    extractor.ignore(index)
            extractor.close_homes()

    def goes_on(self, successor: Job, called: Sequence[Mapping[FlowKey, Name]]) -> bool:
        """Did a flow of this job begin a message after the successor's first one?

        called: [ring] what its flows are called in the successor.
        """
        named = {flow for edge in successor.edges for flow in edge.every_flow}
        for extractor, late, names in zip(self._extractors, self.late, called, strict=True):
            flows = extractor.flows.flows()
            own = [index for index in late if names[flow_key(flows[index])].flow in named]
            records = extractor.staging.records()
            staged = records["message"][records["state"] == 1]
            begins = staged["position"][np.isin(staged["flow"], own)]
            states = extractor.staging.plans()["state"][: len(flows)]
            followed = np.isin(states, (PLAN_ACTIVE, PLAN_SUSPENDED))
            if len(begins) and np.any(flows["last_message"][followed] > begins.min()):
                return True
        return False

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
        return suspended or any(map(staged_unnumbered, self._extractors))

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
