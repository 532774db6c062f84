"""Rings whose size or writers hosts do not tell: nodes of several GPUs, and long ones.

The start-up counts the ranks. One link is read with the writers left open, which the sizes of its
all-reduces then tell, channel by channel; where several fit, the ranks that clear-to-send messages
name may. What is still open is said (`Ring.turns`): of those channels no result is believed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flowcheck.wire.learn.cuts.cut import HASTY, Cuts, Purse, cut_stream
from flowcheck.wire.learn.cuts.sounding import everyone, ring_indices, writers
from flowcheck.wire.learn.flows.counted import ranks_counted
from flowcheck.wire.learn.flows.groups import Group, Link, path_of
from flowcheck.wire.learn.flows.nodes import borne_out, by_tags, gaps, likeliest_first, plain
from flowcheck.wire.learn.flows.rings import Edge, Ring
from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.learn.trainer.grammar import Trainer
from flowcheck.wire.terms import Kind, Rule

MOST_LEADS = 2
"""Links read with their writers open."""
ALIKE = (
    "every node goes round its {} GPUs alike, and ranks lie node by node: who writes on channel {} "
    "is told by the ranks that clear-to-send messages name"
)
SAME_WAY = (
    "channels go round the GPUs of a node as those do of which they are copies, by the GPUs that "
    "they leave by: channel {} as channel {}"
)


def sounded(group: Group, rules: tuple[Rule, ...], purse: Purse | None) -> list[Ring]:
    """Rings this group may be, likeliest first; none where all tells of a plain ring, or where the
    start was not seen."""
    path = path_of(group)
    counted = ranks_counted(s for of in group.links.values() for s in of)
    if path is None or not counted or plain(group, path, counted):
        return []
    found: list[tuple[int, float, Cuts, Link]] = []
    for ranks in likeliest_first(group, path, counted):
        if ranks <= max(group.tags.values(), default=0):
            continue
        for link in _leads(group)[:MOST_LEADS]:
            cuts = _read(group, link, ranks, rules, purse)
            if Trainer().habits(cuts.ring, cuts.found).shapes:
                found.append((cuts.unread, cuts.cost, cuts, link))
            if not cuts.unread:
                break
        if found and not found[-1][0]:
            break
    if not found:
        return []
    *_, cuts, lead = min(found, key=lambda one: one[:2])
    told = (_Told(group, path, cuts, lead, gap) for gap in gaps(group, path, cuts.ring.ranks))
    return [ring for one in told if (ring := one.ring(rules)) is not None]


def _leads(group: Group) -> list[Link]:
    """Links, the one that carried most first: to rank 0 come no broadcasts."""
    return sorted(group.links, key=lambda link: -sum(len(s.sends) for s in group.links[link]))


def _read(
    group: Group, link: Link, ranks: int, rules: tuple[Rule, ...], purse: Purse | None
) -> Cuts:
    ring = Ring(
        ranks=ranks,
        edges=(Edge(sender=0, streams=group.links[link]),),
        channels=max(map(len, group.links.values())),
        extra_sends=0,
        rules=rules,
        penalty=group.penalty,
        sounding=True,
    )
    return cut_stream(ring, Trainer(), effort=HASTY, purse=purse)


@dataclass(frozen=True, slots=True)
class _Told:
    """What the reading of one link says of who writes on all of them, with so many GPUs a node."""

    group: Group
    path: Sequence[Link]
    cuts: Cuts
    lead: Link
    gpus: int

    @property
    def ranks(self) -> int:
        return self.cuts.ring.ranks

    @property
    def closed(self) -> bool:
        return self.path[-1][1] == self.path[0][0]

    @property
    def borne_out(self) -> bool:
        return borne_out(self.group, self.path, self.ranks, self.gpus)

    def _named(self, channel: int) -> list[int] | None:
        """Who may write on the first link by the ranks named; None: they do not tell."""
        if not self.borne_out:
            return None
        return by_tags(self._tags(channel), self.ranks, self.gpus)

    def ring(self, rules: tuple[Rule, ...]) -> Ring | None:
        """None where the links contradict each other."""
        channels = range(self.cuts.ring.channels)
        by_size = {c: self._by_size(c) for c in channels}
        if not all(by_size.values()):
            return None
        left: dict[int, list[int]] = {}
        rests: list[str] = []
        for c in channels:
            named = self._named(c) if len(by_size[c]) > 1 else None
            fits = [r for r in by_size[c] if r in named] if named is not None else []
            left[c] = fits or by_size[c]
            if len(fits) == 1 and self.gpus > 1:
                rests.append(ALIKE.format(self.gpus, c))
        rests += self._same_way(left)
        firsts = [left[c][0] for c in channels]
        used = {c for c in self.cuts.state.channels[0] if c is not None}
        return Ring(
            ranks=self.ranks,
            edges=tuple(self._edges(firsts)),
            channels=len(channels),
            extra_sends=0,
            rules=rules,
            penalty=self.group.penalty + (not self.borne_out),
            closed=self.closed,
            gpus=self.gpus,
            borne_out=self.borne_out,
            turns=frozenset(c for c in used if len(left[c]) > 1),
            by_gpu=tuple(rests),
        )

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

    def _by_size(self, channel: int) -> list[int]:
        """Ring indices that may write on the first link of the path."""
        bits = self._bits(channel)
        shift = self.path.index(self.lead) * self.gpus
        found = [(r - shift) % self.ranks for r in ring_indices(bits)]
        return [r for r in found if self._broadcasts_agree(channel, r)]

    def _bits(self, channel: int) -> int:
        """Of the ring indices that may write on the link that was read, by what surely is what it
        was read as: behind the last iteration one link alone tells little."""
        ring, bits = self.cuts.ring, everyone(self.ranks)
        for cut in self.cuts.found:
            if (
                not cut.op.licensed
                or cut.op.open_size
                or cut.lost
                or channel not in cut.channels[0]
            ):
                continue
            place, sends = cut.channels[0].index(channel), cut.schedules[0][channel]
            stream, number = ring.edges[0].streams[place], cut.starts[0][place]
            bits &= writers(stream, number, sends, cut.op.kind, cut.op.protocol, self.ranks)[0]
        return bits

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
            if cut.op.kind is Kind.BROADCAST
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
            found.append(stream.tag if stream is not None else self.group.tags.get(link))
        return found

    def _same_way(self, left: dict[int, list[int]]) -> list[str]:
        """NCCL makes copies of its channels, in order: one of which several writers fit takes that
        of a copy which has it told; `left` is changed."""
        exits = [tuple(self._tags(c)) for c in left]
        period = next(n for n in range(1, len(exits) + 1) if exits[n:] == exits[:-n])
        rests = []
        for c, fits in left.items():
            alike = [o for o in left if (o - c) % period == 0 and len(left[o]) == 1]
            known = {left[o][0] for o in alike}
            if len(fits) > 1 and None not in exits[c] and len(known) == 1 and known <= set(fits):
                left[c] = [*known]
                rests.append(SAME_WAY.format(c, alike[0]))
        return rests
