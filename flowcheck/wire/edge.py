"""The communicators of a learned job and the mirrored connections of each, for a file."""

from __future__ import annotations

import msgspec

from flowcheck.wire.seen import FlowKey
from flowcheck.wire.terms import Written


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


class Edge(Written, msgspec.Struct, frozen=True, kw_only=True):
    """The mirrored connections from one rank to another, one per channel."""

    communicator: int
    sender: int
    """Ring index of the rank that writes; on channel 0, where `senders` tells of the others."""
    flows: tuple[FlowKey | None, ...]
    """[channel]; None where no mirror saw it."""
    first_numbers: tuple[int, ...]
    """[channel]: message number in its flow of the first message of `Job.first`."""
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
    def every_flow(self) -> tuple[FlowKey, ...]:
        """All that were mirrored."""
        return tuple(flow for channel in range(len(self.flows)) for flow in self.turns(channel))
