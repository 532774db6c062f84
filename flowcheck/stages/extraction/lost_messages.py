"""Messages that no mirror point brought: whether sizes prove that they were as planned.

A collective that is in no plan may have been among them; then every later message belongs
elsewhere. So later messages wait until sizes contradict every other place for them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from flowcheck._core import lib
from flowcheck.findings.catalog.lost_steps import MESSAGES_DROPPED, MESSAGES_LOST
from flowcheck.findings.finding import Finding
from flowcheck.plane.extraction.flow_plan_install import PLAN_ACTIVE, PLAN_SUSPENDED
from flowcheck.plane.extraction.payload_extractor import Extractor
from flowcheck.plane.shared_memory.staging_file import NUMBER_UNKNOWN
from flowcheck.stages.staged_messages.gap_numbers import FOLLOWING_MAX, LOST_MAX
from flowcheck.stages.staged_messages.staging_space import staging_overrun
from flowcheck.wire.traffic.observed_messages import FlowKey
from flowcheck.wire.training_job.flow_plan import FlowPlan

_Flow = tuple[Extractor, int, FlowPlan]
"""An extractor, a flow's index there, and its plan."""
_Behind = tuple[Extractor, int, FlowPlan, dict[int, int]]
"""An extractor, a flow's index there, its plan, and {number in it: wire bytes} of what waits of
its connection."""


def pass_lost_messages(
    extractors: Sequence[Extractor],
    plans: Mapping[FlowKey, FlowPlan],
    numbers: Mapping[tuple[FlowKey, int], int],
) -> list[Finding]:
    """Passes every gap whose messages can only have been as planned. Returns a finding for each.

    To be called when nothing that lies in a gap can arrive any more.
    """
    said = []
    full = staging_overrun(extractors)
    for extractor, index, plan, waiting in _waiting(extractors, plans, numbers):
        frontier = extractor.frontier(index)
        behind = min((number for number in waiting if number > frontier), default=None)
        if behind is None or frontier in waiting or behind - frontier > LOST_MAX:
            continue
        if _only_here(extractor, index, plan, (frontier, behind), waiting):
            extractor.pass_frontier(index, behind)
            gap = {"first": frontier, "last": behind - 1, "queue_pair": plan.flow.dest_qp}
            said.append(
                MESSAGES_LOST(**gap) if full is None else MESSAGES_DROPPED(**gap, overrun=full)
            )
    return said


def waits_behind_gap(
    extractors: Sequence[Extractor],
    plans: Mapping[FlowKey, FlowPlan],
    numbers: Mapping[tuple[FlowKey, int], int],
    iteration: int,
) -> bool:
    """Whether messages that an iteration of the job, counted from 1, may need wait behind a gap
    that was not passed, or have no number."""
    found, unknown = _by_connection(extractors, plans, numbers, beyond=True)
    for extractor, index, plan, waiting in found.values():
        frontier = extractor.frontier(index)
        behind = frontier not in waiting and any(number > frontier for number in waiting)
        if behind and not _has_passed(extractor, index, plan, iteration):
            return True
    return not all(_has_passed(*flow, iteration) for flow in unknown.values())


def _has_passed(extractor: Extractor, index: int, plan: FlowPlan, iteration: int) -> bool:
    """Whether every message of the iteration was told on the flow's connection: a later gap holds
    none of them."""
    place = extractor.place_in_plan(index, extractor.frontier(index))
    return place is not None and place >= plan.places_through(iteration)


def _waiting(
    extractors: Sequence[Extractor],
    plans: Mapping[FlowKey, FlowPlan],
    numbers: Mapping[tuple[FlowKey, int], int],
) -> list[_Behind]:
    """Connections with staged messages, without those where a message's number is unknown, as that
    message may lie in the gap."""
    found, unknown = _by_connection(extractors, plans, numbers)
    return [behind for connection, behind in found.items() if connection not in unknown]


def _by_connection(
    extractors: Sequence[Extractor],
    plans: Mapping[FlowKey, FlowPlan],
    numbers: Mapping[tuple[FlowKey, int], int],
    *,
    beyond: bool = False,
) -> tuple[dict[int, _Behind], dict[int, _Flow]]:
    """({connection: its staged messages}, connections of which a message's number is unknown). Of
    a flow that left its plan, those before the message that did; beyond: all, as a gap before that
    message may be why it seems to leave the plan."""
    found: dict[int, _Behind] = {}
    unknown: dict[int, _Flow] = {}
    sizes: dict[int, dict[int, int]] = defaultdict(dict)
    for extractor in extractors:
        keys, installed = extractor.keys(), extractor.staging.plans()
        placeable = extractor.placeable(numbers)
        for number, record in zip(
            placeable.numbers.tolist(), placeable.records.tolist(), strict=True
        ):
            m = extractor.staging.handle.records[record].message
            key = keys[m.flow]
            state = int(installed[m.flow]["state"])
            if key not in plans or state not in (PLAN_ACTIVE, PLAN_SUSPENDED):
                continue
            plan = plans[key]
            left_at = int(installed[m.flow]["deviating_number"])
            left = state == PLAN_SUSPENDED and left_at <= number != NUMBER_UNKNOWN
            if left and not beyond:
                continue
            if number == NUMBER_UNKNOWN:
                unknown[plan.connection] = (extractor, int(m.flow), plan)
            elif not int(m.flags) & lib.FC_MESSAGE_CLOSING:
                own = sizes[plan.connection]
                own[number] = int(m.length_bytes)
                found[plan.connection] = (extractor, int(m.flow), plan, own)
    return found, unknown


def _only_here(
    extractor: Extractor,
    index: int,
    plan: FlowPlan,
    gap: tuple[int, int],
    waiting: Mapping[int, int],
) -> bool:
    """Whether the messages after the gap contradict that some of its messages were in no plan."""
    lost = gap[1] - gap[0]
    sizes: list[int] = []
    places: list[int] = []
    number = gap[1]
    while number in waiting and len(sizes) < FOLLOWING_MAX:
        place = extractor.place_in_plan(index, number)
        if place is None:
            break
        sizes.append(waiting[number])
        places.append(place)
        number += 1
    seen, at = np.array(sizes), np.array(places)
    return bool(len(seen)) and all(
        bool(np.any(plan.sizes_at(at - shift) != seen)) for shift in range(1, lost + 1)
    )
