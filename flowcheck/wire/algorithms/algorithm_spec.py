"""What FlowCheck must know of one of NCCL's algorithms: the descriptor, and what it works with.

A descriptor is data and functions. Whoever meets a collective asks the descriptor of its algorithm
(algorithm_registry.py) and compares no names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol as Shape

from flowcheck.findings.finding import Finding
from flowcheck.wire.algorithms.algorithm_names import Algorithm
from flowcheck.wire.collectives.chunk_partition import RING_THREADS, ThreadRule
from flowcheck.wire.collectives.double_binary_tree import PerTree, TreeCommunicator, TreeEdge
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, NcclEra, Tuning, WriterRanks
from flowcheck.wire.collectives.nvls_shape import NO_NVLS, NvlsShape
from flowcheck.wire.collectives.ring_schedule import RingSetting, Schedule

SendSizeAt = Callable[[int, int], int | None]
"""(lane, send from here on) -> wire bytes; None: was lost, or nobody knows; NOT_ARRIVED."""
SendSizes = tuple[tuple[int, ...], ...]
"""[lane][send] wire bytes."""
FinalChunks = Callable[[int, int], frozenset[int]]
"""(sender's ring index, ranks) -> chunks that the link to the next rank carries in final form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionEnds:
    """Who writes and who reads over the connections from one rank, or node, to another."""

    writers: WriterRanks
    receiver: int | None = None
    """Ring index of who reads, where that is not the next one, or where connections lie beside the
    ring's; None: the connections are the ring's."""
    trees: PerTree = (True, True)
    """Which of the two trees pass there, where their ranks are linked."""
    heads: tuple[int, ...] = ()
    """[channel] the head whose NVLS tree passes there, `NO_HEAD`: none; (): none on any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCall:
    """One collective of a communicator, and all that decides what its connections carry."""

    kind: CollectiveKind
    work_bytes: int
    """The tensor of an all-reduce or broadcast, one rank's block of a gather or scatter."""
    element_bytes: int
    root: int
    """Ring index; broadcasts only."""
    extra_sends: int
    """1: the trainer is patched to forward one result more per loop of the ring."""
    found: int
    """Channels of NCCL's search, which tell the tree of each; 0: no trees were seen."""
    ring: RingSetting
    nvls: NvlsShape = NO_NVLS


class CommunicatorShape(TreeCommunicator, Shape):
    """A communicator of a learned job."""

    @property
    def channels(self) -> int: ...
    @property
    def extra_sends(self) -> int: ...
    @property
    def tuning(self) -> Tuning: ...
    @property
    def nvls(self) -> NvlsShape:
        """Its heads and nodes; `NO_NVLS`: no NVLS tree was seen."""
        ...


class EdgeShape(TreeEdge, Shape):
    """The mirrored connections from one rank to another, as a learned job has them."""

    def sender_of(self, channel: int) -> int: ...


@dataclass(frozen=True, slots=True)
class MirroredLane:
    """One mirrored connection of a communicator."""

    edge: EdgeShape
    number: int
    """Of the edge: lanes of one edge have the same."""
    channel: int


class UnplannedSearch(Shape):
    """Recognizes collectives that are in no plan by the sizes of their sends."""

    def begin(self) -> None:
        """Another reading of the stream begins: what a reading may cost is granted anew."""
        ...

    def at(self, size: SendSizeAt) -> Iterator[SendSizes]:
        """Each collective that may begin with the sends numbered 0 on every lane."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmSpec:
    """One of NCCL's algorithms. What is not followed has a name, a plural and a reason alone."""

    name: Algorithm
    plural: str
    """In sentences: "trees"."""
    refused_because: Finding | None = None
    """Why it is not followed; None: it is."""

    kinds: frozenset[CollectiveKind] = frozenset()
    """Collectives that NCCL makes with it."""
    sends: Callable[[CollectiveCall, ConnectionEnds], Schedule] | None = None
    """[channel][send] what one edge carries for a collective; () for channels without work."""
    unplanned: (
        Callable[[CommunicatorShape, NcclEra, Sequence[MirroredLane]], UnplannedSearch | None]
        | None
    ) = None
    """What recognizes its collectives that are in no plan; it gives None for a communicator that
    has none of it."""
    thread_rule: ThreadRule = RING_THREADS
    """How NCCL shares it out to channels and threads."""

    final_chunks: FinalChunks | None = None
    """Where each direction of a port shows chunks of its own: which. None: both directions of a
    port must be mirrored, and then show all of it."""
    beside_ring: bool = False
    """It has connections between ranks that are no neighbours in the ring."""
    least_ranks: int = 2
    most_ranks: int | None = None
    """Of communicators that are followed; None: any number."""
    least_nodes: int = 2
    least_gpus: int = 1
    """Of a node."""
    most_nodes_of_several_ports: int | None = None
    """Where a node's channels come and go by several ports: on how many nodes it is followed; None:
    on any number."""
    all_ports_of_a_node: bool = False
    """Each NIC of a node carries its own share of every tensor: all of one node are mirrored."""
    mirror_note: Finding | None = None
    """What `flowcheck ports` adds where it is used; None: nothing."""

    by_words: str = ""
    """Behind the kind of a collective in a table: " by trees"; empty: it goes without saying."""
    sums: Finding | None = None
    """What is to be said of the sums of its all-reduces; None: nothing."""

    @property
    def followed(self) -> bool:
        return self.refused_because is None
