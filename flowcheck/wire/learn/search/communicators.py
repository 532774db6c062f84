"""The best reading of the connections that are taken for one communicator."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from flowcheck.wire.collectives import nccl_wire_format
from flowcheck.wire.collectives.nccl_debug_log import RingOrder
from flowcheck.wire.collectives.nccl_parameters import (
    NCCL_STEPS,
    SLOT_BYTES,
    CollectiveKind,
    NcclEra,
    Protocol,
)
from flowcheck.wire.learn.cuts.cut import HASTY, Cuts, Purse, cut_stream
from flowcheck.wire.learn.cuts.purse import share
from flowcheck.wire.learn.flows.counted import ranks_counted
from flowcheck.wire.learn.flows.groups import Group
from flowcheck.wire.learn.flows.rings import Ring, logged_rings, rings, seen_whole
from flowcheck.wire.learn.flows.roles import P2P_CAPACITY_BYTES, Sorted
from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.learn.search.copies import rules_left
from flowcheck.wire.learn.search.dtypes import told_types
from flowcheck.wire.learn.search.fillers import by_numbers
from flowcheck.wire.learn.search.joining import FINALISTS, joined_amid
from flowcheck.wire.learn.search.other_nodes import nodes_open
from flowcheck.wire.learn.search.resume import resumed
from flowcheck.wire.learn.search.scores import (
    ADDED_GAIN,
    PENALTY_COST,
    explains_all,
    plain_score,
    score_of,
)
from flowcheck.wire.learn.search.sounding import sounded
from flowcheck.wire.learn.search.started import ranks_started, starting_up
from flowcheck.wire.learn.search.tighten import tightened
from flowcheck.wire.learn.trainer.grammar import Habits, Trainer
from flowcheck.wire.learn.trainer.iteration import named
from flowcheck.wire.learn.trainer.plans import plan_by_numbers

LATER_SHARE = 16
"""A guess that no start-up bears out may spend one of so many parts of what is left, where another
one explains everything."""
HINT = 2
"""Penalty of a guess that leaves what hosts or tags say aside."""


@dataclass(frozen=True, slots=True)
class Communicator:
    """One communicator, read as well as it can be."""

    cuts: Cuts
    habits: Habits
    rivals: tuple[Cuts, ...] = field(default=())
    """Other readings that explain the sizes as well."""

    @property
    def ring(self) -> Ring:
        return self.cuts.ring


def ring_and_p2p(streams: Sequence[Stream]) -> tuple[list[Stream], list[Stream]]:
    """Connections that may be of rings, and point-to-point ones: Simple, own queue pairs, and
    receives of another size than rings post, or in the pool of point-to-point sends."""
    ring: list[Stream] = []
    p2p: list[Stream] = []
    for stream in streams:
        simple = stream.protocol is Protocol.SIMPLE
        if simple and stream.capacities_bytes:
            simple = stream.pooled or P2P_CAPACITY_BYTES in stream.capacities_bytes
        elif simple:
            addresses = [s.message.va for s in stream.sends.values() if s.message.va]
            simple = len(addresses) < 2 or not _walks_slots(stream, addresses)
        (p2p if simple else ring).append(stream)
    return ring, p2p


def _walks_slots(stream: Stream, addresses: Sequence[int]) -> bool:
    """The addresses are those of a ring's slots, or some sends are of another protocol: only
    connections of rings change it."""
    if any(send.protocol not in (None, Protocol.SIMPLE) for send in stream.sends.values()):
        return True
    if nccl_wire_format.protocol_of_addresses(addresses) is Protocol.SIMPLE:
        return True
    # Broadcasts go slot by slot, reductions two at a time; point-to-point chunks lie closer.
    slot = SLOT_BYTES[Protocol.SIMPLE]
    offsets = {address - min(addresses) for address in addresses}
    in_slots = all(offset % slot == 0 and offset < NCCL_STEPS * slot for offset in offsets)
    return len(offsets) > 1 and in_slots


def rules_told(sorted_flows: Sorted, stated: NcclEra | None = None) -> tuple[NcclEra, ...]:
    """Partition eras that the clear-to-send layout and the immediates' byte order leave.

    stated: by the job file; it decides between them, and against them nothing.
    """
    rules = set(NcclEra)
    for grant in sorted_flows.grants:
        rules &= set(nccl_wire_format.eras_of(grant.layout))
    orders = {"little", "big"}
    told = {one for stream in sorted_flows.streams for one in stream.stated}
    for word, size in sorted(told):
        orders &= set(nccl_wire_format.immediate_orders(word, size)) or orders
    if orders == {"little"}:
        rules -= {NcclEra.V2_29}
    elif orders == {"big"}:
        rules &= {NcclEra.V2_29}
    if stated in rules:
        return (stated,)
    return tuple(rule for rule in NcclEra if rule in rules) or tuple(NcclEra)


def read_group(
    group: Group,
    rules: tuple[NcclEra, ...],
    purse: Purse | None = None,
    *,
    near: Collection[int] = (),
    logged: Sequence[RingOrder] = (),
) -> Communicator | None:
    """The likeliest ring of a group and what it carried; None if it forms no ring at all. Most
    guesses fail at once; only if none reads everything are the best of them worth more work. near:
    ranks of rings on the same hosts, which it rather has too; logged: as NCCL's log has rings."""
    guesses = list(logged_rings(group, rules, logged, most_gpus=1))
    guesses += sounded(group, rules, purse, logged)
    streams = [s for of in group.links.values() for s in of]
    started = ranks_started(streams)
    likely = {*ranks_counted(streams)[:1], *near}
    ordered = sorted(rings(group, rules, started), key=lambda g: (g.penalty, g.ranks not in likely))
    return read_guesses([*guesses, *ordered], purse)


def read_guesses(guesses: Sequence[Ring], purse: Purse | None) -> Communicator | None:
    """The likeliest of several rings, most plausible first, and what it carried; None: there are
    none."""
    if not guesses:
        return None
    reducing = (ring for ring in guesses if not ring.gathers)
    amid = joined_amid(sorted(reducing, key=lambda ring: ring.penalty), purse)
    if amid is not None:
        return read_as(amid, (), purse, in_order=False)
    # Where all was seen, one collective after the other: else the likelier of kinds that fit.
    in_order = seen_whole(guesses[0])
    hasty = _hasty(guesses, purse, in_order=in_order)
    if in_order and all(cuts.unread for cuts in hasty):
        # Broadcasts of any rank explain anything, but where DDP began: ZeroRedundancyOptimizer.
        began = [cuts.ring for cuts in hasty if Trainer().habits(cuts.ring, cuts.found).each]
        hasty += _hasty([replace(ring, roots=True) for ring in began], purse, in_order=True)
    if in_order and all(cuts.unread for cuts in hasty):
        likeliest = sorted(hasty, key=plain_score)[:FINALISTS]
        hasty += _hasty([cuts.ring for cuts in likeliest], purse, in_order=False)
        in_order = False
    hasty.sort(key=plain_score)
    # Few large all-reduces of many ranks cost less than many small ones: content must decide.
    hinted = min(hasty, key=lambda cuts: (cuts.unread, cuts.ring.penalty))
    finalists = hasty[:FINALISTS]
    if finalists[0].ring.penalty >= hinted.ring.penalty + HINT and hinted not in finalists:
        finalists.append(hinted)
    best = sorted(finalists, key=score_of)
    if best[0].unread:
        best = sorted((_thorough(cuts, purse) for cuts in best), key=score_of)
    won = _fewest_ranks(best[0], [*best, *hasty])
    return read_as(won, [*best, *hasty], purse, in_order=in_order)


def read_as(
    likeliest: Cuts,
    others: Sequence[Cuts],
    purse: Purse | None,
    *,
    in_order: bool,
    read_again: Callable[[Ring], Cuts] | None = None,
) -> Communicator:
    """The communicator by its likeliest reading, and which others are as good. read_again: reads
    it under fewer releases of NCCL, where no search is needed for that."""
    won = _by_copies(likeliest, purse, read_again)
    rivals = tuple(
        c
        for c in others
        if c.ring != won.ring and c.unread == won.unread and score_of(c) <= score_of(won)
    )
    habits = Trainer().habits(won.ring, won.found)
    types, placed = told_types(won, habits)
    if types is not None:
        trainer = Trainer(types, placed)
        again = cut_stream(won.ring, trainer, purse=purse, in_order=in_order)
        if again.unread <= won.unread:
            won, habits = again, trainer.habits(again.ring, again.found)
    own = replace(won, found=named(won.found, habits, won.ring))
    ended = by_numbers(own)
    if habits.plan_ways and (plan := plan_by_numbers(ended.found, habits.plan_ways)):
        trainer = Trainer(types, placed, plan)
        again = cut_stream(won.ring, trainer, purse=purse, in_order=in_order)
        if again.unread <= won.unread:
            habits = trainer.habits(again.ring, again.found)
            ended = by_numbers(replace(again, found=named(again.found, habits, again.ring)))
    cuts = tightened(ended)
    ring = replace(cuts.ring, nodes_open=cuts.ring.nodes_open or nodes_open(cuts))
    return Communicator(replace(cuts, ring=ring), habits, rivals)


def _hasty(guesses: Sequence[Ring], purse: Purse | None, *, in_order: bool) -> list[Cuts]:
    """Readings of guesses as far as these may still be the likeliest."""
    found: list[Cuts] = []
    explained = False
    least, most_penalty = float("inf"), float("inf")
    begun = starting_up(guesses, purse) if in_order else []
    for ring in (*begun, *(ring for ring in guesses if ring not in begun)):
        if PENALTY_COST * ring.penalty > least or ring.penalty > most_penalty:
            continue
        # Another one may be likelier still, and shows it soon; of several ways to share trees out
        # all are compared.
        later = not ring.branches and ring not in begun and explained
        limit = least - PENALTY_COST * ring.penalty + ADDED_GAIN * bool(ring.extra_sends)
        with share(purse, LATER_SHARE if later else 1) as own:
            found.append(
                cut_stream(ring, Trainer(), effort=HASTY, limit=limit, purse=own, in_order=in_order)
            )
        least = min(least, plain_score(found[-1]))
        if not explains_all(found[-1]):
            continue
        explained = True
        if ring in begun and Trainer().habits(ring, found[-1].found).buckets:
            most_penalty = min(most_penalty, ring.penalty + 1)
        if ring.borne_out:
            break
    return found


def _by_copies(won: Cuts, purse: Purse | None, read_again: Callable[[Ring], Cuts] | None) -> Cuts:
    """Read again under the releases that the copies of each tensor leave, if not all do."""
    left = rules_left(won)
    if left == won.ring.rules:
        return won
    ring = replace(won.ring, rules=left)
    if all(rule in left for rule in won.state.rules):
        return replace(won, ring=ring)
    if read_again is not None:
        return read_again(ring)
    again = cut_stream(ring, Trainer(), purse=purse)
    return again if again.unread <= won.unread else won


def _fewest_ranks(won: Cuts, others: Sequence[Cuts]) -> Cuts:
    """The reading with the smallest ring, where neither hosts nor a trainer's plan tell how many
    ranks there are: several all-reduces of few ranks look like one of many, and cover less."""
    if won.ring.closed or any(cut.op.licensed for cut in won.found):
        return won
    smaller = [c for c in others if c.unread <= won.unread and c.ring.ranks < won.ring.ranks]
    return min(smaller, key=lambda c: (c.ring.ranks, score_of(c)), default=won)


def _thorough(hasty: Cuts, purse: Purse | None) -> Cuts:
    """Cut from the start with patience; where that stops short, go on behind it, and again with
    what was found there, so that a collective whose sizes were lost can be a known one."""
    first = min(
        hasty,
        cut_stream(hasty.ring, Trainer(), purse=purse),
        key=lambda cuts: (cuts.unread, cuts.cost),
    )
    if not first.unread:
        return first
    longer = resumed(first, purse)
    known = list(
        dict.fromkeys(c.op for c in longer.found if c.op.kind is CollectiveKind.ALL_REDUCE)
    )
    if not known:
        return longer
    again = resumed(cut_stream(hasty.ring, Trainer(), known=known, purse=purse), purse)
    return min(longer, again, key=lambda cuts: (cuts.unread, cuts.cost))
