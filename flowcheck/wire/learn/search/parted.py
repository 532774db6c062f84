"""The communicator of a trainer whose optimizer is parted, read by the sizes that are stated.

A reduce-scatter and the gather behind it, of one buffer, have the sizes, steps and copies of an
all-reduce; of two ranks, either is as large as the other. So the stated trainer says what comes
when: sums of all gradients, then every unit gathered once
(flowcheck.wire.training_job.operator_statements).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, NcclEra, Protocol
from flowcheck.wire.learn.cuts.candidates import Op
from flowcheck.wire.learn.cuts.cut import Cut, Cuts, Purse, State, cut_stream
from flowcheck.wire.learn.cuts.echo import echoes
from flowcheck.wire.learn.cuts.place import paint
from flowcheck.wire.learn.flows.groups import alone
from flowcheck.wire.learn.flows.rings import Ring, rings, seen_whole
from flowcheck.wire.learn.flows.roles import Grants
from flowcheck.wire.learn.flows.rows import Row, parts, rows, unpaired, used_together
from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.learn.search.change import LITTLE, changes
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.search.gathers import GATHERED, SCATTERED
from flowcheck.wire.learn.search.quiet import FIRST_HALF, starts
from flowcheck.wire.learn.search.started import ranks_started
from flowcheck.wire.learn.trainer.grammar import WEIGHTS, Habits
from flowcheck.wire.training_job.operator_statements import ShardedTraining

STATED = "stated: [sharded] style"
SUMMED = "gradients, summed whole"
PURSE = (1_000, 20)
"""Steps of the search in one row, and for each of its sends."""
MOST_PAUSES = 16
"""Of a stream whose start was not seen, behind which a step may begin."""
LEAST = 2
"""Times that every unit was gathered, before a trainer is believed to be the stated one."""


@dataclass(frozen=True, slots=True)
class _Due:
    """What of a step is still to come."""

    scatters: tuple[int, ...]
    """Units whose gradient was not scattered yet."""
    gathers: tuple[int, ...]
    summed: int = 0
    """Bytes that were all-reduced since the last gather."""


class Shares:
    """Expects sums of all gradients, then every unit once; whatever lies between fits too."""

    def __init__(self, parted: ShardedTraining) -> None:
        self._parted = parted
        self._every = tuple(range(len(parted.parts)))
        self._told: list[tuple[Cut | None, _Due]] = [(None, self._begin())]

    def __call__(self, ring: Ring, path: Sequence[Cut], state: State) -> Iterator[Op]:
        for protocol in ring.protocols_at(state.positions):
            yield from self._expected(path, protocol)

    def accepts(self, ring: Ring, path: Sequence[Cut], cut: Cut) -> bool:
        """It is due, if it is the trainer's; a gather is forwarded as it came, a sum is not."""
        if cut.op.licensed and cut.op not in self._expected(path, cut.op.protocol):
            return False
        if cut.op.meaning == GATHERED:
            return not paint(cut, ring)[0].conflicts
        return cut.op.kind is not CollectiveKind.ALL_REDUCE or not echoes(cut, ring)

    def _expected(self, path: Sequence[Cut], protocol: Protocol) -> Iterator[Op]:
        """What of the trainer's may come behind `path`."""
        sent, places = len(path), self._parted.places
        if sent < len(places) and all(cut.op.meaning == WEIGHTS for cut in path):
            yield _op(CollectiveKind.BROADCAST, places[sent].nbytes, protocol, WEIGHTS)
        yield from self._ops(self.due(path), protocol)

    def due(self, path: Sequence[Cut]) -> _Due:
        """What of the step that `path` ends in is still to come."""
        known = min(len(path) + 1, len(self._told))
        while known > 1 and self._told[known - 1][0] is not path[known - 2]:
            known -= 1
        del self._told[known:]
        for cut in path[known - 1 :]:
            self._told.append((cut, self._after(self._told[-1][1], cut)))
        return self._told[-1][1]

    def _begin(self) -> _Due:
        scattered = any(part.scattered_bytes for part in self._parted.parts)
        return _Due(self._every if scattered else (), self._every)

    def _ops(self, due: _Due, protocol: Protocol) -> Iterator[Op]:
        parts, total = self._parted.parts, self._parted.summed_bytes
        if due.scatters:
            for part in dict.fromkeys(parts[n] for n in due.scatters):
                op = _op(CollectiveKind.REDUCE_SCATTER, part.scattered_bytes, protocol, SCATTERED)
                yield replace(op, type_bytes=part.gradient_bytes)
        elif due.summed < total * self._parted.sums:
            op = _op(CollectiveKind.ALL_REDUCE, total - due.summed % total, protocol, SUMMED)
            yield replace(op, type_bytes=parts[0].gradient_bytes)
        else:
            ends = (due.gathers[0], due.gathers[-1])
            for size in dict.fromkeys(parts[n].gathered_bytes for n in ends):
                yield _op(CollectiveKind.ALL_GATHER, size, protocol, GATHERED)

    def _after(self, due: _Due, cut: Cut) -> _Due:
        parts, size = self._parted.parts, cut.op.work_bytes
        if cut.op.meaning == SCATTERED:
            unit = next(n for n in due.scatters if parts[n].scattered_bytes == size)
            return replace(due, scatters=tuple(n for n in due.scatters if n != unit))
        if cut.op.meaning == GATHERED:
            first = parts[due.gathers[0]].gathered_bytes == size
            left = due.gathers[1:] if first else due.gathers[:-1]
            return replace(due, gathers=left) if left else self._begin()
        if cut.op.kind is CollectiveKind.ALL_REDUCE:
            return replace(due, summed=due.summed + size)
        return due


def _op(kind: CollectiveKind, size: int, protocol: Protocol, meaning: str) -> Op:
    return Op(kind=kind, work_bytes=size, protocol=protocol, licensed=STATED, meaning=meaning)


def apart_from(
    streams: Sequence[Stream],
    grants: Sequence[Grants],
    rules: tuple[NcclEra, ...],
    parted: ShardedTraining | None,
) -> tuple[list[Communicator], list[Stream]]:
    """(the communicator whose sends are those of the stated trainer, if there is, the streams of
    others)."""
    own = None if parted is None else _found(streams, grants, rules, parted)
    if own is None:
        return [], list(streams)
    taken = {id(stream) for edge in own.ring.edges for stream in edge.streams}
    return [own], [stream for stream in streams if id(stream) not in taken]


def _found(
    streams: Sequence[Stream],
    grants: Sequence[Grants],
    rules: tuple[NcclEra, ...],
    parted: ShardedTraining,
) -> Communicator | None:
    found: list[Communicator] = []
    for row in _likely(streams):
        for ring in rings(alone(row, unpaired(row, streams, grants)), rules):
            if ring.ranks != parted.ranks or ring.extra_sends or ring.penalty > 1:
                continue
            cuts = _read(ring, parted)
            often = len(gathered_at(cuts.found, len(parted.parts)))
            # DistributedDataParallel all-reduces gradients, whatever is stated.
            if often >= LEAST and not ranks_started(row):
                found.append(Communicator(cuts, Habits()))
                if not cuts.unread and not _unseen(ring):
                    return found[-1]
    return min(found, key=lambda c: (_unseen(c.ring), c.cuts.unread, c.cuts.cost), default=None)


def _read(ring: Ring, parted: ShardedTraining) -> Cuts:
    """From its start, or where that was not seen, from a pause on behind which all is as stated."""
    streams = [stream for edge in ring.edges for stream in edge.streams]
    purse = Purse.of(PURSE, sum(len(stream.sends) for stream in streams))
    if ring.from_start:
        return cut_stream(ring, Shares(parted), purse=purse, in_order=seen_whole(ring))
    first = tuple(tuple(stream.first for stream in edge.streams) for edge in ring.edges)
    for start in (first, *starts(ring, share=FIRST_HALF, most=MOST_PAUSES)):
        cuts = cut_stream(ring, Shares(parted), start=start, purse=purse, in_order=True)
        often = len(gathered_at(cuts.found, len(parted.parts)))
        if often >= LEAST and not cuts.unread and steady(cuts.found, ring, parted):
            return cuts
    return cuts


def _unseen(ring: Ring) -> int:
    """Channels that one link has and another one lacks: rather of another row."""
    return sum(ring.channels - len(edge.streams) for edge in ring.edges)


def _likely(streams: Sequence[Stream]) -> Iterator[Row]:
    """Connections that may be one communicator's: all that were made together, or a part."""
    tried: set[frozenset[int]] = set()
    made = rows(streams)
    parted = (piece for row in made for way in parts(row) for piece in way)
    together = (piece for way in used_together(streams) for piece in way)
    for row in (*made, *parted, *together):
        name = frozenset(map(id, row))
        if name not in tried:
            tried.add(name)
            yield row


def gathered_at(cuts: Sequence[Cut], units: int) -> list[int]:
    """Of every step whose units were all gathered, the index of the last gather."""
    every = [i for i, cut in enumerate(cuts) if gathers(cut)]
    return every[units - 1 :: units]


def gathers(cut: Cut) -> bool:
    """It gathers a unit of the stated trainer."""
    return cut.op.meaning == GATHERED


def steady(cuts: Sequence[Cut], ring: Ring, parted: ShardedTraining) -> bool:
    """What is gathered changes little from step to step."""
    dtypes = {part.gathered_bytes: part.dtype for part in parted.parts}
    own = [(paint(cut, ring)[0].result, dtypes[cut.op.work_bytes]) for cut in cuts if gathers(cut)]
    units = len(parted.parts)
    alike = zip(own, own[units:], strict=False)  # the last step's have none behind them
    return all(len(a) == len(b) and changes([(a, b, of)]) <= LITTLE for (a, of), (b, _) in alike)
