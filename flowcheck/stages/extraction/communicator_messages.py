"""Messages of all flows of one communicator, merged over all mirror points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flowcheck._core import lib
from flowcheck.plane.extraction.flow_plan_install import number_in_plan
from flowcheck.plane.extraction.payload_extractor import Extractor
from flowcheck.plane.shared_memory.staging_file import NUMBER_UNKNOWN
from flowcheck.step_numbers import Iteration
from flowcheck.wire.traffic.observed_messages import NOT_ARRIVED, FlowKey
from flowcheck.wire.training_job.connection_messages import SendKind
from flowcheck.wire.training_job.flow_plan import FlowPlan
from flowcheck.wire.unplanned_collectives.fewest_extras_search import KnownStream, LanePositions
from flowcheck.wire.unplanned_collectives.step_boundaries import StepReader

MODULUS = 1 << 64


@dataclass(frozen=True, slots=True)
class MirroredFlow:
    """One flow as one mirror point sees it."""

    extractor: Extractor
    index: int
    """Of the flow in its flow table."""
    lane: int

    @property
    def plan(self) -> np.void:
        plan: np.void = self.extractor.staging.plans()[self.index]
        return plan

    @property
    def state(self) -> int:
        return int(self.plan["state"])

    @property
    def skips(self) -> list[tuple[int, int, int]]:
        """(from, resume, skipped) of the skips that are kept, latest first."""
        plan = self.plan
        used, room = int(plan["skips_used"]), len(plan["skips"])
        kept = (plan["skips"][n % room] for n in range(used - 1, max(-1, used - 1 - room), -1))
        return [(int(c["from"]), int(c["resume"]), int(c["skipped"])) for c in kept]


class CommunicatorMessages:
    """Message numbers, sizes and places in the plan, per lane; lanes are numbered as the reader has
    them."""

    def __init__(
        self,
        reader: StepReader,
        plans: Mapping[FlowKey, FlowPlan],
        instances: Sequence[MirroredFlow],
        numbers: Mapping[tuple[FlowKey, int], int],
    ) -> None:
        """numbers: {(flow, first PSN): message number} where the transport does not know it."""
        self.instances = instances
        self.gaps_open = False
        """What lies between messages may still come from another mirror point."""
        self._reader = reader
        self._plans = [plans[lane.flows[0]] for lane in reader.lanes]
        lanes = range(len(reader.lanes))
        self._own = [[i for i in instances if i.lane == lane] for lane in lanes]
        self._staged = [self._sizes(lane, numbers) for lane in lanes]
        self._next = [
            max((int(i.plan["next_number"]) for i in own), default=0) for own in self._own
        ]
        self._stop = [
            max(self._next[lane], max(self._staged[lane], default=-1) + 1) for lane in lanes
        ]
        self._skips = [max((i.skips for i in own), key=len, default=[]) for own in self._own]
        ends = [np.cumsum([0, *(len(op[lane]) for op in reader.each)]) for lane in lanes]
        self._offsets = [[int(end) for end in one] for one in ends]

    def _sizes(self, lane: int, numbers: Mapping[tuple[FlowKey, int], int]) -> dict[int, int]:
        """{number: wire bytes} of all staged messages of one lane."""
        sizes: dict[int, int] = {}
        for instance in self._own[lane]:
            key = instance.extractor.keys()[instance.index]
            messages = instance.extractor.staging.held_messages()
            for m in messages[messages["flow"] == instance.index]:
                number = int(m["number"])
                if number == NUMBER_UNKNOWN:
                    shift = instance.extractor.psn_shift(instance.index)
                    number = numbers.get((key, int(m["first_psn"]) + shift), number)
                if number != NUMBER_UNKNOWN and not int(m["flags"]) & lib.FC_MESSAGE_CLOSING:
                    sizes[number_in_plan(instance.plan, number)] = int(m["length_bytes"])
        return sizes

    @property
    def waiting(self) -> int:
        """How many messages are staged, over all lanes."""
        return sum(map(len, self._staged))

    @property
    def longest_wait(self) -> int:
        return max(map(len, self._staged), default=0)

    def deviating(self, lane: int) -> int | None:
        """Number of the first message that was not as planned."""
        numbers = [int(i.plan["deviating_number"]) for i in self._own[lane]]
        return min((n for n in numbers if n != NUMBER_UNKNOWN), default=None)

    def deviation(self) -> tuple[Iteration, bool]:
        """The first iteration in which a message deviates; and whether every such message comes
        after all buckets of its iteration, so that only the next one's begin must be found."""
        found = [
            (self._place(lane, number), lane)
            for lane in range(len(self._own))
            if (number := self.deviating(lane)) is not None
        ]
        places = [(self._iteration(lane, nth), nth, lane) for nth, lane in found if nth is not None]
        first = min((iteration for iteration, _, _ in places), default=Iteration(1))
        return first, all(self._trailing(lane, nth) for own, nth, lane in places if own == first)

    def _trailing(self, lane: int, nth: int) -> bool:
        """Whether the place lies after the last bucket of its iteration."""
        if nth < self._first(lane):
            return nth >= self._reader.first_end[lane]
        return self._within(lane, nth) >= self._last_end(lane)

    def _last_end(self, lane: int) -> int:
        return self._offsets[lane][self._reader.buckets[-1] + 1]

    def _first(self, lane: int) -> int:
        return len(self._plans[lane].first.sends)

    def _period(self, lane: int) -> int:
        return len(self._plans[lane].each.sends)

    @property
    def first_iterations(self) -> int:
        """How many iterations the plan's `first` part covers."""
        return max((plan.first_steps for plan in self._plans), default=1)

    def _iteration(self, lane: int, nth: int) -> Iteration:
        beyond = nth - self._first(lane)
        if beyond < 0:
            second = self._plans[lane].second_at
            return Iteration(1 if second is None or nth < second else 2)
        return Iteration(self.first_iterations + 1 + beyond // max(1, self._period(lane)))

    def _within(self, lane: int, nth: int) -> int:
        return (nth - self._first(lane)) % max(1, self._period(lane))

    def skipped_at(self, lane: int, number: int) -> int:
        for _, resume, skipped in self._skips[lane]:
            if number >= resume:
                return skipped
        return 0

    def _place(self, lane: int, number: int) -> int | None:
        """The place in the plan of message `number`, as the C code decides it; None: it belongs to
        no step."""
        skipped = 0
        for start, resume, kept in self._skips[lane]:
            if number >= start:
                if number < resume:
                    return None
                skipped = kept
                break
        return (number - self._plans[lane].first_number - skipped) % MODULUS

    def _number(self, lane: int, nth: int) -> int:
        """The number of the message at place `nth` of the plan, with the skips so far."""
        base = self._plans[lane].first_number + nth
        for _, resume, skipped in self._skips[lane]:
            number = (base + skipped) % MODULUS
            if resume <= number < 1 << 63:
                return number
        return base

    def after_iteration(self, iteration: Iteration) -> LanePositions:
        """[lane] message number after the last bucket of `iteration`; for those of the
        `first` part, after all of it."""
        ends = [self._first(lane) for lane in range(len(self._own))]
        if iteration > self.first_iterations:
            laps = iteration - self.first_iterations - 1
            ends = [
                end + laps * self._period(lane) + self._last_end(lane)
                for lane, end in enumerate(ends)
            ]
        return self._after(ends)

    def after_first_buckets(self) -> LanePositions:
        """[lane] message number after the last bucket of the `first` part, before what comes once
        after it."""
        return self._after(self._reader.first_end)

    def _after(self, ends: Iterable[int]) -> LanePositions:
        """[lane] message number after so many messages of the plan."""
        # The message before it is the one that was found there.
        return tuple(
            self._number(lane, nth - 1) + 1 if nth else self._number(lane, nth)
            for lane, nth in enumerate(ends)
        )

    def planned_place(self, lane: int, iteration: Iteration, bucket: int) -> int:
        """Place in the plan of the first message of a bucket."""
        offset = self._offsets[lane][self._reader.buckets[bucket]]
        laps = iteration - self.first_iterations - 1
        return self._first(lane) + laps * self._period(lane) + offset

    def planned_number(self, lane: int, iteration: Iteration, bucket: int) -> int:
        """The number that this message would have without any skip."""
        return self._plans[lane].first_number + self.planned_place(lane, iteration, bucket)

    def messages_of(self, lane: int, bucket: int) -> int:
        return len(self._reader.each[self._reader.buckets[bucket]][lane])

    def _planned(self, lane: int, number: int) -> np.void | None:
        """The plan's entry (numpy record) for a message that was placed or ignored; None: it
        belongs to no step."""
        nth = self._place(lane, number)
        if nth is None:
            return None
        plan = self._plans[lane]
        if nth >= self._first(lane) and not self._period(lane):
            return None
        early = nth < self._first(lane)
        send: np.void = plan.first.sends[nth] if early else plan.each.sends[self._within(lane, nth)]
        return send

    def _size(self, lane: int, number: int) -> int | None:
        staged = self._staged[lane].get(number)
        if staged is not None:
            return staged
        if number >= self._stop[lane]:
            return NOT_ARRIVED
        if number >= self._next[lane]:
            return NOT_ARRIVED if self.gaps_open else None
        planned = self._planned(lane, number)
        return None if planned is None else int(planned["wire_bytes"])

    def _pinned(self, lane: int, number: int) -> int | None:
        if number >= self._next[lane] or number in self._staged[lane]:
            return None
        planned = self._planned(lane, number)
        if planned is None or planned["kind"] != SendKind.FINAL or not planned["segments"]:
            return None
        if planned["module_buffer"]:
            return None  # no step is the worse for what lies behind its gradient
        return self._place(lane, number)

    def known_stream(self) -> KnownStream:
        return KnownStream(size=self._size, pinned=self._pinned, planned_place=self.planned_place)
