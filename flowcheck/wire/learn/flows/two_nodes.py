"""The connections of a ring over two nodes of several GPUs, and of the trees beside it.

Each node is the root of one of the two trees, and the other one its only child: both links are the
ring's too, so that no link tells by itself how many channels trees have (`trees.py`). What tells
are the connections: what goes up a channel's tree comes down it between the same two GPUs, in
messages of the same sizes and each of them later. One of the two may be the ring's as well, never
both: a ring enters a node and leaves it by different GPUs. Those of the ring were made first.

Source: NCCL src/graph/trees.cc (ncclGetDtree of two nodes), src/graph/connect.cc (connectTrees),
src/device/all_reduce.h (runTreeSplit), src/transport.cc (ncclTransportP2pSetup).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product

import numpy as np
from numpy.typing import NDArray

from flowcheck.wire.collectives.double_binary_tree import (
    PerTree,
    is_second,
    sum_passes_down,
    tree_parents,
)
from flowcheck.wire.collectives.nccl_parameters import Protocol
from flowcheck.wire.learn.flows.counted import ranks_counted
from flowcheck.wire.learn.flows.streams import CODE_OF, Stream
from flowcheck.wire.learn.flows.trees import MOST_WAYS, Fork, Link, Links, TreesOver, links_of_nodes

NODES = 2
THERE, BACK = (0, 1), (1, 0)
LEAST_GPUS = 2
"""Of one each the trees are the ring's connections and no others."""

Sharing = tuple[PerTree, PerTree]
"""(which trees pass on the ring's connections there, back)."""
TURNED = np.array((-1, 1, 1))
"""Times of messages from the last one on grow then."""
PER_TREE: tuple[PerTree, ...] = ((False, False), (False, True), (True, False), (True, True))
SHARINGS: tuple[Sharing, ...] = tuple(
    (there, back)
    for there, back in product(PER_TREE, repeat=2)
    if not any(both == (True, True) for both in zip(there, back, strict=True))
)


def forks_of_two(streams: Sequence[Stream]) -> Iterator[Fork]:
    """Ways in which these may be of a ring and of trees over two nodes of several GPUs, those of
    most channels first; none where the connections do not bear trees out."""
    for ranks in ranks_counted(streams):
        gpus, rest = divmod(ranks, NODES)
        if rest or gpus < LEAST_GPUS:
            continue
        links = links_of_nodes(streams, ranks, gpus)
        if links is not None and links.keys() == {THERE, BACK}:
            yield from islice(_forks(links, gpus), MOST_WAYS)


def _forks(links: Links, gpus: int) -> Iterator[Fork]:
    sent = {id(stream): sent_on(stream) for own in links.values() for stream in own}
    for used in range(max(map(len, links.values())), 0, -1):
        for found in range(used, 0, -1):
            for there, back in SHARINGS:
                if used == found and (there[1] or back[1]):
                    continue  # No channel has the second tree.
                ways = (
                    _by_channel(links[THERE], there, used, found),
                    _by_channel(links[BACK], back, used, found),
                )
                if _comes_down(ways, found, sent):
                    yield from _in_roles(links, gpus, used, found, (there, back))


def _by_channel(
    own: Sequence[Stream], shared: PerTree, used: int, found: int
) -> list[tuple[Stream, bool]] | None:
    """[channel] (what carried its tree, whether it is the ring's too); None: there are too few."""
    apart = [c for c in range(used) if not shared[is_second(c, found)]]
    first = len(own) - len(apart)
    if first < 1:
        return None
    made = {c: (own[first + place], False) for place, c in enumerate(apart)}
    for channel in range(used):
        if channel not in made:
            if channel >= first:
                return None
            made[channel] = own[channel], True
    return [made[channel] for channel in range(used)]


def _comes_down(
    ways: Sequence[list[tuple[Stream, bool]] | None],
    found: int,
    sent: Mapping[int, NDArray[np.int64]],
) -> bool:
    """What goes up each channel's tree comes down it. sent: {id: what a connection carried}."""
    there, back = ways
    if there is None or back is None:
        return False
    for channel, (one, two) in enumerate(zip(there, back, strict=True)):
        second = is_second(channel, found)
        down = sum_passes_down(*THERE, tree_parents(NODES, second))
        (above, above_is_rings), (below, below_is_rings) = (two, one) if down else (one, two)
        up, came = sent[id(above)], sent[id(below)]
        if below_is_rings:
            fits = found_behind(up, came, all_of_it=False)
        elif above_is_rings:
            fits = found_behind(turned(came), turned(up), all_of_it=True)
        else:
            fits = begun_by(up, came)
        if not fits:
            return False
    return True


def sent_on(stream: Stream, *, with_simple: bool = True) -> NDArray[np.int64]:
    """[message] (time, bytes, protocol), of those in Simple too or of all others."""
    columns = stream.columns
    codes = np.frombuffer(columns.protocol_codes, np.uint8)
    sent = np.stack((columns.times_ns, columns.wire_bytes, codes), axis=1).astype(np.int64)
    return sent if with_simple else sent[codes != CODE_OF[Protocol.SIMPLE]]


def turned(sent: NDArray[np.int64]) -> NDArray[np.int64]:
    """From the last message on, in times that grow then."""
    made: NDArray[np.int64] = sent[::-1] * TURNED
    return made


def begun_by(up: NDArray[np.int64], down: NDArray[np.int64]) -> bool:
    """What came down is what went up, or its beginning, each message later."""
    own = up[: len(down)]
    if not len(down) or len(own) < len(down):
        return False
    return bool((own[:, 1:] == down[:, 1:]).all() and (own[:, 0] <= down[:, 0]).all())


def found_behind(wanted: NDArray[np.int64], there: NDArray[np.int64], *, all_of_it: bool) -> bool:
    """Each message is among others, in their order and later; but for the last ones, if not all of
    it has to be."""
    others = iter(there.tolist())
    matched = 0
    for time, *kind in wanted.tolist():
        if not any(at >= time and one == kind for at, *one in others):
            break
        matched += 1
    return matched == len(wanted) if all_of_it else matched > 0


def _in_roles(links: Links, gpus: int, used: int, found: int, sharing: Sharing) -> Iterator[Fork]:
    """With these trees, if the same GPUs of a node write everywhere in the same role."""
    trees = TreesOver(links, gpus, NODES, found, used)
    shared: Mapping[Link, PerTree] = dict(zip((THERE, BACK), sharing, strict=True))
    for own, roles in trees.ways(THERE, {}):
        if all(own[k] == shared[THERE][k] for k in _there(used, found)):
            ways = [two for two, _ in trees.ways(BACK, roles)]
            if any(all(two[k] == shared[BACK][k] for k in _there(used, found)) for two in ways):
                yield trees.fork(shared)
                return


def _there(used: int, found: int) -> Sequence[int]:
    """Which of the two trees have channels."""
    return (0, 1) if used > found else (0,)
