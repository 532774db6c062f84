"""The payload extractor of one ring: moves payload to its place in the gradient or into
staging, one C call per span."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowcheck._core import ffi, lib
from flowcheck.closing_context import Closeable
from flowcheck.errors import RingError, check
from flowcheck.plane.extraction.flow_plan_install import (
    NO_FRONTIER,
    PLAN_IGNORE,
    PLAN_UNKNOWN,
    flow_plan_fields,
    install,
    number_in_plan,
)
from flowcheck.plane.extraction.psn_alignment import JoinedFlow
from flowcheck.plane.shared_memory.flow_table import FlowTable, flow_key
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.plane.shared_memory.gradient_double_buffer import GradientShard
from flowcheck.plane.shared_memory.staging_file import NUMBER_UNKNOWN, Staging
from flowcheck.wire.traffic.observed_messages import FlowKey, ObservedMessage
from flowcheck.wire.training_job.flow_plan import FlowPlan

NO_RUN = 2**64 - 1
"""No message is of it."""


class Extractor(Closeable):
    """Takes back what a killed extractor left half done, then goes on from `ring.tail`."""

    def __init__(
        self,
        ring: FrameRing,
        flows: FlowTable,
        staging: Staging,
        shard: GradientShard | None = None,
        *,
        block: bool = True,
    ) -> None:
        """block: with a file source, stop where a message cannot be staged; else drop it.

        Raises RingError when the files do not belong together.
        """
        self.ring, self.flows, self.staging, self.shard = ring, flows, staging, shard
        self._keys: list[FlowKey] = []
        self._names: Mapping[FlowKey, JoinedFlow] = {}
        self._told = 0
        slot = ffi.new("struct fc_extractor **")
        code = lib.fc_extractor_open(
            ring.handle,
            flows.handle,
            staging.handle,
            ffi.NULL if shard is None else shard.handle,
            block,
            slot,
        )
        check(code, ring.path.name, RingError)
        self.handle: Any = slot[0]

    @property
    def _subject(self) -> str:
        """What an error of the core is about."""
        return self.ring.path.name

    def _subject_of(self, flow: FlowKey) -> str:
        return f"{self._subject}, {flow.source} to {flow.destination}, QP {flow.dest_qp}"

    def extract(self, limit: int) -> int:
        """Extracts up to `limit` slots; returns how many were released."""
        return int(lib.fc_extract_span(self.handle, limit))

    @property
    def stalled(self) -> bool:
        """The last call stopped because staging was full and the source can wait."""
        return bool(lib.fc_extract_stalled(self.handle))

    def unblock(self) -> None:
        """From now on what cannot be staged is dropped and counted."""
        lib.fc_extract_unblock(self.handle)

    def use_shard(self, shard: GradientShard) -> None:
        self.shard = shard
        lib.fc_extractor_use_shard(self.handle, shard.handle)

    def set_flow_names(self, names: Mapping[FlowKey, JoinedFlow]) -> None:
        """From now on flows have the names under which all mirror points were joined."""
        self._names, self._keys = names, []

    @property
    def names(self) -> Mapping[FlowKey, JoinedFlow]:
        """Those that `set_flow_names` gave."""
        return self._names

    def ignore_late_payload(self) -> None:
        """What still comes of messages that were placed is ignored: their steps are given up."""
        lib.fc_ignore_placed(self.handle)

    def keys(self) -> list[FlowKey]:
        """[flows] keys by flow index."""
        keys = [flow_key(record) for record in self.flows.flows()[len(self._keys) :]]
        self._keys += [self._names[key].flow if key in self._names else key for key in keys]
        return self._keys

    def psn_shift(self, flow: int) -> int:
        """What the unwrapped PSNs of a flow lack of those where all mirror points are joined."""
        own = self._names.get(flow_key(self.flows.flows()[flow])) if self._names else None
        return own.psn_shift if own else 0

    def staged(self, *, copy: bool = True) -> Iterator[ObservedMessage]:
        """Every staged message, complete or not, in order of discovery.

        copy: False: payloads of whole ones are read where they lie, valid while they are staged.
        """
        return self._messages(self._held(), copy=copy)

    def completed(self) -> list[ObservedMessage]:
        """Staged messages that became complete since the last call, in order of completion."""
        if self.staging.completions == self._told:
            return []
        records = self.staging.records()
        new = np.flatnonzero((records["state"] == 1) & (records["completed"] > self._told))
        self._told = self.staging.completions
        return list(self._messages(new[np.argsort(records["completed"][new])]))

    def _held(self) -> NDArray[np.intp]:
        records = self.staging.records()
        held = np.flatnonzero(records["state"] == 1)
        return held[np.argsort(records["message"]["position"][held], kind="stable")]

    def _messages(
        self, records: NDArray[np.intp], *, copy: bool = True
    ) -> Iterator[ObservedMessage]:
        keys = self.keys()
        for record in map(int, records):
            lib.fc_staged_refresh(self.handle, record)
            flow = int(self.staging.handle.records[record].message.flow)
            yield self.staging.message(record, keys[flow], copy=copy)

    def install_plan(
        self, plan: FlowPlan, *, first_step: int = 1, frontier: int = NO_FRONTIER
    ) -> bool:
        """Sets the plan of one flow; False while this ring has not seen the flow.

        first_step: the step `plan.first` fills first; frontier: which of the shard's, one and the
        same for a flow on all rings. Raises RingError where the tables contradict each other
        or the shard, or do not fit.
        """
        keys = self.keys()
        if plan.flow not in keys:
            return False
        fields = flow_plan_fields(plan, first_step=first_step, frontier=frontier)
        if plan.first_psn is not None:
            index = keys.index(plan.flow)
            run_psn, nth = self._run_at(index, plan.first_psn - self.psn_shift(index))
            own = plan.first_number // plan.stride
            fields |= {"run_psn": run_psn, "run_shift": (own - nth) % 2**64}
        code = install(self.handle, keys.index(plan.flow), plan, fields)
        check(code, self._subject_of(plan.flow), RingError)
        return True

    def _run_at(self, flow: int, first_psn: int) -> tuple[int, int]:
        """(run, place in it) of a staged message; of one this ring lacks (NO_RUN, 0)."""
        records = self.staging.records()
        messages = records["message"][records["state"] == 1]
        own = messages[(messages["flow"] == flow) & (messages["first_psn"] == first_psn)]
        return (int(own[0]["run_psn"]), int(own[0]["nth"])) if len(own) else (NO_RUN, 0)

    def forget_plans(self) -> None:
        """No flow has a plan any more: what comes is staged again."""
        lib.fc_plans_forget(self.handle)

    def ignore(self, flow: int) -> None:
        """Nothing more of the flow with this index is staged or placed."""
        check(lib.fc_plan_set(self.handle, flow, PLAN_IGNORE), self._subject, RingError)

    def skip_messages(self, flow: int, skip: tuple[int, int, int]) -> None:
        """Messages [from, resume) of a planned flow belong to no step; from `resume` on, number
        less `skipped` mod 2^64 counts in the plan, which is active again. A skip before its
        last one changes nothing: a killed stage made it."""
        plan = self.staging.plans()[flow]
        used = int(plan["skips_used"])
        if used and skip[0] < int(plan["skips"][(used - 1) % len(plan["skips"])]["resume"]):
            return
        fields = dict(zip(("from", "resume", "skipped"), skip, strict=True))
        code = lib.fc_plan_skip(self.handle, flow, ffi.new("struct fc_skip *", fields))
        check(code, self._subject, RingError)

    def resume(self, flow: int) -> None:
        """Takes a suspended plan up again, as it is."""
        check(lib.fc_plan_resume(self.handle, flow), self._subject, RingError)

    def frontier(self, flow: int) -> int:
        """Number of the first message of a planned flow that no ring told yet."""
        return int(lib.fc_frontier(self.handle, flow))

    def place_in_plan(self, flow: int, number: int) -> int | None:
        """Which message of its plan the one of that number in it is; None: it belongs to no
        step."""
        place = int(lib.fc_plan_place(self.handle, flow, number))
        return None if place == NUMBER_UNKNOWN else place

    def pass_frontier(self, flow: int, number: int) -> None:
        """What is missing of a planned flow before message `number` was as planned."""
        check(lib.fc_frontier_pass(self.handle, flow, number), self._subject, RingError)

    def assign_staged(self, numbers: Mapping[tuple[FlowKey, int], int] | None = None) -> int:
        """Moves staged messages to where their plans place them by now; returns how many moved.

        numbers: {(flow, first_psn): number} of messages the transport could not number.
        """
        return place_staged([self], numbers or {})

    def placeable(
        self, numbers: Mapping[tuple[FlowKey, int], int]
    ) -> Iterator[tuple[int, int, int]]:
        """(number in the plan, record, number from `numbers`) of what is staged and has a plan."""
        keys = self.keys()
        plans = self.staging.plans()
        states = plans["state"]
        for record in map(int, self._held()):
            m = self.staging.handle.records[record].message
            if states[m.flow] != PLAN_UNKNOWN:
                name = keys[m.flow], int(m.first_psn) + self.psn_shift(m.flow)
                named = numbers.get(name, NUMBER_UNKNOWN)
                yield number_in_plan(plans[m.flow], min(int(m.number), named)), record, named

    def place(self, record: int, named: int) -> bool:
        """Moves one staged message to where its plan places it; False where it must stay."""
        return bool(lib.fc_staged_place(self.handle, record, named))

    def close(self) -> None:
        """Frees the extractor; ring, tables and files stay open and must be closed after it."""
        if self.handle:
            lib.fc_extractor_close(self.handle)
            self.handle = None


def place_staged(
    extractors: Sequence[Extractor], numbers: Mapping[tuple[FlowKey, int], int]
) -> int:
    """Extractor.assign_staged of all rings of a job, in the order of message numbers: what comes
    first decides whether the plan still holds, and whether what follows has its turn."""
    waiting = [
        (number, ring, record, named)
        for ring, extractor in enumerate(extractors)
        for number, record, named in extractor.placeable(numbers)
    ]
    return sum(extractors[ring].place(record, named) for _, ring, record, named in sorted(waiting))
