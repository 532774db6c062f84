"""Flows that are of no job: counted, and not kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowcheck.plane.extractor import Extractor
from flowcheck.plane.flows import flow_key
from flowcheck.plane.owners import Name
from flowcheck.plane.plans import PLAN_UNKNOWN
from flowcheck.wire.seen import FlowKey


def leave_out(
    extractors: Sequence[Extractor],
    names: Sequence[Mapping[FlowKey, Name]],
    flows: Sequence[FlowKey],
) -> int:
    """From now on what comes of these flows is counted and not kept; returns how many they are.
    What is staged of them may be placed: it has no home. names: [mirror point] what its flows are
    called among `flows`.
    """
    if not flows:
        return 0
    unwanted = set(flows)
    left: set[FlowKey] = set()
    for extractor, called in zip(extractors, names, strict=True):
        states = extractor.staging.plans()["state"]
        for index, record in enumerate(extractor.flows.flows()):
            own = called.get(flow_key(record))
            if own is not None and own.flow in unwanted and states[index] == PLAN_UNKNOWN:
                extractor.ignore(index)
                left.add(own.flow)
    return len(left)
