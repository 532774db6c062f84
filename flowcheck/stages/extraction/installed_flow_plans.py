"""The flow plans of a learned job, installed and restored at every mirror point."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from flowcheck.findings.finding import Finding
from flowcheck.plane.extraction.flow_plan_install import (
    PLAN_ACTIVE,
    PLAN_IGNORE,
    PLAN_SUSPENDED,
    PLAN_UNKNOWN,
)
from flowcheck.plane.extraction.payload_extractor import Extractor
from flowcheck.plane.extraction.psn_alignment import JoinedFlow
from flowcheck.plane.shared_memory.flow_table import flow_key
from flowcheck.stages.extraction.lost_messages import pass_lost_messages, waits_behind_gap
from flowcheck.stages.extraction.plan_deviation_resolver import DeviationResolver
from flowcheck.stages.extraction.step_give_up_rule import FlowProgress
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.staged_messages.staging_space import staging_fuller_than
from flowcheck.step_numbers import Iteration, Step
from flowcheck.wire.traffic.observed_messages import FlowKey
from flowcheck.wire.training_job.flow_plan import FlowPlan, compile_flow_plans
from flowcheck.wire.training_job.learned_job import FollowedData, LearnedJob


class InstalledPlans:
    """Plans of all flows that the job names, in all rings."""

    def __init__(
        self,
        run: RunDir,
        job: LearnedJob,
        extractors: Sequence[Extractor],
        clock: Callable[[], float] = time.monotonic,
        *,
        base: int = 0,
        name: Callable[[Iteration], Step] = Step,
        fresh: bool = False,
        joins: bool = False,
    ) -> None:
        """base: the number of the shard's last iteration before this job's first one. name: the
        trainer's name of an iteration. fresh: the job was learned just now, so that most flows that
        it does not name belong to it all the same. joins: it may be joined again after a lost
        step."""
        self.job = job
        self._joins = joins
        self.rejoins = False
        """A step was lost: the job's own flows are among `late_flows` now."""
        self._base, self._fresh = base, fresh
        self.late_flows: list[set[int]] = [set() for _ in extractors]
        """[ring] flows that appeared after the job was learned: they stay staged."""
        self._extractors = extractors
        self._plans = {plan.flow: plan for plan in compile_flow_plans(job)}
        self._waiting: list[list[int]] = [[] for _ in extractors]
        """[ring] flows without a plan of which no message came: the other directions of theirs."""
        self._looked = [0] * len(extractors)
        self.passage = FlowProgress(extractors, clock)
        once = job.kind is FollowedData.PARAMETERS and not (job.sees_units_twice or job.sharded)
        self.deviations = DeviationResolver(run, job, self._plans, base, name, unbroken=once)

    @property
    def plans(self) -> Mapping[FlowKey, FlowPlan]:
        """{flow: its plan}."""
        return self._plans

    def restore(self, *, lost: bool) -> None:
        """Ends what a kill interrupted: gives every plan the skips that were decided. lost: nothing
        is placed any more, and the job may be joined again."""
        for extractor in self._extractors:
            states = extractor.staging.plans()["state"]
            for index, key in enumerate(extractor.keys()):
                if key in self._plans and states[index] in (PLAN_ACTIVE, PLAN_SUSPENDED):
                    self.deviations.restore(extractor, index, key)
        if lost:
            self.rejoin_midstream()

    def install(self, *, lost: bool) -> None:
        """Installs plans for flows that appeared; a flow without a plan may belong to another job.

        lost: nothing is placed any more.
        """
        for number, extractor in enumerate(self._extractors):
            keys = extractor.keys()
            unplanned = self._unplanned_flows(extractor) if self._fresh else set()
            wrote = extractor.flows.flows()["write_packets"] > 0
            new = [*self._waiting[number], *range(self._looked[number], len(keys))]
            self._waiting[number] = []
            for index in new:
                if extractor.staging.plans()["state"][index] != PLAN_UNKNOWN:
                    continue
                key = keys[index]
                plan = self._plans.get(key)
                if plan is not None and lost and self.rejoins:
                    self.late_flows[number].add(index)
                elif plan is None and not wrote[index]:
                    self._waiting[number].append(index)
                elif plan is None and index not in unplanned:
                    self.late_flows[number].add(index)
                elif plan is None or lost:
                    extractor.ignore(index)
                else:
                    first = self._base + 1
                    extractor.install_plan(plan, first_step=first, frontier=plan.connection)
                    self.deviations.restore(extractor, index, key)
            self._looked[number] = len(keys)
        self._fresh = False

    def _unplanned_flows(self, extractor: Extractor) -> set[int]:
        """Flows without a plan that began before the first iteration of all others was over:
        clear-to-send, and other traffic of the job. Of a job joined midstream these are all flows
        without a plan."""
        keys = extractor.keys()
        if self.job.midstream:
            return set(range(len(keys)))
        staged = extractor.staging.held_messages()
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

    def late_flows_fill(self, share: float) -> bool:
        """Whether later flows fill more than this share of a ring's staging."""
        rings = zip(self._extractors, self.late_flows, strict=True)
        return any(late and staging_fuller_than(extractor, share) for extractor, late in rings)

    def ignore_late_flows(self) -> None:
        """Drops what is staged of later flows, and keeps nothing more of them."""
        for extractor, late in zip(self._extractors, self.late_flows, strict=True):
            for index in late:
                extractor.ignore(index)
            late.clear()

    def forget_ignored(self) -> None:
        """Later flows that are ignored are not looked at any more."""
        for extractor, late in zip(self._extractors, self.late_flows, strict=True):
            states = extractor.staging.plans()["state"]
            late -= {index for index in late if states[index] == PLAN_IGNORE}

    def ignore_planned(self) -> None:
        """The job is over: places nothing more of it, nor of other flows that exist by now."""
        for extractor, late in zip(self._extractors, self.late_flows, strict=True):
            for index in range(len(extractor.keys())):
                if index not in late:
                    extractor.ignore(index)
            extractor.ignore_late_payload()

    @property
    def messages_of_iteration(self) -> int:
        """Messages of one iteration, over all flows."""
        return sum(len(plan.each.sends) for plan in self._plans.values())

    def rejoin_midstream(self) -> bool:
        """The job goes on after what was lost: from now on its flows are `late_flows` ones. False:
        it may not be joined."""
        if not self._joins or self.job.kind is FollowedData.PARAMETERS:
            return False
        for extractor, late in zip(self._extractors, self.late_flows, strict=True):
            states = extractor.staging.plans()["state"][: len(extractor.keys())]
            late |= set(map(int, np.flatnonzero(np.isin(states, (PLAN_ACTIVE, PLAN_SUSPENDED)))))
            extractor.forget_plans()
        self.rejoins = True
        return True

    def unproven_pauses(self) -> int:
        """Pauses of followed flows that are long enough for 2^24 packets, after which PSNs repeat:
        a loss of exactly so many would not show."""
        found = 0
        for extractor in self._extractors:
            flows = extractor.flows.flows()
            states = extractor.staging.plans()["state"][: len(flows)]
            own = np.isin(states, (PLAN_ACTIVE, PLAN_SUSPENDED))
            found += int(flows["unproven_pauses"][own].sum())
        return found

    def continues_after(
        self, successor: LearnedJob, called: Sequence[Mapping[FlowKey, JoinedFlow]]
    ) -> bool:
        """Whether a flow of this job began a message after the first one of the successor.

        called: [ring] names that the successor gives its flows.
        """
        named = {flow for edge in successor.edges for flow in edge.all_flows}
        for extractor, late, names in zip(self._extractors, self.late_flows, called, strict=True):
            flows = extractor.flows.flows()
            own = [index for index in late if names[flow_key(flows[index])].flow in named]
            staged = extractor.staging.held_messages()
            begins = staged["position"][np.isin(staged["flow"], own)]
            states = extractor.staging.plans()["state"][: len(flows)]
            followed = np.isin(states, (PLAN_ACTIVE, PLAN_SUSPENDED))
            if len(begins) and np.any(flows["last_message"][followed] > begins.min()):
                return True
        return False

    def placement_unsure(
        self, numbers: Mapping[tuple[FlowKey, int], int], iteration: Iteration
    ) -> bool:
        """Whether a flow has left its plan at an iteration or before it, or messages wait behind a
        gap of which nothing tells what lay in it. What a flow leaves out or loses later moves
        nothing that came before."""
        left_at = self.deviations.first_deviation(self._extractors, numbers)
        if left_at is not None and left_at <= iteration:
            return True
        return waits_behind_gap(self._extractors, self._plans, numbers, iteration - self._base)

    def pass_lost_messages_as_planned(
        self, numbers: Mapping[tuple[FlowKey, int], int]
    ) -> list[Finding]:
        """Passes lost messages that can only have been as planned."""
        return pass_lost_messages(self._extractors, self._plans, numbers)
