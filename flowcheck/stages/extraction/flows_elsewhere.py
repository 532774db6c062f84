"""Connections of the other shards, where each shard of a model is a job with an address of its own
(hybrid sharding): this extractor keeps nothing of them.

All shards have sums of the same sizes at the same times, so that their rings look like one ring,
seen at two of its ranks. The stated addresses alone tell them apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowcheck.config import JobConfig
from flowcheck.findings.catalog.hybrid_jobs import ADDRESS_NOT_SEEN
from flowcheck.findings.finding import Finding
from flowcheck.plane.extraction.flow_plan_install import PLAN_UNKNOWN
from flowcheck.plane.extraction.payload_extractor import Extractor

SHOWN = 16
"""Addresses that a finding lists at most. A choice of layout."""


class FlowsElsewhere:
    """The flows that touch no address of this job."""

    def __init__(self, config: JobConfig) -> None:
        """config: of one job."""
        self._own = frozenset(config.hosts) if config.all_shards else frozenset[str]()
        self._looked: dict[int, int] = {}
        self._kept: dict[int, set[int]] = {}
        self._others: dict[str, None] = {}

    def leave_out(self, extractors: Sequence[Extractor]) -> bool:
        """Ignores those that appeared since the last call; whether there were any. What is staged
        of them has no home then."""
        found = False
        for number, extractor in enumerate(extractors if self._own else ()):
            keys, looked = extractor.own_keys(), self._looked.get(number, 0)
            if looked == len(keys):
                continue
            states = extractor.staging.plans()["state"]
            for index in range(looked, len(keys)):
                ends = keys[index].source, keys[index].destination
                if self._own.intersection(ends):
                    self._kept.setdefault(number, set()).add(index)
                    continue
                if len(self._others) < SHOWN:
                    self._others |= dict.fromkeys(ends)
                if states[index] == PLAN_UNKNOWN:
                    extractor.ignore(index)
                    found = True
            self._looked[number] = len(keys)
        return found

    def left(self, extractors: Sequence[Extractor]) -> list[set[int]] | None:
        """[ring] indices of the flows that are kept; None: all are."""
        if not self._own:
            return None
        return [self._kept.get(number, set()) for number in range(len(extractors))]

    def why_nothing(self) -> tuple[Finding, ...]:
        """Why there is no job, where the ports carry other addresses alone; (): that is not why."""
        if self._kept or not self._others:
            return ()
        return (ADDRESS_NOT_SEEN(hosts=sorted(self._own), addresses=sorted(self._others)[:SHOWN]),)
