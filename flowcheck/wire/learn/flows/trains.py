"""Sends whose packets are writes of their own, as some NICs make them for adaptive routing.

Each packet is a whole plain write, one behind the other in memory; the empty write that closes the
send states what they come to together. Nothing else tells where a send ends: the slots of a buffer
may be neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from flowcheck.wire.collectives.nccl_parameters import piece_sizes
from flowcheck.wire.collectives.nccl_wire_format import immediate_sizes
from flowcheck.wire.learn.flows.streams import PSN_OF_START, moved_ranges, one_behind_the_other
from flowcheck.wire.traffic.observed_messages import ObservedMessage, Range

MOST_QUEUE_PAIRS = 8
"""Of a connection that splits its sends (NCCL src/transport/net_ib, NCCL_IB_QPS_PER_CONNECTION); a
choice that bounds time: more are hardly used."""

Run = Sequence[ObservedMessage]
"""Plain writes, ascending PSN, with nothing seen between them that ends a send."""


def whole_writes(messages: Sequence[ObservedMessage]) -> tuple[list[ObservedMessage], bool]:
    """(one plain write for each send of one flow that came in several, all others as they are;
    any did). Ascending PSN where any did."""
    for message in messages:  # as `closes_adaptive_send`, whose call is most of what this costs
        if message.immediate and not message.wire_bytes and not message.va:
            break
    else:
        return list(messages), False
    ordered = sorted(messages, key=lambda m: m.first_psn)
    runs = [(stop, run, end, _unbroken(run, end, stop)) for stop, run, end in _runs(ordered)]
    each = max((run[-count].wire_bytes for _, run, _, count in runs if count > 1), default=0)
    if not each:
        return list(messages), False
    found: list[ObservedMessage] = []
    for stop, run, end, count in runs:
        own, whole = (count, _joined(run[-count:])) if count else _with_lost(run, end, stop, each)
        rest = run[: len(run) - own]
        begin = run[-own].first_psn if own else end.first_psn if end is not None else None
        found += _of_lost_ends(rest, stop, begin)
        found += [one for one in (whole, end) if one is not None]
    return found, True


def _runs(
    messages: Sequence[ObservedMessage],
) -> Iterator[tuple[int, list[ObservedMessage], ObservedMessage | None]]:
    """(PSN behind what came before, plain writes, what ended them; None: nothing did)."""
    stop, run = PSN_OF_START, list[ObservedMessage]()
    for message in messages:
        if message.immediate is None and message.wire_bytes and message.va is not None:
            run.append(message)
            continue
        yield stop, run, message
        stop, run = message.first_psn + message.packets, []
    if run:
        yield stop, run, None


def _unbroken(run: Run, end: ObservedMessage | None, stop: int) -> int:
    """How many of the last writes, none of them lost, are the send that `end` closes; 0: it closes
    none, or nothing tells. stop: PSN behind what came before them."""
    if end is None or not end.closes_adaptive_send:
        return 0
    sizes = immediate_sizes(end.immediate or 0)
    total, at = 0, end.first_psn
    for count, write in enumerate(reversed(run), 1):
        behind = run[-count + 1] if count > 1 else None
        if write.first_psn + write.packets != at or not (behind is None or _adjoin(write, behind)):
            break
        total, at = total + write.wire_bytes, write.first_psn
        # Of a send that is split over queue pairs this is one's part: all since the last one.
        if total in sizes or (at == stop and any(_is_part(total, size) for size in sizes)):
            return count
    return 0


def _is_part(total: int, size: int) -> bool:
    """What one of several queue pairs carries of a send of `size` bytes."""
    return any(total in piece_sizes(size, count) for count in range(2, MOST_QUEUE_PAIRS + 1))


def _adjoin(one: ObservedMessage, two: ObservedMessage) -> bool:
    """`two` goes on in memory where `one` ends."""
    return one.rkey == two.rkey and (one.va or 0) + one.wire_bytes == two.va


def _joined(run: Run) -> ObservedMessage:
    """One write of writes next to each other."""
    return replace(
        one_behind_the_other(run),
        packets=sum(write.packets for write in run),
        line_flag=next((w.line_flag for w in run if w.line_flag is not None), None),
        order=min(write.order for write in run),
    )


def _with_lost(
    run: Run, end: ObservedMessage | None, stop: int, each: int
) -> tuple[int, ObservedMessage | None]:
    """(how many of the last writes are of the send that `end` closes, that send as one), where some
    of `each` bytes were lost."""
    if end is None or not end.closes_adaptive_send:
        return 0, None
    sizes = set(immediate_sizes(end.immediate or 0))
    ways = [way for size in sizes if (way := _of_size(run, end, size, stop, each)) is not None]
    return ways[0] if len(ways) == 1 else (0, None)


def _of_size(
    run: Run, end: ObservedMessage, size: int, stop: int, each: int
) -> tuple[int, ObservedMessage] | None:
    """As `_with_lost`, of a send of `size` bytes: each write that was seen lies where its PSN says,
    and all but the last have `each` bytes."""
    packets = -(-size // each)
    first = end.first_psn - packets
    own = [write for write in run if write.first_psn >= first]
    if not own or packets < 2 or first < stop:
        return None
    starts = [(write.first_psn - first) * each for write in own]
    base = (own[0].va or 0) - starts[0]
    missing: list[Range] = []
    payload = np.zeros(size, np.uint8)
    at = 0
    for write, start in zip(own, starts, strict=True):
        fits = write.va == base + start and write.wire_bytes == min(each, size - start)
        if not fits or write.packets != 1 or write.rkey != own[0].rkey:
            return None
        missing += [(at, start)] if at < start else []
        missing += [(a + start, b + start) for a, b in write.missing]
        at = start + write.wire_bytes
        payload[start:at] = write.payload
    missing += [(at, size)] if at < size else []
    whole = replace(
        _joined(own),
        first_psn=first,
        packets=packets,
        va=base,
        wire_bytes=size,
        payload=payload,
        missing=tuple(missing),
        conflicts=moved_ranges(starts, [write.conflicts for write in own]),
        others=(),
    )
    return len(own), whole


def _of_lost_ends(run: Run, stop: int, begin: int | None) -> list[ObservedMessage]:
    """Sends of which only the closing write was lost, each as one: of others nobody knows how many
    bytes they are. begin: PSN of what comes behind; None: nothing came."""
    groups: list[list[ObservedMessage]] = []
    for write in run:
        last = groups[-1][-1] if groups else None
        if (
            last is None
            or last.first_psn + last.packets != write.first_psn
            or not _adjoin(last, write)
        ):
            groups.append([])
        groups[-1].append(write)
    found = []
    for number, group in enumerate(groups):
        behind = groups[number + 1][0].first_psn if number + 1 < len(groups) else begin
        after = group[-1].first_psn + group[-1].packets
        if group[0].first_psn == stop and behind == after + 1:
            found.append(_joined(group))
        stop = after + 1
    return found
