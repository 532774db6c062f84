"""Which change leads on from a copy's position. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flowcheck.replica.state_digest import StateId
from flowcheck.stages.replica_copies.change_ring import RingChange
from flowcheck.stages.replica_copies.copy_messages import (
    PATH_STATES,
    AnswerKind,
    CopyPosition,
    PathState,
)


class NextChange(NamedTuple):
    """What the copy gets."""

    kind: AnswerKind
    change: RingChange | None = None
    path: tuple[PathState, ...] = ()


def present_past(newest: StateId, changes: Sequence[RingChange]) -> list[RingChange]:
    """Those changes that led to the replica's newest state, oldest first: what the replica went
    back behind since is none of them. newest: read before the changes, of which later ones are
    passed over."""
    path, state = [], newest
    for change in reversed(changes):
        if change.line.behind != state:
            continue
        in_place = change.line.before == change.line.behind
        if not change.committed and (in_place or change.line.behind != newest):
            continue  # never made, as far as anybody can tell
        path.append(change)
        state = change.line.before
    return path[::-1]


def next_change(
    newest: StateId,
    changes: Sequence[RingChange],
    source: str,
    at: CopyPosition,
    *,
    tainted: bool,
) -> NextChange:
    """What a copy at this position gets. newest, changes: as of `present_past`; tainted: whether
    the newest state is.

    Where changes between are not there any more, taint that they told of would be lost: then a
    copy goes on only if the newest state has none.
    """
    path = present_past(newest, changes)
    oldest = changes[0].sequence if changes else 0
    after = at.sequence if at.source == source else 0
    told_all = at.source == source and (not changes or oldest <= after + 1)
    ahead = [change for change in path if change.sequence > after]
    found = next((change for change in ahead if change.line.before == at.state), None)
    if found is None and at.state == newest and (told_all or not tainted):
        return NextChange(AnswerKind.NOTHING)
    if tainted and not told_all:
        return NextChange(AnswerKind.ELSEWHERE)
    if found is None or found.payload is None:
        return NextChange(AnswerKind.ELSEWHERE, path=_states(newest, path))
    return NextChange(AnswerKind.CHANGE, found)


def _states(newest: StateId, path: Sequence[RingChange]) -> tuple[PathState, ...]:
    """The states of a path that changes lead on from, each once, with the first change that is
    there of it."""
    known: dict[StateId, int] = {}
    blocked = False
    for change in reversed(path):
        # Behind a change without its bytes alone does a state help.
        blocked = blocked or change.payload is None
        if not blocked:
            known[change.line.before] = change.sequence - 1
    known.setdefault(newest, max((one.sequence for one in path), default=0))
    newest_first = sorted(known.items(), key=lambda pair: pair[1])
    return tuple(PathState(*one) for one in newest_first)[-PATH_STATES:]
