"""Numbers of staged messages behind a gap of their flow, by the plan.

A ring's parser counts messages as long as none is missing. Behind a gap the plan tells what lay in
it: as many planned messages as take the packets that were lost. A collective that is in no plan may
have been among them, so a number is believed once the sizes of the messages behind the gap
contradict every lower one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowcheck._core import lib
from flowcheck.plane.extraction.flow_plan_install import PLAN_ACTIVE
from flowcheck.plane.extraction.orphan_packet_exchange import number_before
from flowcheck.plane.extraction.payload_extractor import Extractor
from flowcheck.plane.shared_memory.staging_file import NUMBER_UNKNOWN
from flowcheck.wire.traffic.observed_messages import FlowKey
from flowcheck.wire.training_job.flow_plan import FlowPlan

LOST_MAX = 4096
"""Messages of one gap; what follows more of them is not tried at every other place. A choice that
bounds time: it keeps no number, and a longer gap loses its step."""
FOLLOWING_MAX = 1 << 16
"""Messages behind a gap that are looked at. A choice that bounds time."""
Ends = Mapping[FlowKey, dict[int, int]]
"""{flow: {PSN after a message: number after it}}, of messages that are numbered."""


class _Staged(NamedTuple):
    """A staged message without a number; PSNs as the ring's own parser has them."""

    first: int
    stop: int
    wire_bytes: int


def numbers_behind_gaps(
    extractors: Sequence[Extractor],
    plans: Mapping[FlowKey, FlowPlan],
    known: Mapping[tuple[FlowKey, int], int],
    ends: Ends,
) -> dict[tuple[FlowKey, int], int]:
    """{(flow, first PSN as all rings are joined): number} of what can be numbered. known: numbers
    found before; ends: is given those of what is numbered."""
    found: dict[tuple[FlowKey, int], int] = {}
    for extractor in extractors:
        for index, key, messages in _unnumbered(extractor, plans, known):
            shift = extractor.psn_shift(index)
            own = {psn - shift: number for psn, number in ends[key].items()}
            numbered = _numbers(extractor, index, plans[key], messages, own)
            for message, number in numbered:
                found[key, message.first + shift] = number
                ends[key][message.stop + shift] = number + 1
    return found


def _unnumbered(
    extractor: Extractor,
    plans: Mapping[FlowKey, FlowPlan],
    known: Mapping[tuple[FlowKey, int], int],
) -> Iterator[tuple[int, FlowKey, list[_Staged]]]:
    """(flow's index, flow, messages without a number in the order of their PSNs) of every planned
    flow that carries whole messages on one queue pair."""
    keys, messages = extractor.keys(), extractor.staging.held_messages()
    states = extractor.staging.plans()["state"]
    messages = messages[messages["number"] == NUMBER_UNKNOWN]
    of_flow: dict[int, list[_Staged]] = defaultdict(list)
    closing = {int(m["flow"]) for m in messages if int(m["flags"]) & lib.FC_MESSAGE_CLOSING}
    shifts = [extractor.psn_shift(flow) for flow in range(len(keys))]
    for m in messages[np.argsort(messages["first_psn"], kind="stable")]:
        flow, first = int(m["flow"]), int(m["first_psn"])
        if states[flow] != PLAN_ACTIVE or flow in closing or keys[flow] not in plans:
            continue
        if plans[keys[flow]].stride == 1 and (keys[flow], first + shifts[flow]) not in known:
            of_flow[flow].append(_Staged(first, first + int(m["packets"]), int(m["length_bytes"])))
    for flow, own in of_flow.items():
        yield flow, keys[flow], own


def _numbers(
    extractor: Extractor,
    index: int,
    plan: FlowPlan,
    messages: Sequence[_Staged],
    ends: Mapping[int, int],
) -> list[tuple[_Staged, int]]:
    """Those that follow a numbered message, or a gap behind one."""
    found: list[tuple[_Staged, int]] = []
    here = dict(ends)
    for run in _runs(messages):
        before = _before(extractor, index, run[0].first, here)
        if before is None:
            break
        number: int | None
        number, stop = before
        if stop != run[0].first:
            number = _behind_gap(extractor, index, plan, number, run[0].first - stop, run)
        if number is None:
            break  # What comes behind would rest on this one.
        for place, message in enumerate(run):
            found.append((message, number + place))
            here[message.stop] = number + place + 1
    return found


def _runs(messages: Sequence[_Staged]) -> Iterator[list[_Staged]]:
    """Messages with nothing missing between them."""
    run: list[_Staged] = []
    for message in messages[:FOLLOWING_MAX]:
        if run and run[-1].stop != message.first:
            yield run
            run = []
        run.append(message)
    if run:
        yield run


def _before(
    extractor: Extractor, index: int, psn: int, ends: Mapping[int, int]
) -> tuple[int, int] | None:
    """(number, PSN) behind the last numbered message before that."""
    last = max((stop for stop in ends if stop <= psn), default=-1)
    told = number_before(extractor, index, psn)
    if told is None or told[1] <= last:
        return (ends[last], last) if last >= 0 else None
    return told


def _behind_gap(
    extractor: Extractor,
    index: int,
    plan: FlowPlan,
    number: int,
    lost_packets: int,
    run: Sequence[_Staged],
) -> int | None:
    """The number of the first message behind a gap; None: the plan does not tell it, or not yet.
    number: of the first one in it."""
    place = extractor.place_in_plan(index, number)
    pmtu = int(extractor.flows.flows()[index]["pmtu_bytes"])
    if place is None or not pmtu or lost_packets <= 0:
        return None
    sizes = plan.sizes_at(place + np.arange(LOST_MAX + len(run), dtype=np.int64))
    packets = np.cumsum(np.maximum(1, -(-sizes[:LOST_MAX] // pmtu)))
    lost = int(np.searchsorted(packets, lost_packets)) + 1
    if lost > LOST_MAX or packets[lost - 1] != lost_packets:
        return None
    seen = np.array([message.wire_bytes for message in run], np.int64)
    if not _fits(sizes, lost, seen):
        return None
    # Each of the lost messages may have been of no plan, and the planned ones come later then.
    return None if any(_fits(sizes, fewer, seen) for fewer in range(lost)) else number + lost


def _fits(sizes: NDArray[np.int64], at: int, seen: NDArray[np.int64]) -> bool:
    return bool(np.array_equal(sizes[at : at + len(seen)], seen))
