"""What the updater works with once a job is learned."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flowcheck.plane.shard import Shard, State
from flowcheck.replica.parting.units import Placing
from flowcheck.replica.replica import Replica
from flowcheck.stages.following.gathered import taken, whole
from flowcheck.stages.updating.ahead import Ahead
from flowcheck.stages.updating.anchoring import Anchors
from flowcheck.stages.updating.base import Waiting
from flowcheck.stages.updating.buffers import Buffers
from flowcheck.stages.updating.incarnation import Incarnation
from flowcheck.stages.updating.records import Records
from flowcheck.stages.updating.used import Map, Used
from flowcheck.step_numbers import Iteration


@dataclass(frozen=True, slots=True)
class Opened:
    """The replica, where its gradients come from, and what is written down of its steps."""

    replica: Replica
    shard: Shard
    records: Records
    waiting: Waiting
    map: Map
    placing: Placing | None  # of sharded training
    ahead: Ahead
    anchors: Anchors
    buffers: Buffers

    def taken(self, generation: int) -> tuple[np.ndarray, Used]:
        """What the replica takes of an iteration: (bytes, [parameters] those it is for)."""
        if self.placing is not None:
            return taken(self.placing, self.shard, generation)
        return self.map.split(self.shard.gradient(generation))

    @property
    def next_iteration(self) -> Iteration:
        """The one to be applied next."""
        return Iteration(self.shard.applied_iteration + 1)

    def whole(self, iteration: Iteration) -> int | None:
        """The generation that holds all of `iteration`; of sharded training, all that ever comes.
        None also where two copies differ."""
        generation = self.holds(iteration)
        return generation if generation is not None and self.certain(generation) else None

    def holds(self, iteration: Iteration) -> int | None:
        """As `whole`, whether or not a copy that differs came behind it."""
        return whole(self.shard, iteration, gathered=self.placing is not None)

    def certain(self, generation: int) -> bool:
        """No two copies of it differ by now, so that its step may be taken; else it never is, and
        the extractor is told so in the shard."""
        shard = self.shard
        if shard.state(generation) != State.COMPLETE:
            return True  # of a lost one nothing is taken where two copies differ (gathered.taken)
        if shard.conflict_bytes(generation):
            shard.doubt(generation)
        return not shard.doubted(generation)

    def iteration(self, followed: Incarnation, each: int) -> Iteration | None:
        """The shard's number of the iteration that ended the replica's step; None: it waits. each:
        iterations per step."""
        return None if followed.step is None else followed.iteration_of(self.replica.step, each)

    def close(self) -> None:
        self.waiting.close()
        self.anchors.close()
        self.shard.close()
        self.records.close()
        self.replica.close()
