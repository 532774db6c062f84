"""Mirrors of Linux tc: a filter for each source and direction, ours by the cookie of its action."""

from __future__ import annotations

from collections.abc import Callable

from flowcheck.errors import StateError
from flowcheck.ops.switch.apply import tc_state, tc_steps
from flowcheck.ops.switch.apply.bring import Step
from flowcheck.ops.switch.apply.commands import run
from flowcheck.ops.switch.apply.made import Made
from flowcheck.ops.switch.apply.tc_state import Filter, State
from flowcheck.ops.switch.apply.tc_steps import Copy, copy_of

USUAL_PREF = 1000
"""Ours, where nobody has a lower one. Room is left below: the kernel gives filters added without a
pref the number below the lowest (net/sched/cls_api.c, tcf_auto_prio)."""

Goal = frozenset[Copy]


class Tc:
    """The mirrors of one session name in this network namespace."""

    def __init__(self, name: str, form: str, made: Made, *, keep_hooks: bool = False) -> None:
        self._cookie, self._made = name.encode().hex(), made
        self.form = form
        self._keep_hooks = keep_hooks

    def observe(self) -> State:
        return tc_state.read()

    def own(self, state: State) -> Goal:
        return frozenset(copy_of(one) for one in self.filters(state) if one.copies_to)

    def filters(self, state: State) -> list[Filter]:
        """Those with our cookie."""
        return [one for one in state.filters if self._ours(one)]

    def steps(self, state: State, goal: Goal) -> list[Step]:
        """Away with what is ours and not asked; then the hooks and filters that are missing."""
        asked = {copy.place: copy for copy in goal}
        kept: set[Copy] = set()
        away = []
        for one in self.filters(state):
            copy = asked.get(copy_of(one).place) if one.copies_to else None
            if copy and copy not in kept and self._sound(state, one, copy.form):
                kept.add(copy)
            else:
                away.append(one)
        steps = [tc_steps.less(one, self._noted(state, one)) for one in away]
        steps += self._tables(state, away)
        more = sorted(goal - kept)
        for device in sorted({copy.device for copy in more}):
            if device not in state.hooks:
                steps.append(self._hook(state, device))
        taken: set[tuple[str, int]] = set()
        steps += [self._more(state, copy, taken, away) for copy in more]
        return steps + self._hooks_away(state, goal, away)

    def possible(self, state: State, goal: Goal) -> Goal:
        return frozenset(
            copy for copy in goal if copy.device in state.links and copy.monitor in state.links
        )

    def run(self, step: Step, *, back: bool) -> None:
        try:
            run(step.command)
        except StateError:
            if not tc_steps.taken_with_it(step):
                raise

    def confirm(self, goal: Goal) -> None:
        """What tc shows is what the kernel does."""

    def settle(self, state: State) -> None:
        self._made.keep(state, {one.device for one in self.filters(state)})

    def pref(
        self,
        state: State,
        device: str,
        way: str,
        ignored: list[Filter],
        taken: set[tuple[str, int]] | frozenset[tuple[str, int]] = frozenset(),
    ) -> int | None:
        """A free one below all that would take frames from us; None where there is none.

        Free on both hooks: u32 shows the tables of one in the other where the pref is the same.
        """
        others = [one for one in state.filters if one.device == device and one not in ignored]
        before = [
            one.pref
            for one in others
            if one.way == way and one.handle and one.chain == 0 and not one.passes_on()
        ]
        used = {one.pref for one in others} | {pref for name, pref in taken if name == device}
        top = min([*before, USUAL_PREF + 1]) - 1
        return next((pref for pref in range(top, 0, -1) if pref not in used), None)

    def _ours(self, one: Filter) -> bool:
        return self._cookie in one.cookies

    def _sound(self, state: State, one: Filter, form: str) -> bool:
        """As we would make it, and frames reach it: nobody's filter before it decides on them."""
        alone = one.cookies == (self._cookie,) and len(one.controls) == len(one.copies_to) == 1
        hooks = {
            other.way
            for other in state.filters
            if (other.device, other.pref, other.handle) == (one.device, one.pref, one.handle)
        }
        hidden = any(
            other.pref < one.pref and not other.passes_on() and not self._ours(other)
            for other in state.on(one.device, one.way)
            if other.chain == 0
        )
        return (
            alone
            and one.passes_on()
            and one.matches_all
            and not hidden
            and form in ("", copy_of(one).form)
            and (one.kind != "u32" or len(hooks) == 1)
        )

    def _tables(self, state: State, away: list[Filter]) -> list[Step]:
        """Of the filters that go, and of those a killed run took away."""
        gone = [one for one in away if one.kind == "u32"]
        gone += [
            one
            for one in state.filters
            if one.kind == "u32" and self._made.table(state, one) and _bare(state.filters, one)
        ]
        places = {(one.device, one.way, one.protocol, one.pref) for one in gone}
        return [tc_steps.no_table(*place) for place in sorted(places)]

    def _more(
        self, state: State, copy: Copy, taken: set[tuple[str, int]], away: list[Filter]
    ) -> Step:
        pref = self.pref(state, copy.device, copy.way, away, taken)
        if pref is None:
            raise StateError(f"{copy.device} {copy.way}: no pref is left for ours")
        taken.add((copy.device, pref))
        form = copy.form or ("matchall" if tc_state.has_classifier("matchall") else "u32")
        return tc_steps.more(copy, pref, form, self._cookie)

    def _hook(self, state: State, device: str) -> Step:
        def noted() -> bool:
            self._made.hook(state.links[device])
            return True

        return tc_steps.hook(device, noted)

    def _hooks_away(self, state: State, goal: Goal, away: list[Filter]) -> list[Step]:
        """Only where we made it and nothing of anybody hangs on it."""
        steps = []
        for device, hook in sorted(state.hooks.items()):
            link = state.links.get(device)
            if self._keep_hooks or hook.kind != "clsact" or hook.chains or link is None:
                continue
            used = any(copy.device == device for copy in goal) or any(
                one.device == device and one not in away and not self._emptied(state, one, away)
                for one in state.filters
            )
            if self._made.has_hook(link) and not used:
                steps.append(tc_steps.no_hook(device))
        return steps

    def _emptied(self, state: State, one: Filter, away: list[Filter]) -> bool:
        """A table that is empty when our filters are gone."""
        gone = {(other.way, other.pref) for other in away if other.device == one.device}
        return one.handle is None and ((one.way, one.pref) in gone or self._made.table(state, one))

    def _noted(self, state: State, one: Filter) -> Callable[[], bool]:
        """The table u32 may leave is on disk as ours before its filter goes."""

        def noted() -> bool:
            if one.kind == "u32":
                self._made.note_table(state.links[one.device], one.way, one.pref)
            return self._still_ours(one)

        return noted

    def _still_ours(self, one: Filter) -> bool:
        for now in tc_state.read_hook(one.device, one.way):
            if (now.pref, now.handle) == (one.pref, one.handle):
                if not self._ours(now):
                    raise StateError(
                        f"{one.device} {one.way} pref {one.pref}: it was ours a moment ago and has "
                        "another cookie now; left as it is"
                    )
                return True
        return False


def _bare(filters: list[Filter], table: Filter) -> bool:
    return not any(
        other.handle
        for other in filters
        if (other.device, other.way, other.pref) == (table.device, table.way, table.pref)
    )
