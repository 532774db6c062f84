"""A learned training job as records (communicators, connections, parameters, buckets,
collectives), and its JSON file.

Written once it is proved, because the start-up messages it came from never come again.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import pairwise
from math import prod
from typing import Any

import msgspec

from flowcheck.errors import DECODE_ERRORS, LearnError
from flowcheck.findings.catalog.earlier_files import earlier_finding
from flowcheck.findings.catalog.refused_job_files import (
    ALGORITHM_NOT_FOLLOWED,
    NEVER_BY_ALGORITHM,
    NOT_A_LEARNED_JOB,
    UNKNOWN_FORMAT,
)
from flowcheck.findings.finding import UNTIL_AUDIT, Finding
from flowcheck.wire.algorithms.algorithm_names import Algorithm
from flowcheck.wire.collectives.nccl_parameters import (
    CollectiveKind,
    HasWriters,
    NcclEra,
    Protocol,
    Tuning,
)
from flowcheck.wire.traffic.observed_messages import FlowKey


class Communicator(msgspec.Struct, frozen=True, kw_only=True):
    ranks: int
    channels: int
    extra_sends: int = 0
    """1: the trainer is patched to forward one result more per loop."""
    threads: int | None = None
    threshold: int | None = None
    buffer_bytes: int | None = None
    """Non-default NCCL_NTHREADS, NCCL_THREAD_THRESHOLDS, NCCL_BUFFSIZE; see Tuning."""
    gpus: int = 1
    """Ranks of a node: the ring passes through all; only the last one writes to the network."""
    found: int = 0
    """Channels of NCCL's search, which tell the tree of each; 0: no trees were seen."""

    @property
    def tuning(self) -> Tuning:
        return Tuning(
            threads=self.threads, threshold=self.threshold, buffer_bytes=self.buffer_bytes
        )


class Edge(HasWriters, msgspec.Struct, frozen=True, kw_only=True):
    """The mirrored connections from one rank to another, one per channel."""

    communicator: int
    sender: int
    """Ring index of the rank that writes; on channel 0, where `senders` tells of the others."""
    flows: tuple[FlowKey | None, ...]
    """[channel]; None where no mirror saw it."""
    first_numbers: tuple[int, ...]
    """[channel]: message number in its flow of the first message of `LearnedJob.first`."""
    flags_count: bool = True
    """No send was Simple, which is two steps long: a line's flag is its number plus one."""
    queue_pairs: tuple[tuple[FlowKey, ...], ...] = ()
    """[channel] all flows of a connection of several queue pairs, in the order of their turns;
    empty: `flows` are all there are."""
    split: bool = False
    """Each of them carries a piece of every send; else whole sends take turns."""
    first_psns: tuple[tuple[int, ...], ...] = ()
    """[channel][turn] unwrapped PSN of that message, and on each other flow of the connection of
    its first one behind, where the start was not seen: numbers are counted from there; empty: from
    the flows' start."""
    senders: tuple[int, ...] = ()
    """[channel] who writes, where that is another rank of the node on each; (): it is one."""
    receiver: int | None = None
    """Ring index of who reads, where only trees pass: it is not the next one, or connections of
    theirs are beside the ring's. Any of its node, where nodes have several ranks."""
    trees: tuple[bool, bool] = (True, True)
    """Which of the two trees pass there, where their ranks are linked."""

    @property
    def algorithm(self) -> Algorithm:
        """Whose connections they are: the ring's, where others may pass too, or of one alone."""
        # Schedules are columns of numpy, which a command that reads a job file alone does without.
        from flowcheck.wire.algorithms.algorithm_registry import link_owner

        return link_owner(self.receiver)

    def turns(self, channel: int) -> tuple[FlowKey, ...]:
        """The mirrored flows of one channel, in the order of their turns."""
        if self.queue_pairs:
            return self.queue_pairs[channel]
        flow = self.flows[channel]
        return () if flow is None else (flow,)

    @property
    def pieces(self) -> int:
        """Messages that make up one send."""
        return max(map(len, self.queue_pairs)) if self.split else 1

    @property
    def all_flows(self) -> tuple[FlowKey, ...]:
        """All that were mirrored."""
        return tuple(flow for channel in range(len(self.flows)) for flow in self.turns(channel))


MAP_BYTES = 4
"""Of each parameter in the map of how many ranks used it: one int32."""
FORMAT = 3
"""Of the file (below), which reads format 2 too; any other is refused."""
UNTIL_AUDITED = UNTIL_AUDIT.strip()
"""Ends what is assumed until an audit passes, where that is a sentence still."""


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter in registration order; `sizes` and `strides` in elements, as torch has them."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    element_bytes: int = 4
    dtype: str | None = None
    """torch's name without the prefix, "float32"; None: the wire does not tell."""

    @property
    def elements(self) -> int:
        return prod(self.sizes)

    @property
    def nbytes(self) -> int:
        return self.elements * self.element_bytes


class Role(StrEnum):
    BUCKET = "bucket"
    """An all-reduce of a gradient bucket, or a send of a part of one; or a gather of parameters."""
    IGNORED = "ignored"
    """Nothing that is placed: index lists, buffers, metrics."""


class FollowedData(StrEnum):
    GRADIENTS = "gradients"
    """Whole sums, which an optimizer takes."""
    PARAMETERS = "parameters"
    """Of sharded training, as they are gathered: each bucket of a step is a unit, whose bytes are
    the ranks' parts one behind the other."""


class PointToPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a send that carries a part of a finished bucket."""

    channel: int
    start_byte: int
    """In the bucket."""
    data_bytes: int


class CollectiveOp(msgspec.Struct, frozen=True, kw_only=True):
    """One collective, or the point-to-point sends that complete one, in program order."""

    communicator: int
    protocol: Protocol
    role: Role
    bucket: int = 0
    """Index into the buckets of its iteration; meaningful for Role.BUCKET."""
    kind: CollectiveKind | None = CollectiveKind.ALL_REDUCE
    """None: `messages` lists point-to-point sends."""
    work_bytes: int = 0
    element_bytes: int = 4
    root: int = 0
    """Ring index; broadcasts only."""
    algorithm: Algorithm = Algorithm.RING
    """What NCCL made it with; says nothing of point-to-point sends."""
    buffer_broadcast: int | None = msgspec.field(default=None, name="held")
    """Which of `LearnedJob.buffer_broadcasts` an ignored broadcast sends; None: none of them."""
    messages: tuple[PointToPoint, ...] = ()


class BufferBroadcast(msgspec.Struct, frozen=True, kw_only=True):
    """Buffers that every forward broadcasts together, as they are after the iteration before."""

    numbers: tuple[int, ...]
    """Among the stated model's buffers."""
    nbytes: int


class HasGradientSizes:
    """Of a training job: its flat gradient, and what lies behind it."""

    __slots__ = ()
    parameters: tuple[Parameter, ...]
    gradient_element_bytes: int
    has_usage_map: bool
    buffer_broadcasts: tuple[BufferBroadcast, ...]

    @property
    def state_bytes(self) -> int:
        """Bytes of all parameters, flat in registration order."""
        return sum(parameter.nbytes for parameter in self.parameters)

    @property
    def reduced(self) -> tuple[Parameter, ...]:
        """The parameters as gradient buckets hold them, and behind them the map, if there is."""
        own = as_reduced(self.parameters, self.gradient_element_bytes)
        used = Parameter(sizes=(len(self.parameters),), strides=(1,), dtype="int32")
        return (*own, used) if self.has_usage_map else own

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients as they are reduced, flat in registration order, and of the map
        behind them."""
        return sum(parameter.nbytes for parameter in self.reduced)

    @property
    def module_buffer_bytes(self) -> int:
        """What lies behind the gradients; no step waits for it."""
        return sum(held.nbytes for held in self.buffer_broadcasts)

    @property
    def map_index(self) -> int:
        """Of the map among `reduced`."""
        return len(self.parameters)


class LearnedJob(HasGradientSizes, msgspec.Struct, frozen=True, kw_only=True):
    """Everything the extractor needs to know about a training job, and the updater
    (training_spec.py: of that what has nothing to do with connections)."""

    era: NcclEra = msgspec.field(name="rule")
    kind: FollowedData = FollowedData.GRADIENTS
    communicators: tuple[Communicator, ...]
    edges: tuple[Edge, ...]
    parameters: tuple[Parameter, ...]
    first_buckets: tuple[tuple[int, ...], ...]
    """Iteration 0: parameter indices of each bucket, in bucket order."""
    buckets: tuple[tuple[int, ...], ...]
    """Every later iteration."""
    first: tuple[CollectiveOp, ...]
    """Iteration 0 and what follows it once, up to the first repeating collective."""
    each: tuple[CollectiveOp, ...]
    """One later iteration; repeats for ever."""
    gradient_element_bytes: int = 0
    """Of the type that a hook compresses gradients into; 0: they are reduced as they are."""
    has_usage_map: bool = msgspec.field(default=False, name="mapped")
    """Every iteration ends with the map of how many ranks used each parameter; both lists of
    buckets have it as their last one, which is `map_index` alone."""
    bucket_plan_unseen: bool = msgspec.field(default=False, name="plan_unseen")
    """The buckets are those of the incarnation before: this one had not sent its plan yet."""
    linear: bool = False
    """LL128's lines hold data one behind the other, as before NCCL 2.10."""
    unused_parameters: tuple[int, ...] = msgspec.field(default=(), name="never_used")
    """Parameters that no rank ever uses, by the one map of a static graph."""
    unchanged_buffers: tuple[int, ...] = msgspec.field(default=(), name="still")
    """Buffers, by their number among the stated model's, that no forward was seen to change."""
    buffer_broadcasts: tuple[BufferBroadcast, ...] = msgspec.field(default=(), name="held")
    """Behind the gradients of an iteration, in this order."""
    evidence: tuple[Finding, ...] = ()
    """What was read."""
    assumed: tuple[Finding, ...] = ()
    """What no observation could have contradicted."""
    format: int = FORMAT

    @property
    def communicator_ranks(self) -> tuple[int, ...]:
        """Ranks of each communicator."""
        return tuple(communicator.ranks for communicator in self.communicators)

    @property
    def midstream(self) -> bool:
        """Its start was not seen: which of the trainer's steps its first one is, the wire does not
        tell."""
        return any(edge.first_psns for edge in self.edges)

    @property
    def awaits_base(self) -> bool:
        """Its start was not seen, and the gradients of its steps wait for a base."""
        return self.midstream and self.kind is FollowedData.GRADIENTS

    @property
    def sharded(self) -> bool:
        """The trainer was stated, and gathers every unit once a step."""
        told = all(parameter.dtype is not None for parameter in self.parameters)
        return self.kind is FollowedData.PARAMETERS and told

    @property
    def sees_units_twice(self) -> bool:
        """Gradients in the place of parameters would show, as two copies of every unit must be
        equal: it is gathered twice an iteration, or forwarded."""
        if self.communicators[0].ranks > 2 and len(self.edges) > 1:
            return True
        units = [op.bucket for op in self.each if op.role is Role.BUCKET]
        return min(map(units.count, units)) > 1

    @property
    def first_iterations(self) -> tuple[tuple[CollectiveOp, ...], ...]:
        """`first` by iterations: a static graph has two before its bucket plan."""
        if self.kind is FollowedData.PARAMETERS:
            return (self.first,)
        starts = [
            i
            for i, op in enumerate(self.first)
            if op.role is Role.BUCKET and op.kind is not None and not op.bucket
        ]
        bounds = [0, *starts[1:], len(self.first)]
        return tuple(self.first[a:b] for a, b in pairwise(bounds))


def as_reduced(parameters: tuple[Parameter, ...], element_bytes: int) -> tuple[Parameter, ...]:
    """`parameters` in a type of `element_bytes`; 0: as they are."""
    if not element_bytes:
        return parameters
    return tuple(
        Parameter(sizes=parameter.sizes, strides=parameter.strides, element_bytes=element_bytes)
        for parameter in parameters
    )


SENTENCES_FORMAT = 2
"""Evidence and assumptions are sentences; all else is as in format 3."""


class _Format(msgspec.Struct):
    format: int = FORMAT


class _Sentences(msgspec.Struct):
    """What format 2 has otherwise."""

    evidence: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()


def encode_job(job: LearnedJob) -> bytes:
    """JSON, readable as it is."""
    return msgspec.json.format(msgspec.json.encode(job), indent=1)


def decode_job(text: bytes) -> LearnedJob:
    """Raises LearnError for anything `encode_job` did not write, in this release or in those that
    wrote format 2."""
    try:
        number = msgspec.json.decode(text, type=_Format).format
        if number == FORMAT:
            if b'"tree"' in text and any("tree" in op for op in _ops(msgspec.json.decode(text))):
                raise msgspec.ValidationError("a collective has `tree`, a key of format 2")
            return _checked(msgspec.json.decode(text, type=LearnedJob))
        if number == SENTENCES_FORMAT:
            return _checked(_of_sentences(text))
    except DECODE_ERRORS as error:
        raise LearnError(NOT_A_LEARNED_JOB(error)) from error
    raise LearnError(UNKNOWN_FORMAT(format=number, newest=FORMAT))


def _checked(job: LearnedJob) -> LearnedJob:
    """Raises LearnError for a collective that no job can have."""
    from flowcheck.wire.algorithms.algorithm_registry import spec_of

    for op in (*job.first, *job.each):
        spec = spec_of(op.algorithm)
        if not spec.followed:
            raise LearnError(ALGORITHM_NOT_FOLLOWED(spec.plural))
        if op.kind is not None and op.kind not in spec.kinds:
            raise LearnError(NEVER_BY_ALGORITHM(kind=op.kind, algorithm=spec.plural))
    return job


def _ops(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Of what was decoded without its types."""
    for ops in (job.get("first"), job.get("each")):
        yield from (op for op in (ops if isinstance(ops, list) else ()) if isinstance(op, dict))


def _of_sentences(text: bytes) -> LearnedJob:
    """Of format 2: evidence and assumptions were sentences, and before algorithms had names a
    collective said `"tree": true` or false in their place."""
    told = msgspec.json.decode(text, type=_Sentences)
    rest: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    for op in _ops(rest):
        by_tree = op.pop("tree", False)
        if not isinstance(by_tree, bool):
            raise msgspec.ValidationError("a collective's `tree` is neither true nor false")
        op.setdefault("algorithm", Algorithm.TREE if by_tree else Algorithm.RING)
    found = msgspec.convert(
        rest | {"evidence": (), "assumed": (), "format": FORMAT}, type=LearnedJob
    )
    return msgspec.structs.replace(
        found,
        evidence=tuple(map(earlier_finding, told.evidence)),
        assumed=tuple(map(earlier_finding, told.assumed)),
    )
