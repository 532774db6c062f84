"""Where an iteration of sharded training begins, and which of its gathers are of one unit.

A unit is what is gathered at once: torch's FSDP gathers it for the forward and mostly again for the
backward, unchanged; after the optimizer's step it holds something else. So content tells where a
step ends, and the order of collectives, which every iteration repeats, bears it out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, Protocol

Coarse = tuple[str, int, Protocol]
BLOCKS = "blocks"
WINDOWS = 2
"""Whole iterations alike, before they are believed to repeat."""


@dataclass(frozen=True, slots=True)
class Token:
    """One collective, as far as iterations are compared."""

    kind: CollectiveKind
    work_bytes: int
    protocol: Protocol
    gathers: bool
    """It is told to gather parameters."""
    mark: bytes
    """Of what a gather holds; empty where it was not seen whole."""

    @property
    def coarse(self) -> Coarse:
        """What sizes alone tell: a reduce-scatter has those of a gather."""
        blocks = self.kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
        return (BLOCKS if blocks else str(self.kind), self.work_bytes, self.protocol)


@dataclass(frozen=True, slots=True)
class Period:
    """Iterations of `length` collectives, the first one at `start`."""

    start: int
    length: int
    windows: int
    """Whole ones that were seen, one behind the other."""
    units: tuple[tuple[int, ...], ...]
    """[unit] places within an iteration where it is gathered, in the order of the first ones."""
    by_order: tuple[int, ...] = ()
    """Units that only their order tells from their gradient."""

    def at(self, window: int) -> range:
        """Indices of its collectives."""
        first = self.start + window * self.length
        return range(first, first + self.length)


def period_of(tokens: Sequence[Token]) -> Period | None:
    """The iteration that repeats longest, the shortest of those that do equally long; None where
    none does, or where no parameter ever changes."""
    links = _links(tokens)
    found: list[tuple[int, int, int]] = []
    for length in range(1, len(tokens) // WINDOWS + 1):
        start, stop = _alike(tokens, links, length)
        own = range(start, start + length)
        changes = any(tokens[i].gathers and links[i] == 0 for i in own)
        if changes and _long(tokens, start, stop, length):
            found.append((start - stop, length, start))
    for span, length, start in sorted(found):
        begin = _begin(tokens, links, start, length)
        if begin is None or begin + length > start - span:
            continue
        if (period := _period(tokens, links, begin, length)) is not None:
            return period
    return None


def _long(tokens: Sequence[Token], start: int, stop: int, length: int) -> bool:
    """Often enough, and through half of the stream or with gradients: the layers of one forward are
    alike as well."""
    whole = any(not token.gathers for token in tokens[start : start + length])
    return stop - start >= WINDOWS * length and (whole or 2 * (stop - start) >= len(tokens))


def _links(tokens: Sequence[Token]) -> list[int | None]:
    """How far back the last gather with the same content lies; 0: there is none; None: it was not
    seen whole, or is no gather."""
    last: dict[tuple[int, bytes], int] = {}
    found: list[int | None] = []
    for i, token in enumerate(tokens):
        if not token.gathers or not token.mark:
            found.append(None)
            continue
        name = token.work_bytes, token.mark
        found.append(i - last[name] if name in last else 0)
        last[name] = i
    return found


def _alike(tokens: Sequence[Token], links: Sequence[int | None], length: int) -> tuple[int, int]:
    """The longest stretch in which every collective is as the one `length` before it."""
    best, begin = (0, 0), 0
    for i in range(len(tokens) - length + 1):
        j = i + length
        if j < len(tokens) and _same(tokens[i], tokens[j], links[i], links[j]):
            continue
        if i > begin and i + length - begin > best[1] - best[0]:
            best = (begin, i + length)
        begin = i + 1
    return best


def _same(one: Token, other: Token, link: int | None, other_link: int | None) -> bool:
    if one.coarse != other.coarse or one.gathers != other.gathers:
        return False
    return link is None or other_link is None or link == other_link


def _begin(
    tokens: Sequence[Token], links: Sequence[int | None], start: int, length: int
) -> int | None:
    """Where an iteration begins: no gather in it repeats what lies before it, but for parameters
    that never change."""
    frozen = {
        i
        for i in range(start, start + 2 * length)
        if _is_frozen(links, i, length) and _is_frozen(links, i + length, length)
    }
    fits = []
    for begin in range(start, start + length):
        own = range(begin, min(begin + length, len(tokens)))
        within = ((links[i] or 0) <= i - begin or i in frozen for i in own if tokens[i].gathers)
        if tokens[begin].gathers and all(within):
            fits.append(begin)
    after = (b for b in fits if b == 0 or not tokens[b - 1].gathers)
    return next(after, fits[0] if fits else None)


def _is_frozen(links: Sequence[int | None], i: int, length: int) -> bool:
    """Its content is that of an iteration before."""
    at = i
    while at >= 0 and at > i - length:
        link = links[at] if at < len(links) else None
        if not link:
            return False
        at -= link
    return True


def _period(
    tokens: Sequence[Token], links: Sequence[int | None], begin: int, length: int
) -> Period | None:
    """The units of an iteration in which each was seen, and where the first one lies."""
    roots: dict[int, list[int]] = {}
    whole = _seen_whole(tokens, begin, length)
    for i in range(whole, whole + length):
        if not tokens[i].gathers:
            continue
        root = i
        while (link := links[root]) and root - link >= whole:
            root -= link
        roots.setdefault(root, []).append(i)
    units = [[i - whole for i in places] for places in roots.values()]
    resolved = _once_only(tokens, begin, length, units)
    if resolved is None:
        return None
    begin, found = resolved
    once = tuple(n for n, unit in enumerate(found) if not tokens[begin + unit[0]].gathers)
    sizes = [token.coarse for token in tokens]
    one, windows = sizes[begin : begin + length], 1
    while begin >= length and sizes[begin - length : begin] == one:
        begin -= length
    while sizes[(at := begin + windows * length) : at + length] == one:
        windows += 1
    return Period(
        start=begin,
        length=length,
        windows=windows,
        units=tuple(map(tuple, found)),
        by_order=once,
    )


def _seen_whole(tokens: Sequence[Token], begin: int, length: int) -> int:
    """The first iteration of which every gather was seen whole; else the first one."""
    for start in range(begin, len(tokens) - length + 1, length):
        if all(t.mark for t in tokens[start : start + length] if t.gathers):
            return start
    return begin


def _once_only(
    tokens: Sequence[Token], begin: int, length: int, units: list[list[int]]
) -> tuple[int, list[list[int]]] | None:
    """(begin, units) with what is gathered once an iteration by two ranks: such a unit (the root of
    torch's FSDP) has the size of its own gradient, and only order tells the two: an iteration
    gathers every unit before it gathers one again or scatters a gradient, and a gradient comes
    after the last gather of its unit. None where that tells nothing, or two ways."""
    own = tokens[begin : begin + length]
    scattered = Counter(t.coarse for t in own if t.coarse[0] == BLOCKS and not t.gathers)
    gathered = Counter(own[unit[0]].coarse for unit in units)
    missing = {s: max(0, (count - gathered[s]) // 2) for s, count in scattered.items()}
    ways = []
    for shift in range(min(begin, sum(missing.values())) + 1):
        first = begin - shift
        left, found = Counter(missing), [[place + shift for place in unit] for unit in units]
        for i in range(length):
            token = tokens[first + i]
            if not token.gathers and left[token.coarse]:
                left[token.coarse] -= 1
                found.append([i])
        found.sort()
        if _in_order(tokens[first : first + length], found):
            ways.append((first, found))
    return ways[0] if len(ways) == 1 else None


def _in_order(own: Sequence[Token], units: Sequence[Sequence[int]]) -> bool:
    """Units and gradients come as a forward and its backward bring them."""
    firsts = [unit[0] for unit in units]
    taken = {place for unit in units for place in unit}
    if set(firsts) != set(sorted(taken)[: len(firsts)]):
        return False
    left: Counter[Coarse] = Counter()
    lasts = {unit[-1] for unit in units}
    for i in range(len(own) - 1, -1, -1):
        if i not in taken and own[i].coarse[0] == BLOCKS:
            if any(first > i for first in firsts):
                return False
            left[own[i].coarse] += 1
        elif i in lasts:
            left[own[i].coarse] -= 1
            if left[own[i].coarse] < 0:
                return False
    return True
