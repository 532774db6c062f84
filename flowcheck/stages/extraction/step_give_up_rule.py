"""How far each flow of the active job is: whether bytes that a step misses may still come."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from flowcheck.findings.catalog.lost_steps import (
    FLOWS_WENT_ON,
    FLOWS_WENT_ON_AFTER_OVERRUN,
    SILENT_MIRROR_POINTS,
)
from flowcheck.findings.finding import Finding
from flowcheck.plane.extraction.flow_plan_install import PLAN_ACTIVE, PLAN_SUSPENDED
from flowcheck.plane.extraction.orphan_packet_exchange import has_unnumbered_staged
from flowcheck.plane.extraction.payload_extractor import Extractor
from flowcheck.plane.shared_memory.staging_file import NUMBER_UNKNOWN
from flowcheck.stages.staged_messages.silent_mirror_points import SILENT_S, SilentMirrorPoints
from flowcheck.stages.staged_messages.staging_space import rings_drained, staging_overrun
from flowcheck.step_numbers import Iteration
from flowcheck.wire.traffic.observed_messages import FlowKey

PASSED_STEPS = 2
"""Steps that every flow must be beyond one, before it is given up: the shard has two generations,
and the next step fills the other."""


class FlowProgress:
    """The flows of all rings that have plans."""

    def __init__(self, extractors: Sequence[Extractor], clock: Callable[[], float]) -> None:
        self._extractors = extractors
        self._points = SilentMirrorPoints(clock)
        self._points.look(extractors)

    def why_nothing_more_comes(self, iteration: Iteration) -> Finding | None:
        """Why no ring can still bring what is missing of `iteration`; None while one may.

        A flow is as far as the slowest ring that carries it. A ring that ended brings nothing more;
        a ring that was silent for SILENT_S is not waited for.
        """
        silent = self._points.look(self._extractors)
        if not silent and self._undecided():
            return None
        beyond = self._beyond_gaps()
        last: dict[FlowKey, int] = {}
        ended: dict[FlowKey, int] = {}
        for number, extractor in enumerate(self._extractors):
            over = number in silent or extractor.ring.drained
            plans = extractor.staging.plans()
            for index, key in enumerate(extractor.keys()):
                plan = plans[index]
                if plan["state"] not in (PLAN_ACTIVE, PLAN_SUSPENDED) or not plan["each_sends"]:
                    continue
                at = int(plan["last_step"]) + beyond.get((number, index), 0)
                if over:
                    ended[key] = max(ended.get(key, 0), at)
                else:
                    last[key] = min(last.get(key, at), at)
        last = ended | last
        if not last or any(at < iteration + PASSED_STEPS for at in last.values()):
            return None
        full = staging_overrun(self._extractors)
        why = FLOWS_WENT_ON() if full is None else FLOWS_WENT_ON_AFTER_OVERRUN(full)
        if not silent:
            return why
        return SILENT_MIRROR_POINTS(
            reason=why, silent=len(silent), all=len(self._extractors), seconds=SILENT_S
        )

    def _beyond_gaps(self) -> dict[tuple[int, int], int]:
        """{(ring, flow): messages after a gap, counted in iterations, as their numbers are
        unknown}. With several rings, one may still tell another's numbers."""
        if len(self._extractors) > 1:
            return {}
        found: dict[tuple[int, int], int] = {}
        for number, extractor in enumerate(self._extractors):
            messages, held = extractor.staging.records()["message"], extractor.staging.held()
            flows = messages["flow"][held[messages["number"][held] == NUMBER_UNKNOWN]]
            for index, count in zip(*np.unique(flows, return_counts=True), strict=True):
                each = int(extractor.staging.plans()[index]["each_sends"])
                found[number, int(index)] = int(count) // each if each else 0
        return found

    def _undecided(self) -> bool:
        """Whether messages are staged that may belong to any step: with several rings, until all
        have passed it."""
        if len(self._extractors) < 2 or rings_drained(self._extractors):
            return False
        suspended = any(
            int(extractor.staging.plans()["state"][index]) == PLAN_SUSPENDED
            for extractor in self._extractors
            for index in range(len(extractor.keys()))
        )
        return suspended or any(map(has_unnumbered_staged, self._extractors))
