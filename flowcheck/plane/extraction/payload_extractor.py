"""The payload extractor of one ring: moves payload to its place in the gradient or into
staging, one C call per span."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

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
    numbers_in_plan,
)
from flowcheck.plane.extraction.psn_alignment import JoinedFlow
from flowcheck.plane.shared_memory.flow_table import FlowTable, flow_key
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.plane.shared_memory.gradient_double_buffer import GradientShard
from flowcheck.plane.shared_memory.staging_file import NUMBER_UNKNOWN, Staging
from flowcheck.step_numbers import Iteration
from flowcheck.wire.traffic.observed_messages import FlowKey
from flowcheck.wire.training_job.flow_plan import FlowPlan

NO_RUN = 2**64 - 1
"""No message is of it."""
NO_LIMIT = 2**64 - 1
"""Bytes: all that can be placed is."""


class PlaceableMessages(NamedTuple):
    """Columns over staged messages of flows that have a plan."""

    numbers: NDArray[np.uint64]
    """What the plan calls each; NUMBER_UNKNOWN: nothing tells it."""
    records: NDArray[np.uint64]
    named: NDArray[np.uint64]
    """Numbers that the transport did not give; NUMBER_UNKNOWN: it did, or nobody can."""


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
        number: int | None = None,
    ) -> None:
        """block: with a file source, stop where a message cannot be staged; else drop it. number:
        of the ring in its run, for reports of copies that differ.

        Raises RingError when the files do not belong together.
        """
        self.ring, self.flows, self.staging, self.shard = ring, flows, staging, shard
        self._own_keys: list[FlowKey] = []
        self._keys: list[FlowKey] = []
        self._names: Mapping[FlowKey, JoinedFlow] = {}
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
        if number is not None:
            lib.fc_extractor_number(self.handle, number)

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

    @property
    def wanted_iteration(self) -> Iteration:
        """The last one of which a message came before it had a generation; 0: none did."""
        return Iteration(lib.fc_extract_wanted_step(self.handle))

    def unblock(self) -> None:
        """From now on what cannot be staged is dropped and counted."""
        lib.fc_extract_unblock(self.handle)

    def use_shard(self, shard: GradientShard) -> None:
        self.shard = shard
        lib.fc_extractor_use_shard(self.handle, shard.handle)

    def set_flow_names(self, names: Mapping[FlowKey, JoinedFlow]) -> None:
        """From now on flows have the names under which all mirror points were joined."""
        self._names, self._keys = names, []

    def ignore_late_payload(self) -> None:
        """What still comes of messages that were placed is ignored: their steps are given up."""
        lib.fc_ignore_placed(self.handle)

    def own_keys(self) -> list[FlowKey]:
        """[flows] keys by flow index, as the ring's own parser calls them."""
        self._own_keys += map(flow_key, self.flows.flows()[len(self._own_keys) :])
        return self._own_keys

    def keys(self) -> list[FlowKey]:
        """[flows] keys by flow index, with the names that `set_flow_names` gave."""
        new = self.own_keys()[len(self._keys) :]
        self._keys += [self._names[key].flow if key in self._names else key for key in new]
        return self._keys

    def psn_shift(self, flow: int) -> int:
        """What the unwrapped PSNs of a flow lack of those where all mirror points are joined."""
        own = self._names.get(flow_key(self.flows.flows()[flow])) if self._names else None
        return own.psn_shift if own else 0

    def refreshed_records(self) -> NDArray[np.intp]:
        """[messages] records of every staged message, complete or not, in order of discovery, each
        with what the parser knows of it by now."""
        lib.fc_staged_refresh_all(self.handle)
        return self._find_staged_records()

    def _find_staged_records(self) -> NDArray[np.intp]:
        held = self.staging.held()
        positions = self.staging.records()["message"]["position"][held]
        return held[np.argsort(positions, kind="stable")]

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
        messages = self.staging.held_messages()
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

    def placeable(self, numbers: Mapping[tuple[FlowKey, int], int]) -> PlaceableMessages:
        """What is staged and has a plan, in order of discovery. numbers: as of `assign_staged`."""
        held, plans = self._find_staged_records(), self.staging.plans()
        messages = self.staging.records()["message"]
        flows = messages["flow"][held]
        planned = plans["state"][flows] != PLAN_UNKNOWN
        held, flows = held[planned], flows[planned]
        told = messages["number"][held].astype(np.uint64)
        named = np.full(len(held), NUMBER_UNKNOWN, np.uint64)
        if numbers:
            keys = self.keys()
            for index in np.flatnonzero(told == np.uint64(NUMBER_UNKNOWN)):
                flow, psn = int(flows[index]), int(messages["first_psn"][held[index]])
                name = keys[flow], psn + self.psn_shift(flow)
                named[index] = numbers.get(name, NUMBER_UNKNOWN)
        in_plan = numbers_in_plan(plans[flows], np.minimum(told, named))
        return PlaceableMessages(in_plan, held.astype(np.uint64), named)

    def place(
        self, records: NDArray[np.uint64], named: NDArray[np.uint64], limit_bytes: int
    ) -> tuple[int, int]:
        """Moves staged messages to where their plans place them, in this order, until so many bytes
        left staging. Returns (how many left, how many were looked at)."""
        looked = ffi.new("uint64_t *")
        left = lib.fc_staged_place_many(
            self.handle,
            ffi.from_buffer("uint64_t[]", np.ascontiguousarray(records)),
            ffi.from_buffer("uint64_t[]", np.ascontiguousarray(named)),
            len(records),
            limit_bytes,
            looked,
        )
        return int(left), int(looked[0])

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
    return place_staged_bytes(extractors, numbers, NO_LIMIT)[0]


def place_staged_bytes(
    extractors: Sequence[Extractor],
    numbers: Mapping[tuple[FlowKey, int], int],
    limit_bytes: int,
) -> tuple[int, bool]:
    """The same, and ends after the message with which `limit_bytes` left one ring's staging.
    Returns (how many messages moved, whether some were not looked at)."""
    waiting = [extractor.placeable(numbers) for extractor in extractors]
    ring = np.repeat(np.arange(len(waiting)), [len(own.records) for own in waiting])
    number, record, named = (
        np.concatenate(column) if waiting else np.zeros(0, np.uint64)
        for column in zip(*waiting, strict=True)
    )
    order = np.lexsort((record, ring, number))
    ring, record, named = ring[order], record[order], named[order]
    turns = np.flatnonzero(np.diff(ring, prepend=-1))  # runs of messages of one ring
    moved = 0
    for start, stop in pairwise(np.append(turns, len(ring)).tolist()):
        chosen = slice(start, stop)
        left, looked = extractors[ring[start]].place(record[chosen], named[chosen], limit_bytes)
        moved += left
        if looked < stop - start:
            return moved, True
    return moved, False
