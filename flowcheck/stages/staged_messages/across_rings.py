"""Reassembly across rings: packets and message numbers of a flow that several rings see in
part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from flowcheck.atomic_write import write_atomically
from flowcheck.plane.extraction import orphan_packet_exchange
from flowcheck.plane.extraction.flow_plan_install import PLAN_ACTIVE, PLAN_SUSPENDED
from flowcheck.plane.extraction.payload_extractor import Extractor
from flowcheck.plane.shared_memory.staging_file import NUMBER_UNKNOWN
from flowcheck.stages.staged_messages.gap_numbers import numbers_behind_gaps
from flowcheck.wire.traffic.observed_messages import FlowKey
from flowcheck.wire.training_job.flow_plan import FlowPlan

ENDS_KEPT = 4096
"""Ends of numbered messages remembered per flow. A choice that bounds memory: more bridges rings
further apart."""
UNKNOWN_MAX = 8
"""Messages of one flow no ring can number, before the others of it wait for the next look. A choice
that bounds time."""

FlowPsn = tuple[FlowKey, int]
"""A flow and an unwrapped PSN of it, as all mirror points are joined."""


class CrossRingReassembly:
    """Carries packets and message numbers from ring to ring.

    A ring that sees every second packet of a flow holds packets without their message, and
    messages without their number. The rings that saw what was sent before know both.
    """

    def __init__(self, file: Path) -> None:
        """file: the numbers found; they outlive a kill of the stage."""
        self._file = file
        self.numbers: dict[FlowPsn, int] = {}
        """{(flow, first PSN): message number} where the ring's own parser may not know it."""
        self._ends: dict[FlowKey, dict[int, int]] = defaultdict(dict)
        """{flow: {PSN after a message: number after it}}"""
        if file.exists():
            kept = msgspec.msgpack.decode(file.read_bytes(), type=tuple[_Numbers, _Numbers])
            self.numbers = {(flow, psn): number for flow, psn, number in kept[0]}
            for flow, psn, number in kept[1]:
                self._ends[flow][psn] = number

    def learned(self, numbers: Mapping[FlowPsn, int]) -> None:
        """What the learned stream says of messages that are staged."""
        self.numbers.update(numbers)
        self._keep()

    def deliver_orphans(self, extractors: Sequence[Extractor]) -> int:
        """Delivers orphan packets by the ring that knows their message; returns how many."""
        if len(extractors) < 2:
            return 0
        where = _where(extractors)
        done = 0
        for holder in extractors:
            for index, flow, psn, payload in list(orphan_packet_exchange.shared_orphans(holder)):
                differs = holder.staging.orphan_differs(index)
                for other, own, shift in where.get(flow, ()):
                    if other is not holder and orphan_packet_exchange.deliver_orphan(
                        other, own, psn - shift, payload, differs=differs
                    ):
                        orphan_packet_exchange.forget_orphan(holder, index)
                        done += 1
                        break
        return done

    def number(self, extractors: Sequence[Extractor]) -> None:
        """Numbers staged messages that follow one whose number any ring knows.

        On file before a message is placed by it: then its record is gone.
        """
        if len(extractors) < 2:
            return
        if not any(map(orphan_packet_exchange.has_unnumbered_staged, extractors)):
            return
        where = _where(extractors)
        staged: dict[FlowKey, set[tuple[int, int, int, bool]]] = defaultdict(set)
        for extractor in extractors:
            for flow, first, stop, number, closing in orphan_packet_exchange.staged_spans(
                extractor
            ):
                staged[flow].add((first, stop, number, closing))
        before = len(self.numbers)
        for flow, messages in staged.items():
            if flow in where:
                self._number_flow(flow, sorted(messages), where[flow])
        if len(self.numbers) != before:
            self._keep_staged({(flow, m[0]) for flow, messages in staged.items() for m in messages})

    def number_behind_gaps(
        self, extractors: Sequence[Extractor], plans: Mapping[FlowKey, FlowPlan]
    ) -> int:
        """Numbers staged messages behind a gap of their flow, where the plan tells what lay in it.
        Returns how many.

        On file before a message is placed by it.
        """
        if not any(map(orphan_packet_exchange.has_unnumbered_staged, extractors)):
            return 0
        found = numbers_behind_gaps(extractors, plans, self.numbers, self._ends)
        if found:
            self.numbers.update(found)
            for flow, _ in found:
                _drop_oldest(self._ends[flow])
            staged = map(orphan_packet_exchange.staged_spans, extractors)
            self._keep_staged({(flow, first) for own in staged for flow, first, *_ in own})
        return len(found)

    def _number_flow(
        self, flow: FlowKey, messages: list[tuple[int, int, int, bool]], where: list[_Instance]
    ) -> None:
        ends, unknown = self._ends[flow], 0
        for first, stop, told, closing in messages:
            number = told
            if number == NUMBER_UNKNOWN:
                number = self.numbers.get((flow, first), NUMBER_UNKNOWN)
            if number == NUMBER_UNKNOWN and first in ends:
                number = ends[first] - closing
            if number == NUMBER_UNKNOWN and unknown < UNKNOWN_MAX:
                asked = (
                    orphan_packet_exchange.number_at(x, own, first - shift, closing)
                    for x, own, shift in where
                )
                number = min(asked)
                unknown += number == NUMBER_UNKNOWN
            if number == NUMBER_UNKNOWN:
                continue
            if told == NUMBER_UNKNOWN:
                self.numbers[flow, first] = number
            ends[stop] = number + 1
        _drop_oldest(ends)

    def _keep_staged(self, staged: set[FlowPsn]) -> None:
        """Keeps the numbers of what is staged, on file too."""
        self.numbers = {name: n for name, n in self.numbers.items() if name in staged}
        self._keep()

    def _keep(self) -> None:
        """Whole or not at all; it need not outlive the machine, as little as what is staged."""
        numbers = [(flow, psn, number) for (flow, psn), number in self.numbers.items()]
        ends = [
            (flow, psn, ends[psn])
            for flow, ends in self._ends.items()
            for psn in sorted(ends)[-UNKNOWN_MAX:]
        ]
        write_atomically(self._file, msgspec.msgpack.encode((numbers, ends)), durable=False)


def _drop_oldest(ends: dict[int, int]) -> None:
    while len(ends) > ENDS_KEPT:
        del ends[next(iter(ends))]


_Numbers = list[tuple[FlowKey, int, int]]
_Instance = tuple[Extractor, int, int]
"""An extractor, the flow's index there, and what is added to its PSNs to have the joined ones."""


def _where(extractors: Sequence[Extractor]) -> dict[FlowKey, list[_Instance]]:
    """The planned flows that several rings carry."""
    found: dict[FlowKey, list[_Instance]] = defaultdict(list)
    for extractor in extractors:
        for index, key in _planned(extractor):
            found[key].append((extractor, index, extractor.psn_shift(index)))
    return {key: instances for key, instances in found.items() if len(instances) > 1}


def _planned(extractor: Extractor) -> Iterator[tuple[int, FlowKey]]:
    states = extractor.staging.plans()["state"]
    for index, key in enumerate(extractor.keys()):
        if states[index] in (PLAN_ACTIVE, PLAN_SUSPENDED):
            yield index, key
