"""Mirrors of Linux tc: validates the wanted filters against the machine, and adds and deletes
ours."""

from __future__ import annotations

import re
from collections.abc import Callable
from threading import Event

from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog.refused_tc_mirrors import (
    FILTER_OF_OTHERS,
    FILTER_OF_SESSION,
    HIDDEN_BY_FILTER,
    INGRESS_QDISC,
    MONITOR_DOWN,
    MONITOR_HAS_ADDRESS,
    MONITOR_HAS_MASTER,
    MONITOR_IN_USE,
    MONITOR_MTU_TOO_SMALL,
    NO_SUCH_DEVICE,
    NO_TUNNEL_IN_TC,
    SHARED_BLOCK,
    TC_COPIED_ALREADY,
    TC_MONITOR_TAKEN,
    TC_MONITOR_WATCHED,
    TC_SOURCE_GETS_COPIES,
)
from flowcheck.findings.catalog.switch_changes import (
    COOKIE_CHANGED,
    MONITOR_CARRIES_FRAMES,
    MONITOR_FILTERED,
    MONITOR_QDISC,
    NO_PREF_LEFT,
    SOURCE_DOWN,
)
from flowcheck.findings.finding import Finding
from flowcheck.ops.switch.apply import tc_commands, tc_state
from flowcheck.ops.switch.apply.command_runner import run_switch_command
from flowcheck.ops.switch.apply.reconciler import CommandStep
from flowcheck.ops.switch.apply.tc_commands import MirrorFilter, mirror_filter_of
from flowcheck.ops.switch.apply.tc_state import NetDevice, TcFilter, TcJournal, TcState
from flowcheck.ops.switch.mirror_session import MirrorDirection, MirrorSession, MirrorSource
from flowcheck.ops.switch.mirror_session_options import SESSION_NAME_PATTERN

USUAL_PREF = 1000
"""Preference (priority) of FlowCheck's filters, unless another filter has a lower one. Smaller
numbers stay free: the kernel gives a filter without a pref the number below the lowest
(net/sched/cls_api.c, tcf_auto_prio)."""

Goal = frozenset[MirrorFilter]


class TcMirrors:
    """The mirror filters of one session name in this network namespace (a `MirrorBackend`). A goal
    is a set of `MirrorFilter`."""

    def __init__(self, name: str, form: str, made: TcJournal, *, keep_hooks: bool = False) -> None:
        self._cookie, self._made = name.encode().hex(), made
        self.form = form
        self._keep_hooks = keep_hooks

    def observe(self) -> TcState:
        """The devices, qdiscs and filters now. Raises StateError where tc or ip fails."""
        return tc_state.read()

    def own_goal(self, state: TcState) -> Goal:
        """This session's filters that copy frames."""
        return frozenset(mirror_filter_of(one) for one in self.filters(state) if one.copies_to)

    def filters(self, state: TcState) -> list[TcFilter]:
        """All filters with this session's cookie."""
        return [one for one in state.filters if self._ours(one)]

    def steps(self, state: TcState, goal: Goal) -> list[CommandStep]:
        """The commands from `state` to `goal`: first delete filters that are not wanted, then add
        missing qdiscs and filters, then delete qdiscs that are no longer used. Raises StateError
        where no preference is free."""
        asked = {copy.place: copy for copy in goal}
        kept: set[MirrorFilter] = set()
        away = []
        for one in self.filters(state):
            copy = asked.get(mirror_filter_of(one).place) if one.copies_to else None
            if copy and copy not in kept and self._sound(state, one, copy.form):
                kept.add(copy)
            else:
                away.append(one)
        steps = [tc_commands.delete_filter(one, self._noted(state, one)) for one in away]
        steps += self._tables(state, away)
        more = sorted(goal - kept)
        for device in sorted({copy.device for copy in more}):
            if device not in state.hooks:
                steps.append(self._hook(state, device))
        taken: set[tuple[str, int]] = set()
        steps += [self._more(state, copy, taken, away) for copy in more]
        return steps + self._hooks_away(state, goal, away)

    def possible_part(self, state: TcState, goal: Goal) -> Goal:
        """`goal` without copies whose device or monitor no longer exists."""
        return frozenset(
            copy for copy in goal if copy.device in state.links and copy.monitor in state.links
        )

    def run(self, step: CommandStep, *, back: bool) -> None:
        """Runs a command. A delete that fails because the device is gone counts as done. Raises
        StateError for other failures. back: not used here."""
        try:
            run_switch_command(step.command)
        except StateError:
            if not tc_commands.gone_with_device(step):
                raise

    def confirm_mirroring(self, goal: Goal) -> None:
        """Nothing to check: what tc shows is what the kernel does."""

    def clean_up_notes(self, state: TcState) -> None:
        """Removes entries of the journal for devices and qdiscs that no longer exist."""
        self._made.keep(state, {one.device for one in self.filters(state)})

    def pref(
        self,
        state: TcState,
        device: str,
        way: str,
        ignored: list[TcFilter],
        taken: set[tuple[str, int]] | frozenset[tuple[str, int]] = frozenset(),
    ) -> int | None:
        """The highest free preference up to USUAL_PREF at which no earlier filter can consume the
        frames; None: there is none.

        way: "ingress" or "egress".
        ignored: filters that will be deleted.
        taken: (device, pref) of filters that will be added.
        The number must be free for both directions: u32 shows the tables of one direction in the
        other where their prefs are equal.
        """
        others = [one for one in state.filters if one.device == device and one not in ignored]
        before = [
            one.pref
            for one in others
            if one.way == way and one.handle and one.chain == 0 and not one.continues()
        ]
        used = {one.pref for one in others} | {pref for name, pref in taken if name == device}
        top = min([*before, USUAL_PREF + 1]) - 1
        return next((pref for pref in range(top, 0, -1) if pref not in used), None)

    def _ours(self, one: TcFilter) -> bool:
        return self._cookie in one.cookies

    def _sound(self, state: TcState, one: TcFilter, form: str) -> bool:
        """As we would make it, and frames reach it: nobody's filter before it decides on them."""
        alone = one.cookies == (self._cookie,) and len(one.controls) == len(one.copies_to) == 1
        hooks = {
            other.way
            for other in state.filters
            if (other.device, other.pref, other.handle) == (one.device, one.pref, one.handle)
        }
        hidden = any(
            other.pref < one.pref and not other.continues() and not self._ours(other)
            for other in state.filters_on(one.device, one.way)
            if other.chain == 0
        )
        return (
            alone
            and one.continues()
            and one.matches_all
            and not hidden
            and form in ("", mirror_filter_of(one).form)
            and (one.kind != "u32" or len(hooks) == 1)
        )

    def _tables(self, state: TcState, away: list[TcFilter]) -> list[CommandStep]:
        """Of the filters that go, and of those a killed run took away."""
        gone = [one for one in away if one.kind == "u32"]
        gone += [
            one
            for one in state.filters
            if one.kind == "u32" and self._made.table(state, one) and _bare(state.filters, one)
        ]
        places = {(one.device, one.way, one.protocol, one.pref) for one in gone}
        return [tc_commands.delete_table(*place) for place in sorted(places)]

    def _more(
        self, state: TcState, copy: MirrorFilter, taken: set[tuple[str, int]], away: list[TcFilter]
    ) -> CommandStep:
        pref = self.pref(state, copy.device, copy.way, away, taken)
        if pref is None:
            raise StateError(NO_PREF_LEFT(device=copy.device, way=copy.way))
        taken.add((copy.device, pref))
        form = copy.form or ("matchall" if tc_state.has_classifier("matchall") else "u32")
        return tc_commands.add_filter(copy, pref, form, self._cookie)

    def _hook(self, state: TcState, device: str) -> CommandStep:
        def noted() -> bool:
            self._made.hook(state.links[device])
            return True

        return tc_commands.add_clsact(device, noted)

    def _hooks_away(self, state: TcState, goal: Goal, away: list[TcFilter]) -> list[CommandStep]:
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
                steps.append(tc_commands.delete_clsact(device))
        return steps

    def _emptied(self, state: TcState, one: TcFilter, away: list[TcFilter]) -> bool:
        """A table that is empty when our filters are gone."""
        gone = {(other.way, other.pref) for other in away if other.device == one.device}
        return one.handle is None and ((one.way, one.pref) in gone or self._made.table(state, one))

    def _noted(self, state: TcState, one: TcFilter) -> Callable[[], bool]:
        """The table u32 may leave is on disk as ours before its filter goes."""

        def noted() -> bool:
            if one.kind == "u32":
                self._made.note_table(state.links[one.device], one.way, one.pref)
            return self._still_ours(one)

        return noted

    def _still_ours(self, one: TcFilter) -> bool:
        for now in tc_state.read_hook(one.device, one.way):
            if (now.pref, now.handle) == (one.pref, one.handle):
                if not self._ours(now):
                    raise StateError(COOKIE_CHANGED(device=one.device, way=one.way, pref=one.pref))
                return True
        return False


def _bare(filters: list[TcFilter], table: TcFilter) -> bool:
    return not any(
        other.handle
        for other in filters
        if (other.device, other.way, other.pref) == (table.device, table.way, table.pref)
    )


WAY = {MirrorDirection.RX: "ingress", MirrorDirection.TX: "egress"}
LOSSLESS_QDISCS = ("noqueue", "mq", "fq_codel", "fq", "pfifo_fast", "pfifo", "multiq")
"""Root qdiscs that do not drop frames while the device keeps up."""
LOOK_S = 0.5
"""Seconds in which frames of the monitor port are counted. A choice: a longer time delays `apply`,
a shorter one may miss traffic."""
MOST_FRAMES = 4
"""Frames per direction in LOOK_S above which the monitor port counts as in use. A choice: a host's
own frames on a device that has come up (IPv6 neighbour discovery and multicast reports, LLDP,
spanning tree) stay below."""


def tc_goal(
    tc: TcMirrors, session: MirrorSession, state: TcState, warn: Callable[[Finding], None]
) -> Goal:
    """The copies that `session` describes, checked against this machine.

    warn: called with each finding that the user should know but that does not prevent the session.

    Raises ConfigError with the reason where tc cannot hold the session.
    """
    if session.tunnel is not None or session.monitor is None:
        raise ConfigError("--erspan", str(session.tunnel), NO_TUNNEL_IN_TC())
    monitor = _present(state, "--monitor", session.monitor)
    _monitor(state, monitor, warn)
    _loops(tc, state, session)
    wanted: list[MirrorFilter] = []
    for source in session.sources:
        link = _present(state, "--source", source.port)
        _sizes(link, monitor)
        if not link.up:
            warn(SOURCE_DOWN(link.name))
        for way in source.direction.ways():
            _hook(state, source, way)
            copy = MirrorFilter(device=link.name, way=WAY[way], monitor=monitor.name, form=tc.form)
            _others(tc, state, copy)
            wanted.append(copy)
    if not _taken(tc, state, monitor):
        _talking(monitor, warn)
    return frozenset(wanted)


def _present(state: TcState, option: str, name: str) -> NetDevice:
    if name not in state.links:
        raise ConfigError(option, name, NO_SUCH_DEVICE())
    return state.links[name]


def _monitor(state: TcState, monitor: NetDevice, warn: Callable[[Finding], None]) -> None:
    if monitor.master:
        raise ConfigError("--monitor", monitor.name, MONITOR_HAS_MASTER(monitor.master))
    if monitor.addresses:
        raise ConfigError("--monitor", monitor.name, MONITOR_HAS_ADDRESS(monitor.addresses))
    if not monitor.up:
        raise ConfigError("--monitor", monitor.name, MONITOR_DOWN(monitor.name))
    root = state.root.get(monitor.name, "noqueue")
    if root not in LOSSLESS_QDISCS:
        warn(MONITOR_QDISC(device=monitor.name, qdisc=root))
    if state.filters_on(monitor.name, "egress"):
        warn(MONITOR_FILTERED(monitor.name))


def _loops(tc: TcMirrors, state: TcState, session: MirrorSession) -> None:
    """A copy that is copied again may come back to where it was copied first, without end."""
    mine = tc.filters(state)
    others = [one for one in state.filters if one.copies_to and one not in mine]
    for one in others:
        if one.device == session.monitor:
            raise ConfigError("--monitor", one.device, TC_MONITOR_WATCHED(_whose(one)))
    for source in session.sources:
        for one in others:
            if source.port in one.copies_to:
                right = TC_SOURCE_GETS_COPIES(maker=_whose(one), device=one.device, way=one.way)
                raise ConfigError("--source", str(source), right)


def _taken(tc: TcMirrors, state: TcState, monitor: NetDevice) -> bool:
    """Whether sessions of FlowCheck's, this one or others, copy there already; somebody else's
    frames among them would be taken for copies."""
    mine = tc.filters(state)
    there = [one for one in state.filters if monitor.name in one.copies_to + one.hands_to]
    for one in there:
        if one not in mine and not _session(one):
            right = TC_MONITOR_TAKEN(maker=_whose(one), device=one.device, way=one.way)
            raise ConfigError("--monitor", monitor.name, right)
    return bool(there)


def _talking(monitor: NetDevice, warn: Callable[[Finding], None]) -> None:
    """Whether somebody is reached through it: Linux learns no addresses behind a device of no
    bridge, so its counters are looked at twice. One that never carried a frame is not waited for.
    """
    if not any(monitor.frames):
        return
    before = tc_state.frames(monitor.name)
    Event().wait(LOOK_S)
    got, sent = (now - was for now, was in zip(tc_state.frames(monitor.name), before, strict=True))
    if max(got, sent) > MOST_FRAMES:
        right = MONITOR_IN_USE(received=got, sent=sent, seconds=LOOK_S)
        raise ConfigError("--monitor", monitor.name, right)
    if got or sent:
        warn(MONITOR_CARRIES_FRAMES(device=monitor.name, received=got, sent=sent, seconds=LOOK_S))


def _session(one: TcFilter) -> str:
    """Of FlowCheck's, whose filter it is by its cookie and its form; empty: of none. A cookie alone
    may spell a name by chance."""
    if len(one.cookies) == len(one.copies_to) == 1 and one.controls == ("continue",):
        try:
            name = bytes.fromhex(one.cookies[0]).decode("ascii")
        except ValueError:
            name = ""
        if re.fullmatch(SESSION_NAME_PATTERN, name):
            return name
    return ""


def _whose(one: TcFilter) -> Finding:
    if name := _session(one):
        return FILTER_OF_SESSION(session=name, pref=one.pref)
    return FILTER_OF_OTHERS(one.pref)


def _sizes(source: NetDevice, monitor: NetDevice) -> None:
    if monitor.mtu < source.mtu:
        right = MONITOR_MTU_TOO_SMALL(
            mtu=monitor.mtu, source_mtu=source.mtu, source=source.name, device=monitor.name
        )
        raise ConfigError("--monitor", monitor.name, right)


def _hook(state: TcState, source: MirrorSource, way: MirrorDirection) -> None:
    hook = state.hooks.get(source.port)
    if hook is None:
        return
    if hook.shared:
        raise ConfigError("--source", str(source), SHARED_BLOCK())
    if hook.kind == "ingress" and way is MirrorDirection.TX:
        raise ConfigError("--source", str(source), INGRESS_QDISC())


def _others(tc: TcMirrors, state: TcState, copy: MirrorFilter) -> None:
    mine = tc.filters(state)
    others = [one for one in state.filters_on(copy.device, copy.way) if one not in mine]
    for one in others:
        if copy.monitor in one.copies_to:
            right = TC_COPIED_ALREADY(maker=_whose(one), device=copy.device, way=copy.way)
            raise ConfigError("--monitor", copy.monitor, right)
    if tc.pref(state, copy.device, copy.way, mine) is None:
        first = min(one.pref for one in others)
        right = HIDDEN_BY_FILTER(device=copy.device, way=copy.way, pref=first)
        raise ConfigError("--source", copy.device, right)
