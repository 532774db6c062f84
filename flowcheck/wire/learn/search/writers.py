"""Who writes on each channel of a ring over nodes of several GPUs, once one link of it is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from flowcheck.findings.catalog.connections import WRITER_AS_COPY, WRITER_BY_LOG, WRITER_BY_NODES
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_debug_log import RingOrder
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, NcclEra
from flowcheck.wire.learn.cuts.cut import Cuts
from flowcheck.wire.learn.cuts.sounding import everyone, ring_indices, writers
from flowcheck.wire.learn.flows.groups import Group, Link
from flowcheck.wire.learn.flows.nodes import borne_out, by_tags
from flowcheck.wire.learn.flows.rings import Edge, Ring
from flowcheck.wire.learn.flows.streams import Stream


@dataclass(frozen=True, slots=True)
class Writers:
    """What the reading of one link says of all of them, with so many GPUs a node."""

    group: Group
    path: Sequence[Link]
    cuts: Cuts
    lead: Link
    gpus: int
    logged: Sequence[RingOrder]
    by_node: bool = False
    """The ranks named are known to lie node by node."""
    sure: int = 0
    """So many of the first collectives are what they were read as, also those that nobody expected
    to be of that size, or that are still on their way."""
    known: dict[tuple[int, Link, bool, bool], int] = field(default_factory=dict, compare=False)
    """What `_may_write` said."""

    @property
    def ranks(self) -> int:
        return self.cuts.ring.ranks

    @property
    def closed(self) -> bool:
        return self.path[-1][1] == self.path[0][0]

    @property
    def borne_out(self) -> bool:
        return borne_out(self.group, self.path, self.ranks, self.gpus)

    @property
    def _hosts_guessed(self) -> bool:
        """How many hosts there are, and with it the GPUs of each, is a guess."""
        return self.group.guessed and not self.borne_out

    def _named(self, channel: int) -> list[int] | None:
        """Who may write on the first link by the ranks named; None: they do not tell."""
        if not self.borne_out:
            return None
        return by_tags(self._tags(channel), self.ranks, self.gpus)

    def _by_log(self, channel: int) -> set[int]:
        """Ring indices on the first link by NCCL's log, for the ranks named as writers; it does not
        say how many GPUs a node has."""
        found = set[int]()
        if self._hosts_guessed:
            return found
        for order in self.logged:
            for place, (link, tag) in enumerate(zip(self.path, self._tags(channel), strict=True)):
                # Of several ranks named there one leaves its node on this channel.
                tags = self.group.mixed.get(link, ()) if tag is None else (tag,)
                for one in tags:
                    index = order.index_of(one, channel=channel, ranks=self.ranks, gpus=self.gpus)
                    if index is not None:
                        found.add((index - place * self.gpus) % self.ranks)
        return found

    def ring(self, rules: tuple[NcclEra, ...]) -> Ring | None:
        """None where the links contradict each other."""
        channels = range(self.cuts.ring.channels)
        by_size = {c: self._by_size(c) for c in channels}
        if not all(by_size.values()):
            return None
        left, rests = proved, _ = self._left(by_size)
        if any(cut.lost for cut in self.cuts.found[: self.sure]):
            # What is still on its way tells who may write, and proves nothing.
            proved, rests = self._left({c: self._by_size(c, whole=True) for c in channels})
        if any(len(proved[c]) == 1 and proved[c] != left[c] for c in channels):
            return None
        firsts = [left[c][0] for c in channels]
        used = {c for c in self.cuts.state.channels[0] if c is not None}
        turns = frozenset(c for c in used if len(proved[c]) > 1)
        return Ring(
            ranks=self.ranks,
            edges=tuple(self._edges(firsts)),
            channels=len(channels),
            extra_sends=0,
            rules=rules,
            penalty=self.group.penalty + (not self.borne_out),
            order=self.group.order,
            closed=self.closed,
            gpus=self.gpus,
            borne_out=self.borne_out,
            turns=turns,
            nodes_open=self._hosts_guessed and bool(turns),
            by_gpu=tuple(rests),
        )

    def _left(self, by_size: dict[int, list[int]]) -> tuple[dict[int, list[int]], list[Finding]]:
        """({channel: who may write on the first link}, what that rests on beside sizes)."""
        left: dict[int, list[int]] = {}
        rests: list[Finding] = []
        for c, fits in by_size.items():
            left[c], why = self._narrowed(c, fits)
            rests += why
        return left, rests + self._same_way(left)

    def _narrowed(self, channel: int, by_size: list[int]) -> tuple[list[int], list[Finding]]:
        """Who may write on the first link of those that sizes leave, and what that rests on."""
        if len(by_size) == 1:
            return by_size, []
        by_log = self._by_log(channel)
        if len(by_log) == 1 and by_log <= set(by_size):
            return [*by_log], [WRITER_BY_LOG(channel)]
        named = self._named(channel)
        fits = [r for r in by_size if named is not None and r in named]
        alike = len(fits) == 1 and self.gpus > 1
        return fits or by_size, [WRITER_BY_NODES(gpus=self.gpus, channel=channel)] if alike else []

    def _edges(self, firsts: Sequence[int]) -> Iterator[Edge]:
        for place, link in enumerate(self.path):
            if link in self.group.links:
                senders = tuple((first + place * self.gpus) % self.ranks for first in firsts)
                several = len(set(senders)) > 1
                yield Edge(
                    sender=senders[0],
                    streams=self.group.links[link],
                    senders=senders if several else (),
                )

    def _by_size(self, channel: int, *, whole: bool = False) -> list[int]:
        """Ring indices that may write on the first link of the path. whole: by what was seen to its
        end alone."""
        bits = self._bits(channel, whole=whole)
        shift = self.path.index(self.lead) * self.gpus
        found = [(r - shift) % self.ranks for r in ring_indices(bits)]
        if self.sure and not self.by_node:
            return [r for r in found if self._laid_out(channel, r, whole=whole)]
        found = [r for r in found if self._broadcasts_agree(channel, r)]
        if not self.by_node:
            return found
        # One link beside trees may have been read wrongly: all of them are read with what is named.
        named = self._named(channel) or found
        return [r for r in found if r in named] or named

    def _bits(self, channel: int, *, whole: bool) -> int:
        """Of the ring indices that may write on the link that was read, by what surely is what it
        was read as: behind the last iteration one link alone tells little."""
        ring, bits = self.cuts.ring, everyone(self.ranks)
        for i, cut in enumerate(self.cuts.found):
            if (
                (i >= self.sure and (cut.lost or not cut.op.licensed))
                or cut.op.open_size
                or cut.op.tree
                or channel not in cut.channels[0]
                or (whole and cut.lost)
            ):
                continue
            place, sends = cut.channels[0].index(channel), cut.schedules[0][channel]
            stream, number = ring.edges[0].streams[place], cut.starts[0][place]
            bits &= writers(stream, number, sends, cut.op.kind, cut.op.protocol, self.ranks)[0]
        return bits

    def _laid_out(self, channel: int, first: int, *, whole: bool) -> bool:
        """What was read on one link is on the others too, as far as it was seen there, if that
        ring index writes on the first one."""
        for place, link in enumerate(self.path):
            stream = self._stream(link, channel)
            if stream is None or link == self.lead:
                continue
            sender = (first + place * self.gpus) % self.ranks
            to_root = sender == self.ranks - 1
            if not self._may_write(channel, link, to_root=to_root, whole=whole) >> sender & 1:
                return False
        return True

    def _may_write(self, channel: int, link: Link, *, to_root: bool, whole: bool) -> int:
        """Bits of the ring indices that may write on another link what was read on the lead; to the
        root of broadcasts none of these pass."""
        name = channel, link, to_root, whole
        stream = self._stream(link, channel)
        if name not in self.known and stream is not None:
            bits, number = everyone(self.ranks), 0
            for cut in self.cuts.found:
                kind, names = cut.op.kind, cut.channels[0]
                passes = not (to_root and kind is CollectiveKind.BROADCAST)
                if channel not in names or not passes or (whole and cut.lost):
                    continue
                sends = cut.schedules[0][channel]
                bits &= writers(stream, number, sends, kind, cut.op.protocol, self.ranks)[0]
                number += len(sends)
            self.known[name] = bits
        return self.known.get(name, 0)

    def _broadcasts_agree(self, channel: int, first: int) -> bool:
        """Whoever writes to rank 0 broadcasts nothing, so that fewer sends are seen there."""
        own, broadcasts = self._stream(self.lead, channel), self._broadcast_sends(channel)
        if not broadcasts:
            return True
        for place, link in enumerate(self.path):
            other = self._stream(link, channel)
            if own is None or other is None or link == self.lead or not self._all_alike(link):
                continue
            last = (first + place * self.gpus + 1) % self.ranks == 0
            if last != (len(other.sends) < len(own.sends) - broadcasts // 2):
                return False
        return True

    def _all_alike(self, link: Link) -> bool:
        """Nothing of it was lost."""
        streams = (*self.group.links[link], *self.group.links[self.lead])
        return all(s.from_start and len(s.sends) == s.stop for s in streams)

    def _broadcast_sends(self, channel: int) -> int:
        return sum(
            len(cut.schedules[0][channel])
            for cut in self.cuts.found
            if cut.op.kind is CollectiveKind.BROADCAST
        )

    def _stream(self, link: Link, channel: int) -> Stream | None:
        """Of a channel; on other links than the one that was read, by its place."""
        streams, names = self.group.links.get(link, ()), self.cuts.state.channels[0]
        if channel not in names:
            return None
        place = names.index(channel)
        return streams[place] if place < len(streams) else None

    def _tags(self, channel: int) -> list[int | None]:
        """[link] the rank named as writer on a channel."""
        found = []
        for link in self.path:
            stream = self._stream(link, channel)
            named = None if link in self.group.mixed else self.group.tags.get(link)
            found.append(stream.tag if stream is not None else named)
        return found

    def _same_way(self, left: dict[int, list[int]]) -> list[Finding]:
        """NCCL makes copies of its channels, in order: one of which several writers fit takes that
        of a copy which has it told; `left` is changed."""
        exits = [tuple(self._tags(c)) for c in left]
        period = next(n for n in range(1, len(exits) + 1) if exits[n:] == exits[:-n])
        rests: list[Finding] = []
        for c, fits in left.items():
            alike = [o for o in left if (o - c) % period == 0 and len(left[o]) == 1]
            known = {left[o][0] for o in alike}
            if len(fits) > 1 and None not in exits[c] and len(known) == 1 and known <= set(fits):
                left[c] = [*known]
                rests.append(WRITER_AS_COPY(channel=c, like=alike[0]))
        return rests
