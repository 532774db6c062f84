"""Where training steps begin and end in a stream that does not follow its plan; extra
collectives are left out.

A step ends with the last bucket of the learned list, told by size and order. Metric all-reduces,
barriers and evaluation broadcasts between buckets belong to no step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import msgspec

from flowcheck.findings.catalog.collective_evidence import (
    BUCKET_BY_ORDER,
    MAP_LEFT_OUT,
    MESSAGES_LEFT_OUT,
    UNIT_LEFT_OUT,
)
from flowcheck.findings.finding import Finding
from flowcheck.step_numbers import Iteration
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.traffic.observed_messages import FlowKey
from flowcheck.wire.training_job.connection_messages import op_sizes
from flowcheck.wire.training_job.learned_job import (
    MAP_BYTES,
    CollectiveOp,
    FollowedData,
    LearnedJob,
    Role,
)
from flowcheck.wire.unplanned_collectives.extra_collectives import ExtraCollectives, LaneSizes
from flowcheck.wire.unplanned_collectives.fewest_extras_search import (
    FewestExtrasSearch,
    KnownStream,
    LanePositions,
    SearchState,
    StreamMatch,
    after,
    fits,
    run_fits,
)

UNEXPLAINED_MAX = 256
"""Messages of one flow left out without an explanation. A choice: more passes longer evaluations,
and may pass over a step."""


@dataclass(frozen=True, slots=True)
class ConnectionLane:
    """One mirrored connection of the communicator."""

    flows: tuple[FlowKey, ...]
    """In the order of their turns: those of several queue pairs share one plan."""
    edge: int
    """Into `LearnedJob.edges`."""
    channel: int


@dataclass(frozen=True, slots=True)
class BucketPosition:
    """A bucket's all-reduce (or sends), found in the stream."""

    iteration: Iteration
    """Of the job, from 1."""
    op: int
    """Into `StepReader.buckets`."""
    at: LanePositions


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReading:
    """A reading: buckets in order; whatever lies between two of them is left out."""

    buckets: tuple[BucketPosition, ...]
    end: LanePositions
    extras: int
    """Collectives left out, or messages where they are not explained."""
    assumed: Finding | None = None
    """Why it may be otherwise; None where no other reading has so few extras."""
    refused: Finding | None = None
    """Why it must not be followed; None: nothing speaks against it."""


class NoReading(IntEnum):
    WAIT = 0
    """What came so far does not decide it."""
    NONE = 1
    """Nothing within the bounds explains it."""


class StepReader:
    """Reads one communicator's stream against the steps of its job."""

    def __init__(self, job: LearnedJob, communicator: int) -> None:
        self._job, self._communicator = job, communicator
        self.lanes = tuple(
            ConnectionLane(edge.turns(channel), number, channel)
            for number, edge in enumerate(job.edges)
            if edge.communicator == communicator
            for channel in range(len(edge.flows))
            if edge.turns(channel)
        )
        own = [op for op in job.each if op.communicator == communicator]
        self._maps = tuple(self._lane_sizes(op) for op in _maps(job, own))
        units = [op for op in own if op.role is Role.BUCKET] if job.sharded else []
        self._units = tuple(self._lane_sizes(op) for op in units)
        self.each = tuple(map(self._lane_sizes, own))
        # A gather has the size of a reduce-scatter: only all of an iteration, in order, tells them.
        whole = job.kind is FollowedData.PARAMETERS
        self.buckets = tuple(n for n, op in enumerate(own) if whole or op.role is Role.BUCKET)
        """Into `each`."""
        once = [op for op in job.first if op.communicator == communicator]
        last = (n for n, op in enumerate(once) if whole or op.role is Role.BUCKET)
        kept = 1 + max(last, default=-1)
        told = [self._lane_sizes(op) for op in once[:kept]]
        self.first_end = tuple(sum(len(op[n]) for op in told) for n in range(len(self.lanes)))
        """[lane] messages of iteration 0 up to the end of its last bucket."""
        ignored = [op for op in (*own, *job.first) if op.role is Role.IGNORED]
        known = (self._lane_sizes(op) for op in ignored if op.communicator == communicator)
        places = [(lane.edge, lane.channel) for lane in self.lanes]
        guess = any(op.kind is not None for op in own)
        self._extras = ExtraCollectives(
            job, communicator, places, tuple(dict.fromkeys(known)), guess=guess
        )

    def _lane_sizes(self, op: CollectiveOp) -> LaneSizes:
        """[lane][message] wire bytes of one op."""
        edges = {lane.edge for lane in self.lanes}
        sizes = {number: op_sizes(self._job, self._job.edges[number], op) for number in edges}
        return tuple(sizes[lane.edge][lane.channel] for lane in self.lanes)

    def read(
        self, stream: KnownStream, start: BucketPosition, steps: int, *, at_once: bool
    ) -> StepReading | NoReading:
        """`steps` whole steps' ends, from before bucket `start.op` of `start.iteration` on.

        at_once: nothing more comes; what has come must do.
        """
        self._extras.begin()
        sizes = [self.each[n] for n in self.buckets]
        target = steps * len(sizes)

        def search(*, pins: bool) -> tuple[SearchState | None, bool]:
            one = FewestExtrasSearch(sizes, self._extras, stream, start.iteration, pins=pins)
            return one.run(SearchState(start.op, start.at), target), one.blocked

        goal, blocked = search(pins=True)
        if (goal is None or goal.open) and not at_once:
            return NoReading.WAIT
        if goal is None:
            return NoReading.NONE
        found = self._found(goal, start.iteration, stream)
        if blocked:
            other, _ = search(pins=False)
            rival = self._found(other, start.iteration, stream) if other else found
            if rival.assumed or rival.buckets != found.buckets:
                return replace(found, assumed=BUCKET_BY_ORDER())
        return found

    def _found(self, goal: SearchState, first: Iteration, stream: KnownStream) -> StepReading:
        buckets: list[BucketPosition] = []
        refused: Finding | None = None
        doubtful = goal.ambiguous
        state = goal
        while state.before is not None:
            doubtful |= state.before.ambiguous
            if state.bucket:
                lap, nth = divmod(state.before.index, len(self.buckets))
                buckets.append(BucketPosition(Iteration(first + lap), nth, state.before.at))
            elif self._is_one_of(self._maps, stream, state.before.at, state.at):
                refused = MAP_LEFT_OUT()
            elif self._is_one_of(self._units, stream, state.before.at, state.at):
                refused = UNIT_LEFT_OUT()
            state = state.before
        return StepReading(
            buckets=tuple(reversed(buckets)),
            end=goal.at,
            extras=goal.extras,
            assumed=BUCKET_BY_ORDER() if doubtful else None,
            refused=refused,
        )

    @staticmethod
    def _is_one_of(
        every: Sequence[LaneSizes], stream: KnownStream, at: LanePositions, stop: LanePositions
    ) -> bool:
        """What lies between has the sizes of one of these."""
        return any(
            after(at, sizes) == stop and fits(stream, at, sizes) is not StreamMatch.NO
            for sizes in every
        )

    def skip(
        self, stream: KnownStream, start: BucketPosition, *, most: int = UNEXPLAINED_MAX
    ) -> StepReading | None:
        """As few messages as possible left out of each flow, whatever they are, before `start`;
        then one whole step. Only where no collectives explain them."""
        if self._units:
            return None  # what is left out may be gathers, in another order
        ends: list[int] = []
        begins: list[int] = []
        for lane, at in enumerate(start.at):
            whole = [size for n in self.buckets[start.op :] for size in self.each[n][lane]]
            shift = next((k for k in range(most) if run_fits(stream, lane, at + k, whole)), None)
            if shift is None:
                return None
            begins.append(at + shift)
            ends.append(at + shift + len(whole))
        buckets: list[BucketPosition] = []
        at_now: LanePositions = tuple(begins)
        for nth in range(start.op, len(self.buckets)):
            buckets.append(BucketPosition(start.iteration, nth, at_now))
            at_now = after(at_now, self.each[self.buckets[nth]])
        left_out = sum(b - a for a, b in zip(start.at, begins, strict=True))
        return StepReading(
            buckets=tuple(buckets),
            end=tuple(ends),
            extras=left_out,
            assumed=MESSAGES_LEFT_OUT(left_out),
        )


def _maps(job: LearnedJob, each: Sequence[CollectiveOp]) -> list[CollectiveOp]:
    """All-reduces of a map of used parameters that no step may leave out: that of every iteration,
    or any where nobody saw yet that there is none."""
    reduces = [op for op in each if op.kind is CollectiveKind.ALL_REDUCE]
    if job.has_usage_map:
        return [op for op in reduces if op.role is Role.BUCKET][-1:]
    like = {op.protocol: op for op in reduces} if job.bucket_plan_unseen else {}
    size = MAP_BYTES * len(job.parameters)
    made = {"role": Role.IGNORED, "work_bytes": size, "element_bytes": MAP_BYTES}
    return [msgspec.structs.replace(op, **made) for op in like.values()]
