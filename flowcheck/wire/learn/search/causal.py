"""When the sends of an all-reduce were seen: do connections that are read together belong together?

Sizes tell where a collective begins on one connection, but not that what another one carried is
of the same collective and not of the one before or after. Time does (facts of the ring kernel,
NCCL src/device/all_reduce.h): a rank sends on what it received, and what it began comes round.
"""

from __future__ import annotations

from collections.abc import Mapping

from flowcheck.wire.collectives.ring_schedule import sends_per_chunk
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.cuts.echo import down_after_up
from flowcheck.wire.learn.flows.rings import Ring

Place = tuple[int, int, int, int]
"""(sender, channel, loop, ring step)."""


def in_causal_order(cut: Cut, ring: Ring) -> bool:
    """Every rank between two mirrored connections received first and sent then, and what it sent
    itself came round after that; False as well where too little was seen to tell. One connection
    alone has no other to be out of step with. The ranks of one node are taken as one."""
    if cut.op.tree:
        return down_after_up(cut, ring) is True
    if len(ring.around) < 2:
        return True
    times = _times(cut, ring)
    senders = [edge.sender for edge in ring.around]
    pairs = [(r - ring.gpus) % ring.ranks for r in senders]
    pairs = [before for before in pairs if before in senders]
    return bool(pairs) and all(
        _forwarded(times, before, ring) and _came_round(times, before, ring) for before in pairs
    )


def at_once(cut: Cut, ring: Ring) -> bool:
    """All channels of it carry something at the same time: one kernel moves them all, and the next
    one begins when it has ended. What each carried may be whole, and of two collectives."""
    spans: dict[int, tuple[int, int]] = {}
    for (_, channel, _, _), time_ns in _times(cut, ring).items():
        begin, end = spans.get(channel, (time_ns, time_ns))
        spans[channel] = min(begin, time_ns), max(end, time_ns)
    latest = max((begin for begin, _ in spans.values()), default=0)
    return all(end >= latest for _, end in spans.values())


def leaves_none(cut: Cut, ring: Ring) -> bool:
    """No connection holds a send that comes behind the collective and was seen before half of its
    own over the same edge: who sends begins the next one when this one has ended."""
    for edge, at, names, schedule in zip(
        ring.edges, cut.starts, cut.channels, cut.schedules, strict=True
    ):
        own: list[tuple[int, int]] = []
        later: list[tuple[int, int]] = []
        for stream, number, channel in zip(edge.streams, at, names, strict=True):
            stop = number + (len(schedule[channel]) if channel is not None else 0)
            seen = (stream.sends.get(n) for n in range(number, stop + 1))
            times = [send.message.time if send is not None else None for send in seen]
            own += [time for time in times[:-1] if time is not None]
            later += [time for time in times[-1:] if time is not None]
        if own and later and min(later) < sorted(own)[len(own) // 2]:
            return False
    return True


def _times(cut: Cut, ring: Ring) -> dict[Place, int]:
    """When each ring step of it was first seen."""
    slices = sends_per_chunk(cut.op.kind, cut.op.protocol)
    steps = 2 * ring.ranks - 2 + ring.extra_sends
    found: dict[Place, int] = {}
    for edge, at, names, schedule in zip(
        ring.edges, cut.starts, cut.channels, cut.schedules, strict=True
    ):
        if edge.receiver is not None:
            continue
        for stream, number, channel in zip(edge.streams, at, names, strict=True):
            for i in range(0, len(schedule[channel]) if channel is not None else 0, slices):
                seen = stream.sends.get(number + i)
                if seen is not None and channel is not None:
                    loop, step = divmod(i // slices, steps)
                    found[edge.sender, channel, loop, step] = seen.message.first_ns
    return found


def _forwarded(times: Mapping[Place, int], before: int, ring: Ring) -> bool:
    """Of the rank behind `before`: ring step s + 1 goes out after step s came in."""
    return _ordered(times, before, (before + ring.gpus) % ring.ranks, ring.gpus)


def _came_round(times: Mapping[Place, int], before: int, ring: Ring) -> bool:
    """Of the rank behind `before`: what went out in ring step s comes in again, by all others."""
    return _ordered(times, (before + ring.gpus) % ring.ranks, before, ring.ranks - ring.gpus)


def _ordered(times: Mapping[Place, int], one: int, two: int, later: int) -> bool:
    told = [
        times[two, channel, loop, step + later] >= at
        for (sender, channel, loop, step), at in times.items()
        if sender == one and (two, channel, loop, step + later) in times
    ]
    return bool(told) and all(told)
