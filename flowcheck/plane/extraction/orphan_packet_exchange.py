"""Packets and message numbers that the extractors of several rings exchange for a flow they
share."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from flowcheck._core import ffi, lib
from flowcheck.plane.extraction.flow_plan_install import PLAN_ACTIVE, PLAN_SUSPENDED
from flowcheck.plane.extraction.payload_extractor import Extractor
from flowcheck.plane.shared_memory.staging_file import NUMBER_UNKNOWN
from flowcheck.wire.traffic.observed_messages import FlowKey


def shared_orphans(extractor: Extractor) -> Iterator[tuple[int, FlowKey, int, NDArray[np.uint8]]]:
    """(place, flow, joined PSN, payload) of every packet whose message is not known here."""
    keys = extractor.keys()
    for index, flow, psn, payload in extractor.staging.orphan_packets_at():
        yield index, keys[flow], psn + extractor.psn_shift(flow), payload


def deliver_orphan(
    extractor: Extractor, flow: int, psn: int, payload: NDArray[np.uint8], *, differs: bool
) -> bool:
    """Delivers a packet that another ring keeps; False where its message is not known here either.

    differs: a second copy that came to the other ring was not the same.
    """
    data = ffi.from_buffer("uint8_t[]", payload)
    return bool(lib.fc_deliver_from_ring(extractor.handle, flow, psn, data, len(payload), differs))


def forget_orphan(extractor: Extractor, index: int) -> None:
    """Another ring delivered the packet."""
    lib.fc_orphan_delivered(extractor.handle, index)


def number_at(extractor: Extractor, flow: int, psn: int, closing: bool) -> int:
    """What this ring's parser says of the number of a message that starts at `psn`."""
    return (
        int(lib.fc_number_at(extractor.handle, flow, psn, closing)) if psn >= 0 else NUMBER_UNKNOWN
    )


def number_before(extractor: Extractor, flow: int, psn: int) -> tuple[int, int] | None:
    """(number, PSN) of the message behind the last one before `psn` of which this ring's parser
    knows the number; None: there is none."""
    stop = ffi.new("uint64_t *")
    number = int(lib.fc_number_before(extractor.handle, flow, psn, stop)) if psn >= 0 else -1
    return None if number in (-1, NUMBER_UNKNOWN) else (number, int(stop[0]))


def has_unnumbered_staged(extractor: Extractor) -> bool:
    """Something of a planned flow is staged whose number this ring's parser does not know."""
    messages, held = extractor.staging.records()["message"], extractor.staging.held()
    unnumbered = held[messages["number"][held] == NUMBER_UNKNOWN]
    states = extractor.staging.plans()["state"][messages["flow"][unnumbered]]
    return bool(np.isin(states, (PLAN_ACTIVE, PLAN_SUSPENDED)).any())


def staged_spans(extractor: Extractor) -> Iterator[tuple[FlowKey, int, int, int, bool]]:
    """(flow, first PSN, PSN after it, number, closes the one before) of what is staged."""
    keys = extractor.keys()
    for m in extractor.staging.held_messages():
        flow = int(m["flow"])
        first = int(m["first_psn"]) + extractor.psn_shift(flow)
        closing = bool(int(m["flags"]) & lib.FC_MESSAGE_CLOSING)
        yield keys[flow], first, first + int(m["packets"]), int(m["number"]), closing
