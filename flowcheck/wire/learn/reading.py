"""What learning hands over: everything `analyze` prints and the extractor places by."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowcheck.findings.finding import Finding
from flowcheck.wire.algorithms.algorithm_names import Algorithm
from flowcheck.wire.algorithms.algorithm_registry import algorithm_of_link
from flowcheck.wire.collectives.double_binary_tree import PerTree
from flowcheck.wire.collectives.nccl_parameters import NcclEra, Protocol, WriterRanks
from flowcheck.wire.traffic.observed_messages import FlowKey, ObservedFlow, Range
from flowcheck.wire.training_job.learned_job import LearnedJob


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowReading:
    """One flow and what it is for."""

    seen: ObservedFlow
    role: str
    """data, cts or other."""
    protocol: Protocol | None
    peer: FlowKey | None
    """The flow of the same queue pair that runs the other way."""
    messages: int
    bytes: int
    numbered_by: tuple[Finding, ...]
    problems: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One message of one flow, and the range of the tensor it carries."""

    flow: FlowKey
    number: int
    """NCCL's message number on the connection, from 0."""
    first_psn: int | None
    """Of the message that holds the payload; None: never seen."""
    protocol: Protocol
    wire_bytes: int
    start_byte: int
    data_bytes: int
    final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSeen:
    """The mirrored connections from one rank of a ring to the next."""

    senders: WriterRanks
    """Its ring index; [channel] where another rank of the node writes on each."""
    channels: tuple[tuple[int | None, tuple[FlowKey, ...]], ...]
    """(channel, flows of the connection); None: it carried nothing that tells its channel."""
    receiver: int | None = None
    """Ring index of who reads, where that is not the next one: a link of trees."""
    trees: PerTree = (True, True)
    """Which of the two trees pass there."""

    @property
    def algorithm(self) -> Algorithm:
        """Whose connections they are: the ring's, where others may pass too, or of one alone."""
        return algorithm_of_link(self.receiver, trees=self.trees)


@dataclass(frozen=True, slots=True, kw_only=True)
class RingSeen:
    """The ring that a collective went around, and how it was cut."""

    channels: int
    """Of the communicator; a collective may use fewer."""
    gpus: int
    """Ranks of a node."""
    element_bytes: int
    extra_sends: int
    rules: tuple[NcclEra, ...]
    """Eras of NCCL that cut it so."""
    links: tuple[LinkSeen, ...]


class DifferingBytes(NamedTuple):
    """Some bytes of a result of which two copies of one message differ, with those beside them that
    make whole elements."""

    start: int
    first: bytes
    later: bytes

    def within(self, at: int, size: int) -> DifferingBytes:
        """The same of a result that begins at `at` of a larger one of `size` bytes."""
        left = max(0, size - at - self.start)
        return DifferingBytes(self.start + at, self.first[:left], self.later[:left])


Put = Callable[[int, NDArray[np.uint8]], None]
"""Takes bytes of a result, and where they begin."""


class Deferred:
    """A result that is put together once somebody asks for it: of a large model all of it is
    looked at once, and not in each reading of a stream that goes on."""

    __slots__ = ("_made", "_make", "_sources", "size_bytes")

    def __init__(
        self, size_bytes: int, make: Callable[[Put], bool], sources: Callable[[], bytes]
    ) -> None:
        """make: gives the result piece by piece, of which the last one for a byte counts, and
        returns whether no two copies of a byte differ. sources: as of the property."""
        self.size_bytes = size_bytes
        self._make, self._sources = make, sources
        self._made: tuple[NDArray[np.uint8], bool] | None = None

    @property
    def sources(self) -> bytes:
        """Digest of where each byte comes from: two readings whose digests are equal put the same
        result together."""
        return self._sources()

    def made(self) -> tuple[NDArray[np.uint8], bool]:
        """(the result, whether no two copies of a byte differ)."""
        if self._made is None:
            result = np.empty(self.size_bytes, np.uint8)
            sound = self.give(partial(_put, result))
            self._made = result, sound
        return self._made

    def write(self, file: int) -> bool:
        """Writes the result to a file that is open under that number, and returns whether no two
        copies of a byte differ. Raises OSError."""
        return self.give(partial(_pwrite, file))

    def give(self, put: Put) -> bool:
        """The result piece by piece, as `make` gives it."""
        if self._made is None:
            return self._make(put)
        put(0, self._made[0])
        return self._made[1]


def _put(result: NDArray[np.uint8], start: int, data: NDArray[np.uint8]) -> None:
    result[start : start + len(data)] = data


def _pwrite(file: int, start: int, data: NDArray[np.uint8]) -> None:
    left = np.ascontiguousarray(data).data
    while left:
        written = os.pwrite(file, left, start)
        left, start = left[written:], start + written


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective, in the order of the stream; offsets are bytes of its result."""

    index: int
    kind: str
    communicator: int
    protocol: Protocol
    ranks: int
    channels: int
    bytes: int
    covered_bytes: int
    missing: tuple[Range, ...]
    result: NDArray[np.uint8] = field(repr=False)
    """[bytes], zero where nothing final was seen."""
    conflicts: int
    """Bytes of which two final copies differ, and `torn` ones."""
    sources: tuple[str, ...]
    assumed: tuple[Finding, ...]
    first_ns: int
    placements: Sequence[Placement] = field(repr=False)
    meaning: str = ""
    """What it is to the trainer, where that is known."""
    torn: int = 0
    """Bytes of one message that mirror points or repeats gave differently: they are missing, and
    speak of no other reading."""
    differing: tuple[DifferingBytes, ...] = field(default=(), repr=False)
    """Of `torn` bytes both copies, where they were kept."""
    doubtful: bool = False
    """Sends may belong together otherwise: never complete, whatever the coverage."""
    ring: RingSeen | None = None
    """None: a point-to-point send."""
    algorithm: Algorithm = Algorithm.RING
    deferred: Deferred | None = field(default=None, repr=False)
    """Puts the result together, which is empty until then; None: it is not empty."""

    @property
    def tree(self) -> bool:
        """An all-reduce by trees, NVLS trees too."""
        return self.algorithm is not Algorithm.RING

    @property
    def coverage(self) -> float:
        return self.covered_bytes / self.bytes if self.bytes else 1.0

    @property
    def contradictory(self) -> bool:
        """Copies of bytes of different messages differ: what was seen may be something else."""
        return self.conflicts > self.torn

    @property
    def complete(self) -> bool:
        """Every byte has a final copy and no two copies differ."""
        whole = not self.missing and self.covered_bytes == self.bytes
        return whole and not self.conflicts and not self.doubtful

    @property
    def sha256(self) -> str | None:
        """Of the result; None unless it is complete."""
        data, sound = (self.result, True) if self.deferred is None else self.deferred.made()
        return hashlib.sha256(data.tobytes()).hexdigest() if self.complete and sound else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What rank 0 sent before the first step."""

    shapes: tuple[tuple[int, ...], ...]
    result: NDArray[np.uint8] = field(repr=False)
    missing: tuple[Range, ...]
    complete: bool
    why_not: Finding | None = None
    """Why they are not complete although all of them was seen; None: something was missed."""
    assumed: tuple[Finding, ...] = ()
    beside: NDArray[np.uint8] | None = field(default=None, repr=False)
    """Frozen parameters and buffers that were sent with them, back to back in the stated model's
    order, each in index order; None: the model is not stated."""
    still: tuple[int, ...] = ()
    """Buffers, by their number among those of the stated model, that none of `forwards` changed."""
    forwards: int = 0
    deferred: Deferred | None = field(default=None, repr=False)
    """As of `Collective`."""
    element_bytes: int = 0
    """Of the parameters' smallest elements, where all of them are in `result`; 0: not told."""
    differing: tuple[DifferingBytes, ...] = field(default=(), repr=False)
    """Of what is missing both copies, where two were seen that differ and were kept."""
    only_lacks: bool = False
    """They are not complete for `missing` alone: all that was seen of them is certain."""

    @property
    def sources(self) -> bytes | None:
        """As of `Deferred`, of weights of which all was seen and that nobody has put together;
        None: there is nothing to put together."""
        if self.deferred is None or not self.complete or self.why_not is not None:
            return None
        return self.deferred.sources

    @property
    def data(self) -> NDArray[np.uint8]:
        """The result, put together by now."""
        return self.result if self.deferred is None else self.deferred.made()[0]

    @property
    def sound(self) -> bool:
        """They are complete, and no two copies of a byte differ; puts the result together."""
        return self.complete and (self.deferred is None or self.deferred.made()[1])

    @property
    def certain_where_seen(self) -> bool:
        """All but `missing` is certain, and no two copies of a byte differ; puts the result
        together."""
        certain = self.complete or self.only_lacks
        return certain and (self.deferred is None or self.deferred.made()[1])

    @property
    def bytes(self) -> int:
        return int(self.result.size) if self.deferred is None else self.deferred.size_bytes

    @property
    def sha256(self) -> str | None:
        return hashlib.sha256(self.data.tobytes()).hexdigest() if self.sound else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One of the data-parallel jobs of a stream, as far as it is told."""

    communicator: int
    job: LearnedJob | None
    weights: Weights | None
    why_not: tuple[Finding, ...]
    first_ns: int = 0
    """When its communicator was used first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """Before so many messages of each of these flows are whole another reading tells no more."""

    flows: tuple[tuple[FlowKey, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Everything the stream told so far."""

    flows: tuple[FlowReading, ...]
    collectives: tuple[Collective, ...]
    weights: Weights | None
    job: LearnedJob | None
    why_not: tuple[Finding, ...]
    """Why there is no job, or one of parameters alone, or why something stayed unread."""
    formats: tuple[Finding, ...] = ()
    """Which forms of NCCL's transport were seen."""
    others: tuple[FlowKey, ...] = ()
    """Flows of connections that are of no job which could be learned."""
    gathered: Weights | None = None
    """Of a job of sharded training: the parameters it is followed from, unit by unit."""
    parts: tuple[Part, ...] = ()
    """Every data-parallel job, in the order in which they began; `job` is one of them."""
    awaited: Awaited | None = None
    """What a job that is not told yet waits for; None: nothing foretells it."""
