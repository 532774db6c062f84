"""Which state of the fleet a machine goes by: what it does with states that it is given, and with
those that others tell of. Nobody is elected, and no clock decides: states have a total order
(StateRank), each machine keeps the highest that it was given, and starts nothing, and ends what it
runs, where it hears of a higher one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from flowcheck.fleet.fleet_state import FleetState, StateRank
from flowcheck.fleet.node_report import NodeReport
from flowcheck.ops.fleet.node_folder import NewerState, NodeFolder

GENERATION_MAX = 1 << 31
"""So that what somebody makes up leaves numbers above it: `[copies] epoch` has 32 bits."""


def hear_others(folder: NodeFolder, state: FleetState, reports: Iterable[NodeReport]) -> FleetState:
    """Keeps the highest of what other machines tell, where it is above this machine's state: a stop
    becomes its state; of a start, whose job files it has not, which chains that leaves it.

    Returns the machine's state then. Raises ConfigError, OSError.
    """
    top = _above(state.name, state.rank, reports)
    if top is not None and not top.wanted:
        return folder.stop(top.generation)
    if top is not None:
        folder.hear(_newer(folder, top))
    return state


def given_to(
    folder: NodeFolder, state: FleetState, others: Callable[[], Sequence[NodeReport]]
) -> StateRank:
    """Gives a state to a machine, and returns the rank of what it goes by then. others: asks the
    other machines; called where this one has no state, as it is new or its disk was wiped: it may
    be given one that is over. Raises OSError."""
    if not folder.file.exists():
        folder.make()
        if (top := _above(state.name, state.rank, others())) is not None:
            folder.hear(_newer(folder, top))
    known = folder.take(state)
    newer = folder.outranks(known)
    if newer is None or newer.rank == state.rank:  # heard of, and still not taken here
        return known.rank
    return newer.rank


def is_newest(state: FleetState, others: Sequence[NodeReport]) -> bool:
    """Whether a machine that has no state may take one that is as old as what brings it: of a fleet
    of several machines only if another one has just that, and none a higher one."""
    if len(state.keepers) == 1:
        return True
    own = [one.rank for one in others if one.fleet == state.name]
    return state.rank in own and max(own) == state.rank


def _above(name: str, rank: StateRank, reports: Iterable[NodeReport]) -> NodeReport | None:
    """Of the highest state, if that is above this one."""
    own = [one for one in reports if one.fleet == name and one.generation < GENERATION_MAX]
    return max((one for one in own if one.rank > rank), key=lambda one: one.rank, default=None)


def _newer(folder: NodeFolder, one: NodeReport) -> NewerState:
    places = one.places if one.wanted else {}
    mine = tuple(name for name, node in places.items() if node == folder.node)
    known = one.rank
    return NewerState(
        generation=known.generation, mine=mine, stated=known.stated, stopped=known.stopped
    )
