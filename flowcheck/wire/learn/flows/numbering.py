"""The absolute number of every send of a flow; all evidence that is there must agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from flowcheck.findings.catalog.connections import (
    GAPS_GUESSED,
    NUMBERED_BY_FLAG,
    NUMBERED_BY_GRANT,
    NUMBERED_BY_PROGRAM,
    NUMBERED_BY_PSN,
    NUMBERED_BY_SLOT,
    NUMBERS_CONTRADICTED,
)
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_parameters import NCCL_STEPS, SLOT_BYTES, Protocol
from flowcheck.wire.learn.flows.line_flags import flag_of
from flowcheck.wire.learn.flows.streams import PSN_OF_START, SendSeen, Stream

LL_SLOT_BYTES = SLOT_BYTES[Protocol.LL]
MOST_GUESSED = 16 * NCCL_STEPS
"""Sends lost in one gap, where nothing but slots and addresses tells how many."""


@dataclass(slots=True)
class Numbered:
    """Sends with numbers, and what they rest on."""

    sends: Mapping[int, SendSeen]
    numbered_by: tuple[Finding, ...]
    problems: tuple[Finding, ...]
    from_start: bool
    open_numbers: tuple[int, ...] = ()
    """Numbers behind gaps in which nothing told how many sends were lost."""


AGREE = 0.9
"""Share of sends that must answer the clear-to-send which the number says: clocks of two mirror
points may differ."""
Granted = Mapping[int, tuple[int, tuple[int, int]]]
"""{number of a send: (address it was granted, when)}; time: nanoseconds, then order of sight."""


def number_sends(sends: Sequence[SendSeen], grants: Granted, *, flags_count: bool) -> Numbered:
    """Number the sends of one flow, ascending PSN, of which there is one at least. grants: empty
    where the opposite direction was not mirrored. flags_count: a line's flag is the number of its
    send plus one; false where Simple sends, which are two steps long, come between. A send whose
    number stays open is numbered by the least that fits and the flow says so."""
    granted = {number: address for number, (address, _) in grants.items()}
    from_start = sends[0].first_psn == PSN_OF_START
    base = slot_base(sends) if flags_count else None
    known = [_flag_number(s) if flags_count else None for s in sends]
    numbers: list[int] = []
    guessed: list[int] = []
    first_told = False
    for i, send in enumerate(sends):
        if i == 0:
            number, sure = _first_number(sends, known, grants, from_start)
            first_told = sure
        else:
            gap = send.first_psn - sends[i - 1].stop_psn
            least = numbers[-1] + 1
            if gap <= 0:
                number, sure = least, True
            else:
                most = least + gap
                least += sends[i - 1].closed  # else the gap may be the end of that send
                late = _from_later(sends, known, i)
                number, sure = _choose(send, base, granted, least, most, late)
        if not sure:
            guessed.append(number)
        numbers.append(number)
    for n, send in zip(numbers, sends, strict=True):
        send.number = n
    numbered = dict(zip(numbers, sends, strict=True))
    evidence, problems = _evidence(numbered, base, granted, from_start, flags_count)
    if guessed:
        problems = (*problems, GAPS_GUESSED(len(guessed)))
    # That a guess begins at 0 tells nothing.
    begins = from_start or (first_told and not numbers[0])
    return Numbered(numbered, evidence, problems, begins, tuple(guessed))


def renumbered(
    stream: Stream, told: Mapping[int, int], left: Sequence[int], grants: Granted
) -> Stream:
    """The stream of which a program tells the numbers behind gaps. told: {number by now: the one
    that is told}; left: those told numbers that are still guessed."""
    sends = {told[n]: replace(send, number=told[n]) for n, send in stream.sends.items()}
    granted = {number: address for number, (address, _) in grants.items()}
    # Flags that count sends leave no number open.
    evidence, problems = _evidence(sends, None, granted, start=True, flags_count=False)
    if left:
        problems = (*problems, GAPS_GUESSED(len(left)))
    return stream.with_sends(
        sends,
        open_numbers=tuple(left),
        numbered_by=(*evidence, NUMBERED_BY_PROGRAM()),
        problems=problems,
    )


def _flag_number(send: SendSeen) -> int | None:
    return None if send.flag is None else send.flag - 1


def _first_number(
    sends: Sequence[SendSeen],
    known: Sequence[int | None],
    grants: Granted,
    from_start: bool,
) -> tuple[int, bool]:
    if from_start:
        return 0, True
    if known[0] is not None:
        return known[0], True
    late = _from_later(sends, known, 0)
    if late is not None and late >= 0:
        return late, True
    return first_by_grants(sends, grants)


def first_by_grants(
    sends: Sequence[SendSeen], grants: Granted, stride: int = 1
) -> tuple[int, bool]:
    """(number of the first send, it is sure) by the clear-to-send messages that it and those behind
    it, with no gap between, answer. One is answered by what comes behind it, and an address is
    granted again only once what was written there was taken: the last one before a send is its own.
    stride: they are every so-manieth send of the connection, as of one of several queue pairs."""
    of_address: dict[int, list[tuple[tuple[int, int], int]]] = {}
    for number, (address, time) in grants.items():
        of_address.setdefault(address, []).append((time, number))
    votes: Counter[int] = Counter()
    for i, send in enumerate(sends):
        if i and send.first_psn != sends[i - 1].stop_psn:
            break
        message = send.message
        before = [one for one in of_address.get(message.va or 0, ()) if one[0] <= message.time]
        if before and (number := max(before)[1] - stride * i) >= 0:
            votes[number] += 1
    if not votes:
        return 0, False
    best, count = votes.most_common(1)[0]
    return best, count >= AGREE * votes.total()


def _from_later(sends: Sequence[SendSeen], known: Sequence[int | None], start: int) -> int | None:
    """The number of send `start` by the flag of a later one with no gap between."""
    for i in range(start, len(sends)):
        if i > start and sends[i].first_psn != sends[i - 1].stop_psn:
            return None
        flag_number = known[i]
        if flag_number is not None:
            return flag_number - (i - start)
    return None


def _choose(
    send: SendSeen,
    base: int | None,
    granted: Mapping[int, int],
    least: int,
    most: int,
    flagged: int | None,
) -> tuple[int, bool]:
    """A number in [least, most] after a gap; (number, is it the only one that fits?)."""
    if flagged is not None and least <= flagged <= most:
        return flagged, True
    fits = list(range(least, min(most, least + MOST_GUESSED) + 1))
    sure = True
    if granted and send.message.va:
        # Its clear-to-send may have been lost in the same gap.
        last = max(granted)
        sure = not any(n not in granted and n < last for n in fits)
        fits = [n for n in fits if granted.get(n) == send.message.va] or fits
    slot = _slot_of(send, base)
    if slot is not None:
        fits = [n for n in fits if n % NCCL_STEPS == slot] or fits
    return fits[0], sure and len(fits) == 1


def slot_base(sends: Iterable[SendSeen]) -> int | None:
    """Address of slot 0 if the addresses of the flagged sends step by LL slots."""
    bases = Counter(
        s.message.va - ((s.flag - 1) % NCCL_STEPS) * LL_SLOT_BYTES
        for s in sends
        if s.flag is not None and s.message.va
    )
    if not bases:
        return None
    base, votes = bases.most_common(1)[0]
    return base if votes == bases.total() else None


def in_slots(numbered: Mapping[int, SendSeen], base: int | None) -> list[bool]:
    """Of each send that was written to a slot of LL: it is the slot of its number. base: address of
    slot 0; None: nothing tells it."""
    slots = ((n, _slot_of(send, base)) for n, send in numbered.items())
    return [slot == n % NCCL_STEPS for n, slot in slots if slot is not None]


def _slot_of(send: SendSeen, base: int | None) -> int | None:
    """Slot of an LL send by its address, 0 .. 7."""
    if base is None or not send.message.va:
        return None
    slot, rest = divmod(send.message.va - base, LL_SLOT_BYTES)
    return slot if rest == 0 and 0 <= slot < NCCL_STEPS else None


def _evidence(
    numbered: Mapping[int, SendSeen],
    base: int | None,
    granted: Mapping[int, int],
    start: bool,
    flags_count: bool,
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """(what bears the numbers out, what contradicts them)."""
    seen = numbered.items()
    whole = start and len(numbered) == max(numbered) + 1
    granted_there = [granted[n] == s.message.va for n, s in seen if s.message.va and n in granted]
    flagged = [flag_of(n) == s.flag for n, s in seen if s.flag is not None]
    told = (
        (NUMBERED_BY_GRANT, granted_there),
        (NUMBERED_BY_FLAG, flagged if flags_count else []),
        (NUMBERED_BY_PSN, [True] if whole and not has_gaps(list(numbered.values())) else []),
        (NUMBERED_BY_SLOT, in_slots(numbered, base)),
    )
    contradicted = (
        NUMBERS_CONTRADICTED(evidence=entry(), contradicted=one.count(False), messages=len(one))
        for entry, one in told
        if not all(one)
    )
    return tuple(entry() for entry, one in told if one and all(one)), tuple(contradicted)


def has_gaps(sends: Sequence[SendSeen]) -> bool:
    """Packets are missing between them. sends: ascending PSN."""
    return any(two.first_psn != one.stop_psn for one, two in pairwise(sends))
