"""A learned training job as records (communicators, connections, parameters, buckets,
collectives), and its JSON file. The file is written as soon as the job is proved, because start-up
messages are not repeated."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import StrEnum
from itertools import pairwise
from math import prod
from typing import Any

import msgspec

from flowcheck.errors import DECODE_ERRORS, LearnError
from flowcheck.findings.catalog.earlier_files import earlier_finding
from flowcheck.findings.catalog.refused_files import (
    ALGORITHM_NOT_FOLLOWED,
    NEVER_BY_ALGORITHM,
    NOT_A_LEARNED_JOB,
    UNKNOWN_FORMAT,
)
from flowcheck.findings.finding import Finding
from flowcheck.wire.algorithms.algorithm_names import Algorithm
from flowcheck.wire.collectives.nccl_parameters import (
    CollectiveKind,
    HasWriters,
    NcclEra,
    Protocol,
    Tuning,
)
from flowcheck.wire.collectives.nvls_shape import NO_NVLS, NvlsShape
from flowcheck.wire.traffic.observed_messages import FlowKey


class Communicator(msgspec.Struct, frozen=True, kw_only=True):
    """An NCCL communicator as it was observed."""

    ranks: int
    channels: int
    extra_sends: int = 0
    """1: the trainer's NCCL is patched to forward one more result per loop; else 0."""
    threads: int | None = None
    threshold: int | None = None
    buffer_bytes: int | None = None
    """Values of NCCL_NTHREADS, NCCL_THREAD_THRESHOLDS and NCCL_BUFFSIZE that are not the defaults;
    see Tuning."""
    gpus: int = 1
    """Ranks per node. The ring passes through all of them; only the last one sends to the
    network."""
    found: int = 0
    """Number of channels that NCCL's topology search found, which determines the tree of each
    channel; 0: no trees were observed."""

    heads: int = 0
    """GPUs of each node that write to other nodes by NVLS trees; 0: none were observed."""
    nvls_channels: int = 0
    """Channels of these trees."""
    nvls_chunk_bytes: int = 0
    """Their largest chunk, bytes; 0: NCCL's usual one (nvls_shape.py)."""

    @property
    def nvls(self) -> NvlsShape:
        """What NVLS trees are made of."""
        if not self.heads:
            return NO_NVLS
        return NvlsShape(
            heads=self.heads,
            channels=self.nvls_channels,
            nodes=self.ranks // self.gpus,
            chunk_bytes=self.nvls_chunk_bytes,
        )

    @property
    def tuning(self) -> Tuning:
        """NCCL's parameters for the chunk partition."""
        return Tuning(
            threads=self.threads, threshold=self.threshold, buffer_bytes=self.buffer_bytes
        )


class Edge(HasWriters, msgspec.Struct, frozen=True, kw_only=True):
    """The mirrored connections from one rank to another, one per channel."""

    communicator: int
    sender: int
    """Ring index of the sending rank; with `senders`, of the one on channel 0."""
    flows: tuple[FlowKey | None, ...]
    """[channel] flow; None: not mirrored."""
    first_numbers: tuple[int, ...]
    """[channel] number, in its flow, of the first message of `LearnedJob.first`."""
    flags_count: bool = True
    """True: the LL or LL128 flag of a line is its message number plus one. A Simple send counts as
    two, so there was none."""
    queue_pairs: tuple[tuple[FlowKey, ...], ...] = ()
    """[channel] all flows of a connection with several queue pairs, in the order of their turns;
    empty: `flows` has all flows."""
    split: bool = False
    """True: each queue pair carries a piece of every send. False: whole sends go to the queue
    pairs in turn."""
    first_psns: tuple[tuple[int, ...], ...] = ()
    """[channel][turn] unwrapped PSN of that first message, and on the other flows of the
    connection of the first one after it. Set if the start of the job was not captured; message
    numbers then count from there. Empty: they count from the flow's start."""
    senders: tuple[int, ...] = ()
    """[channel] ring index of the sending rank, where channels of a node have different ones; ():
    `sender` for all."""
    receiver: int | None = None
    """Ring index of the receiving rank, for links that only trees use; on nodes with several
    ranks, any rank of the node. None: the next rank of the ring."""
    trees: tuple[bool, bool] = (True, True)
    """Which of NCCL's two trees use this link, if the ranks are linked by trees."""
    heads: tuple[int, ...] = ()
    """[channel] head of NVLS trees that use this link; -1: none does; (): none on any channel."""

    def algorithm_among(self, used: Collection[Algorithm]) -> Algorithm:
        """Algorithm that the connections belong to: the ring, whose links other algorithms may
        also use, or one that has links beside the ring. used: those of the communicator."""
        # Schedules are columns of numpy, which a command that reads a job file alone does without.
        from flowcheck.wire.algorithms.algorithm_registry import algorithm_of_link

        return algorithm_of_link(self.receiver, used, self.trees)

    def turns(self, channel: int) -> tuple[FlowKey, ...]:
        """The mirrored flows of one channel in the order of their turns; () if it was not
        mirrored."""
        if self.queue_pairs:
            return self.queue_pairs[channel]
        flow = self.flows[channel]
        return () if flow is None else (flow,)

    @property
    def pieces(self) -> int:
        """Messages per send: the number of queue pairs if they split sends, else 1."""
        return max(map(len, self.queue_pairs)) if self.split else 1

    @property
    def all_flows(self) -> tuple[FlowKey, ...]:
        """All mirrored flows."""
        return tuple(flow for channel in range(len(self.flows)) for flow in self.turns(channel))


MAP_BYTES = 4
"""Bytes per parameter in the map of used parameters: one int32."""
FORMAT = 3
"""Version of the JSON file. Format 2 can be read as well; others are refused."""


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """A model parameter; `sizes` and `strides` in elements, as in torch."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    element_bytes: int = 4
    dtype: str | None = None
    """torch's name of the dtype without the prefix, such as "float32"; None: the traffic does not
    show it."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.sizes)

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return self.elements * self.element_bytes


class Role(StrEnum):
    """What the payload of a collective is used for."""

    BUCKET = "bucket"
    """Placed: an all-reduce of a gradient bucket, a send of a part of one, or an all-gather of
    parameters."""
    IGNORED = "ignored"
    """Not placed: index lists, buffers, metrics."""


class FollowedData(StrEnum):
    """What the replica is updated from."""

    GRADIENTS = "gradients"
    """Summed gradients, which the optimizer applies."""
    PARAMETERS = "parameters"
    """Gathered parameters of sharded training: each bucket of a step is a unit, whose bytes are
    the ranks' shards one after another."""


class PointToPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a point-to-point send that carries a part of a summed bucket."""

    channel: int
    start_byte: int
    """Offset in the bucket."""
    data_bytes: int


class CollectiveOp(msgspec.Struct, frozen=True, kw_only=True):
    """One collective, or the point-to-point sends that complete one."""

    communicator: int
    protocol: Protocol
    role: Role
    bucket: int = 0
    """Index into the buckets of its iteration; only for Role.BUCKET."""
    kind: CollectiveKind | None = CollectiveKind.ALL_REDUCE
    """Kind of collective; None: point-to-point sends, listed in `messages`."""
    work_bytes: int = 0
    element_bytes: int = 4
    root: int = 0
    """Ring index of the root; broadcasts only."""
    algorithm: Algorithm = Algorithm.RING
    """NCCL algorithm of the collective; unused for point-to-point sends."""
    buffer_broadcast: int | None = msgspec.field(default=None, name="held")
    """Index into `LearnedJob.buffer_broadcasts`, for a broadcast of module buffers; None: another
    collective."""
    messages: tuple[PointToPoint, ...] = ()


class BufferBroadcast(msgspec.Struct, frozen=True, kw_only=True):
    """What one collective of each iteration carries beside gradients: module buffers that are
    broadcast before a forward pass, or parameters that a sharded optimizer's ranks gather. Their
    values are those after the previous iteration."""

    numbers: tuple[int, ...]
    """Indices of the buffers in the stated model's list."""
    nbytes: int
    unit: int | None = None
    """Index of the unit of sharded training whose parameters these are; None: module buffers."""


class HasGradientSizes:
    """Properties of the flat gradient that LearnedJob and TrainingSpec share."""

    __slots__ = ()
    parameters: tuple[Parameter, ...]
    padding: tuple[Parameter, ...]
    gradient_element_bytes: int
    has_usage_map: bool
    buffer_broadcasts: tuple[BufferBroadcast, ...]

    @property
    def state_bytes(self) -> int:
        """Bytes of all parameters in their own dtype."""
        return sum(parameter.nbytes for parameter in self.parameters)

    @property
    def reduced(self) -> tuple[Parameter, ...]:
        """The parameters with the dtype in which gradients are reduced, and the padding with it;
        last, the map of used parameters if the job has one."""
        own = as_reduced((*self.parameters, *self.padding), self.gradient_element_bytes)
        used = Parameter(sizes=(len(self.parameters),), strides=(1,), dtype="int32")
        return (*own, used) if self.has_usage_map else own

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the flat gradient as it is reduced, in registration order, and of the padding
        and the map of used parameters after it."""
        return sum(parameter.nbytes for parameter in self.reduced)

    @property
    def module_buffer_bytes(self) -> int:
        """Bytes of the broadcast module buffers, or of the gathered parameters, which lie after the
        gradients. No step waits for them."""
        return sum(held.nbytes for held in self.buffer_broadcasts)

    @property
    def map_index(self) -> int:
        """Index of the map of used parameters in `reduced`."""
        return len(self.parameters)


class LearnedJob(HasGradientSizes, msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the extractor needs to know about a training job. The updater needs only the
    part without connections (training_spec.py)."""

    era: NcclEra = msgspec.field(name="rule")
    kind: FollowedData = FollowedData.GRADIENTS
    communicators: tuple[Communicator, ...]
    edges: tuple[Edge, ...]
    parameters: tuple[Parameter, ...]
    first_buckets: tuple[tuple[int, ...], ...]
    """Iteration 0: [bucket] parameter indices, in bucket order."""
    buckets: tuple[tuple[int, ...], ...]
    """All later iterations: [bucket] parameter indices, in bucket order."""
    first: tuple[CollectiveOp, ...]
    """Collectives of iteration 0 and of what follows it once, before the repeating part."""
    each: tuple[CollectiveOp, ...]
    """Collectives of one later iteration; they repeat."""
    padding: tuple[Parameter, ...] = ()
    """Zeros that the trainer sums among its gradients, each shaped like what it fills up: hybrid
    sharding pads the parts of parameters. In buckets their indices follow the parameters'; in the
    flat gradient they lie behind all gradients."""
    gradient_element_bytes: int = 0
    """Bytes per element of the dtype to which a communication hook casts gradients; 0: no cast."""
    has_usage_map: bool = msgspec.field(default=False, name="mapped")
    """True: each iteration ends with the all-reduce of the map of used parameters. The last bucket
    of both lists then contains only `map_index`."""
    bucket_plan_unseen: bool = msgspec.field(default=False, name="plan_unseen")
    """True: the buckets are those of the previous incarnation, since this one has not broadcast
    its bucket plan yet."""
    linear: bool = False
    """True: LL128 data lines are in linear order, as before NCCL 2.10."""
    start_unknown: bool = False
    """True: no weights that the job began with crossed the network, and none are stated."""
    unused_parameters: tuple[int, ...] = msgspec.field(default=(), name="never_used")
    """Indices of parameters that no rank ever uses, from the one map of a static graph."""
    unchanged_buffers: tuple[int, ...] = msgspec.field(default=(), name="still")
    """Indices (in the stated model's list) of buffers that did not change in any captured forward
    pass."""
    buffer_broadcasts: tuple[BufferBroadcast, ...] = msgspec.field(default=(), name="held")
    """Broadcasts of module buffers; their data lie after the gradients, in this order."""
    weights_missing: tuple[tuple[int, int], ...] = ()
    """Byte ranges [start, stop) of the initial weights, back to back in registration order and each
    in index order, that were not seen; they are zero on file."""
    evidence: tuple[Finding, ...] = ()
    """Observations from which the job was learned."""
    assumed: tuple[Finding, ...] = ()
    """Facts that no observation could have contradicted."""
    format: int = FORMAT

    @property
    def communicator_ranks(self) -> tuple[int, ...]:
        """[communicator] number of ranks."""
        return tuple(communicator.ranks for communicator in self.communicators)

    @property
    def midstream(self) -> bool:
        """Whether the start of the job was not captured. Then the step number of its first
        captured step is unknown."""
        return any(edge.first_psns for edge in self.edges)

    @property
    def awaits_base(self) -> bool:
        """Whether the state that the job goes on from is unknown, so that captured gradients are
        logged until a base is given."""
        unknown = self.midstream or self.start_unknown
        return unknown and self.kind is FollowedData.GRADIENTS

    @property
    def sharded(self) -> bool:
        """Whether it is sharded training whose trainer is stated; then each unit is gathered once
        per step."""
        told = all(parameter.dtype is not None for parameter in self.parameters)
        return self.kind is FollowedData.PARAMETERS and told

    @property
    def sees_units_twice(self) -> bool:
        """Whether each unit is captured at least twice per iteration. Then gradients taken for
        parameters would be detected, since the copies would differ."""
        if self.communicators[0].ranks > 2 and len(self.edges) > 1:
            return True
        units = [op.bucket for op in self.each if op.role is Role.BUCKET]
        return min(map(units.count, units)) > 1

    @property
    def first_iterations(self) -> tuple[tuple[CollectiveOp, ...], ...]:
        """The collectives of `first`, one tuple per iteration; with a static graph two iterations
        come before the bucket plan."""
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
    """`parameters` with elements of `element_bytes` bytes; 0: unchanged."""
    if not element_bytes:
        return parameters
    return tuple(
        Parameter(sizes=parameter.sizes, strides=parameter.strides, element_bytes=element_bytes)
        for parameter in parameters
    )


SENTENCES_FORMAT = 2
"""Format in which evidence and assumptions are sentences; otherwise as format 3."""


class _Format(msgspec.Struct):
    format: int = FORMAT


class _Sentences(msgspec.Struct):
    """What format 2 has otherwise."""

    evidence: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()


def encode_job(job: LearnedJob) -> bytes:
    """The job as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(job), indent=1)


def decode_job(text: bytes) -> LearnedJob:
    """Decodes a file of `encode_job`, also in format 2 of earlier releases. Raises LearnError for
    anything else."""
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
