"""Queue pairs of one connection that take whole sends by turns (NCCL src/transport/net_ib,
ncclIbMultiSend: send m goes on queue pair m mod their count): whose turn comes first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations

from flowcheck.wire.collectives.nccl_parameters import NCCL_STEPS, SLOT_BYTES, Protocol
from flowcheck.wire.learn.flows.numbering import Granted, first_by_grants
from flowcheck.wire.learn.flows.pieces import Row
from flowcheck.wire.learn.flows.streams import SendSeen

MOST_PERMUTED = 4
"""Queue pairs of which every order is tried; of more, those that begin with another one."""


@dataclass(frozen=True, slots=True)
class Turns:
    """The rows in the order of turns."""

    order: tuple[int, ...]
    """[turn] place of the row among those given."""
    rows: tuple[Row, ...]
    """[turn] its sends, from the first one on before which no other row lacks one."""


def turns_of(rows: Sequence[Row], granted: Granted, *, from_start: bool) -> Turns | None:
    """By the number of each row's first send where the connection was joined amid its life, else
    the order that most evidence bears out; None where neither tells: queue pairs overtake each
    other, so that time does not tell whose turn came first."""
    if not from_start:
        firsts = [_first_number(row, granted, len(rows)) for row in rows]
        told = _by_numbers(rows, firsts)
        if told is not None:
            return told
    places = sorted(range(len(rows)), key=lambda i: rows[i][0].message.time)
    ways = permutations(places) if len(rows) <= MOST_PERMUTED else _rotations(places)
    scored: list[tuple[int, tuple[int, ...]]] = []
    for way in ways:
        lengths = [len(rows[i]) for i in way]
        # Who had its turn earlier has as many, or one more; the mirror may end anywhere.
        if lengths == sorted(lengths, reverse=True) and lengths[0] - lengths[-1] <= 1:
            order = dealt([rows[i] for i in way])
            scored.append((_borne_out(order, granted, from_start=from_start), way))
    scored.sort(key=lambda pair: -pair[0])
    if not scored or not scored[0][0] or (len(scored) > 1 and scored[0][0] == scored[1][0]):
        return None
    way = scored[0][1]
    order = dealt([rows[i] for i in way])
    if not from_start and _flags_count(order) < len(order):
        return None
    return Turns(way, tuple(rows[i] for i in way))


def dealt(way: Sequence[Row]) -> list[SendSeen]:
    """One of each row after another."""
    return [way[n % len(way)][n // len(way)] for n in range(sum(map(len, way)))]


def _by_numbers(rows: Sequence[Row], firsts: Sequence[int | None]) -> Turns | None:
    """By the numbers of the first sends: every row has a turn of its own, and from the last of them
    on each sends as many, or one more."""
    known = [first for first in firsts if first is not None]
    count = len(rows)
    if len(known) < count or len({first % count for first in known}) < count:
        return None
    latest = max(known) - count + 1
    skipped = [max(0, -(-(latest - first) // count)) for first in known]
    begins = [first + count * skip for first, skip in zip(known, skipped, strict=True)]
    order = tuple(sorted(range(count), key=lambda i: begins[i]))
    left = [rows[i][skipped[i] :] for i in order]
    most = min(len(row) for row in left)
    ends = [len(row) == most for row in left]
    # Behind the first row that ends, the others' last sends follow what was not seen.
    until = [most + (0 if any(ends[: n + 1]) else 1) for n in range(count)]
    cut = tuple(row[:stop] for row, stop in zip(left, until, strict=True))
    return Turns(order, cut) if all(cut) else None


def _first_number(row: Row, granted: Granted, count: int) -> int | None:
    """Of a queue pair's first send: by the flags of all its sends, if they count sends, else by the
    clear-to-send messages they answer."""
    flags = {s.flag - 1 - count * n for n, s in enumerate(row) if s.flag is not None}
    if len(flags) == 1:
        return flags.pop()
    number, sure = first_by_grants(row, granted, stride=count)
    return number if sure else None


def _rotations(places: Sequence[int]) -> Iterator[tuple[int, ...]]:
    yield from ((*places[k:], *places[:k]) for k in range(len(places)))


def _borne_out(order: Sequence[SendSeen], granted: Granted, *, from_start: bool) -> int:
    """How many sends stand where clear-to-send messages, flags or the walk through slots say."""
    told = _flags_count(order)
    if from_start:
        for n, send in enumerate(order):
            told += n in granted and granted[n][0] == send.message.va
    for one, two in pairwise(order):
        slot = SLOT_BYTES[one.protocol or Protocol.SIMPLE]
        if one.message.rkey == two.message.rkey and one.message.va and two.message.va:
            steps, rest = divmod(two.message.va - one.message.va, slot)
            told += not rest and steps % NCCL_STEPS in (1, 2)
    return told


def _flags_count(order: Sequence[SendSeen]) -> int:
    """Sends whose flag is the one of the first plus how far behind it they are."""
    first = order[0].flag
    return sum(first is not None and s.flag == first + n for n, s in enumerate(order))
