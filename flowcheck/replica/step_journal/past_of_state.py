"""Where the entries of a journal lead from a state: each on from the state that the one before led
to, until nothing is kept, or a trainer's checkpoint ended that past."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from flowcheck.findings.catalog.step_journals import (
    JOURNAL_BROKEN,
    JOURNAL_GAP,
    JOURNAL_GIVEN_UP,
    JOURNAL_NO_MORE,
    JOURNAL_NONE_SINCE,
    JOURNAL_OTHER_STATE,
    JOURNAL_TAINTED_BEHIND_GAP,
    JOURNAL_TAINTED_LATE,
)
from flowcheck.findings.finding import Finding
from flowcheck.replica.element_ranges import count_elements
from flowcheck.replica.state_digest import StateId
from flowcheck.replica.step_journal.journal_records import ChangeKind, Gap, JournalLine
from flowcheck.step_numbers import Step


class Replaced(NamedTuple):
    """A trainer's checkpoint took the place of a state."""

    at: Step
    """Of the state; of the last one that is kept before it, where it is not."""
    step: Step
    """Of the checkpoint."""
    gives_up: bool
    """Whether what the replica had was wrong, or may have been (JournalLine)."""
    state: StateId | None = None
    """None: not kept."""


class _Edges:
    """What leads on from each state: of two, the later one, as the replica went on by it."""

    def __init__(self, lines: Sequence[JournalLine], gap: Gap | None) -> None:
        """gap: behind them all."""
        self.onward: dict[StateId, JournalLine] = {}
        self.replaced: dict[StateId, Replaced] = {}
        self.gaps: dict[StateId, JournalLine | None] = {}
        """{state: the first entry behind those that are not kept from there on; None: none is}"""
        self.in_place: dict[StateId, list[JournalLine]] = {}
        """{state: entries that leave it as it is: of values that it had already, whose elements
        they end the taint of, or of taint that was found there}"""
        for line in lines:
            if line.gap is not None:
                self._break(line.gap, line)
            if line.before != line.behind:
                self._forget(line.before)
                self._lead_on(line)
            elif line.kind in (ChangeKind.VALUES, ChangeKind.TAINT):
                self.in_place.setdefault(line.before, []).append(line)
        if gap is not None:
            self._break(gap, None)

    def _lead_on(self, line: JournalLine) -> None:
        if line.kind is not ChangeKind.STATE:
            self.onward[line.before] = line
            return
        at = line.before[0]
        self.replaced[line.before] = Replaced(at, line.step, line.gives_up, line.behind)

    def _break(self, gap: Gap, line: JournalLine | None) -> None:
        self._forget(gap.after)
        self.gaps[gap.after] = line
        if gap.base is not None:
            self.replaced[gap.after] = Replaced(gap.after[0], gap.base, True)

    def _forget(self, state: StateId) -> None:
        for known in (self.onward, self.replaced, self.gaps):
            known.pop(state, None)


@dataclass(frozen=True, slots=True)
class Past:
    """What followed a state."""

    chain: tuple[JournalLine, ...]
    """The entries, each of which leads on from the one before."""
    last: StateId
    """The state that they lead to."""
    replaced: Replaced | None
    """What took the place of the last one; None: nothing did."""
    why_it_ends: Finding
    """There."""
    tainted_since: Step | None = None
    """The first step since which elements turned out to be tainted by a change that is not kept, or
    that lies behind what is kept. None: none did."""
    unreached: tuple[Step, ...] = ()
    """Steps behind the last one that are kept, and to which nothing leads."""

    @classmethod
    def behind(cls, state: StateId, lines: Sequence[JournalLine], gap: Gap | None) -> Past:
        """lines: of a journal, oldest first; gap: behind them."""
        edges, chain, start, seen = _Edges(lines, gap), list[JournalLine](), state, {state}
        while True:
            chain += edges.in_place.pop(state, [])
            more = edges.onward.get(state)
            # What comes back to a state that it had leads round in no circle.
            if more is None or more.behind in seen:
                break
            chain.append(more)
            state = more.behind
            seen.add(state)
        replaced = edges.replaced.get(state)
        if replaced is not None and replaced.state in seen:
            replaced = None
        unreached = _behind_break(state, chain, lines)
        why = JOURNAL_NO_MORE()
        if unreached:
            why = JOURNAL_BROKEN(last=state[0], step=unreached[0])
        if replaced is not None:
            why = JOURNAL_OTHER_STATE(to=replaced.step)
        elif state in edges.gaps:
            line = edges.gaps[state]
            why = JOURNAL_NONE_SINCE() if line is None else JOURNAL_GAP(step=line.step)
        since = _tainted_since(start, chain, lines, gap)
        return cls(tuple(chain), state, replaced, why, since, unreached)

    def doubt_of_first(self, step: Step) -> Finding | None:
        """As of `doubt_of`, of the state that the past begins with: its step, which may have turned
        out to be tainted behind it."""
        for line in self.chain:
            if line.kind is ChangeKind.TAINT and line.since <= step:
                told = {"since": line.since, "to": line.step, "step": step}
                return JOURNAL_TAINTED_LATE(elements=count_elements(line.lacked), **told)
        return self.doubt_of(step)

    def doubt_of(self, step: Step) -> Finding | None:
        """Why a step of it is not proved to be the trainer's; None: nothing says so. The trainer's
        checkpoint shows that the replica was wrong at its step, and not since when."""
        if self.tainted_since is not None and self.tainted_since <= step:
            return JOURNAL_TAINTED_BEHIND_GAP(step=step, since=self.tainted_since)
        if self.replaced is None or not self.replaced.gives_up:
            return None
        return JOURNAL_GIVEN_UP(step=step, at=self.replaced.at, to=self.replaced.step)


def _behind_break(
    last: StateId, chain: Sequence[JournalLine], lines: Sequence[JournalLine]
) -> tuple[Step, ...]:
    """Steps behind the last state of a chain that were written later than what led to it; as far
    as that was kept, what was written earlier is of a past that the job gave up."""
    own = {id(line) for line in chain}
    numbered = list(enumerate(lines, 1))
    first = max((n for n, one in numbered if id(one) in own or one.behind == last), default=0)
    gaps = (n for n, one in numbered if one.gap is not None and one.gap.after == last)
    first = max(first, max(gaps, default=1) - 1)
    return tuple(sorted({line.step for line in lines[first:] if line.step > last[0]}))


def _tainted_since(
    start: StateId, chain: Sequence[JournalLine], lines: Sequence[JournalLine], gap: Gap | None
) -> Step | None:
    """As of `Past`, which begins at that state with a chain of these lines. gap: behind them
    all."""
    own = {id(line) for line in chain}
    last = chain[-1].behind if chain else start
    numbered = list(enumerate(lines, 1))
    first = max((n for n, one in numbered if id(one) in own or one.behind == start), default=0)
    ends = (n for n, one in numbered if one.kind is ChangeKind.STATE and one.before == last)
    stop = next((n for n in ends if n > first), None)
    behind = [line for line in lines[first:stop] if id(line) not in own]
    gaps = [line.gap for line in (*chain, *behind)] + [gap] * (stop is None)
    found = [one.tainted_since for one in gaps if one is not None]
    found += [Step(line.since) for line in behind if line.kind is ChangeKind.TAINT]
    return min((since for since in found if since is not None), default=None)
