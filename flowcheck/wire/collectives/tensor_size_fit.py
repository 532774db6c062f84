"""Which tensor sizes and NCCL eras explain message sizes seen on the wire: the schedule read
backwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flowcheck.wire.collectives.chunk_partition import Launch
from flowcheck.wire.collectives.nccl_parameters import (
    DEFAULT_TUNING,
    CollectiveKind,
    NcclEra,
    Protocol,
    Tuning,
    WriterRanks,
    data_bytes_of,
)
from flowcheck.wire.collectives.ring_schedule import (
    Schedule,
    collective,
    hops_per_loop,
    sends_per_chunk,
)

Sizes = tuple[int | None, ...]
"""Wire bytes of the messages of one flow within one collective; None: not known."""

MOST_CANDIDATES = 20_000
"""Totals tried at most; more of them means that too much was lost to tell. A choice that bounds
time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeSizes:
    """What one edge carried for one collective: [flow][message], flows in any order."""

    sender: WriterRanks
    flows: tuple[Sizes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveSetting:
    """What is already known of the collective. `element_bytes` None: totals are multiples of 8
    in LL, where the wire tells no more, and of 1 otherwise."""

    ranks: int
    channels: int
    protocol: Protocol
    kind: CollectiveKind = CollectiveKind.ALL_REDUCE
    element_bytes: int | None = None
    extra_sends: int = 0
    root: int = 0
    tuning: Tuning = DEFAULT_TUNING

    def schedule(self, work_bytes: int, era: NcclEra, sender: WriterRanks) -> Schedule:
        """What an edge carries if the collective moves `work_bytes` in `era`."""
        return collective(
            self.kind,
            work_bytes,
            sender=sender,
            element_bytes=self.element_bytes or (4 if work_bytes % 4 == 0 else 1),
            extra_sends=self.extra_sends,
            root=self.root,
            ranks=self.ranks,
            channels=self.channels,
            protocol=self.protocol,
            era=era,
            tuning=self.tuning,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeFit:
    """One placement of the bytes that gives exactly the sizes seen."""

    total_bytes: int
    """Of the tensor; of one rank's block in a gather or scatter."""
    eras: tuple[NcclEra, ...]
    """All of them place every byte alike."""
    choices: tuple[tuple[tuple[int, ...], ...], ...]
    """[edge][flow] -> channels whose sizes are the flow's; together they allow a bijection."""
    schedules: tuple[Schedule, ...]
    """[edge], by `eras`."""

    @property
    def has_channel_order(self) -> bool:
        """The sizes leave one order of channels, up to channels that carry nothing."""
        return all(
            len(flow) == 1 or not any(schedule[channel] for channel in flow)
            for edge, schedule in zip(self.choices, self.schedules, strict=True)
            for flow in edge
        )


def totals_fitting(
    edges: Sequence[EdgeSizes],
    setting: CollectiveSetting,
    *,
    eras: Sequence[NcclEra] = tuple(NcclEra),
    totals: Sequence[int] | None = None,
) -> tuple[SizeFit, ...]:
    """Every (total, placement) that reproduces the sizes of all edges exactly, smallest total
    first. `totals`: only these are tried. Raises ValueError if what is unknown leaves more than
    MOST_CANDIDATES totals."""
    if not edges or any(len(edge.flows) > setting.channels for edge in edges):
        return ()
    tried = range_of_totals(edges, setting) if totals is None else totals
    if len(tried) > MOST_CANDIDATES:
        raise ValueError(f"{len(tried)} totals are possible: too many sizes are unknown")
    return tuple(
        SizeFit(total_bytes=total, eras=alike, choices=choices, schedules=schedules)
        for total in tried
        for schedules, choices, alike in _placements(edges, setting, total, eras)
    )


def range_of_totals(edges: Sequence[EdgeSizes], setting: CollectiveSetting) -> range:
    """The totals that the known sizes do not rule out, before any schedule is tried."""
    least, most = 0, 1 << 62
    for edge in edges:
        chunks = [chunk for flow in edge.flows for chunk in _chunks(flow, setting)]
        known = [size for size in chunks if size is not None]
        least = max(least, sum(known) - _slack_bytes(setting.protocol, len(known)))
        if len(edge.flows) == setting.channels:
            full = _launch(setting).chunk_bytes
            most = min(most, sum(full if size is None else size for size in chunks))
    quantum = setting.element_bytes or (8 if setting.protocol is Protocol.LL else 1)
    return range(max(quantum, -(-least // quantum) * quantum), most + 1, quantum)


def orders(
    choices: Sequence[Sequence[Sequence[int]]],
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every [edge][flow] -> channel that `choices` allow, low channels for early flows first."""
    if not choices:
        yield ()
        return
    for head in _bijections(choices[0], frozenset()):
        for tail in orders(choices[1:]):
            yield (head, *tail)


def _bijections(flows: Sequence[Sequence[int]], taken: frozenset[int]) -> Iterator[tuple[int, ...]]:
    if not flows:
        yield ()
        return
    for channel in flows[0]:
        if channel not in taken:
            for tail in _bijections(flows[1:], taken | {channel}):
                yield (channel, *tail)


_Choices = tuple[tuple[tuple[int, ...], ...], ...]
"""As `SizeFit.choices`."""


def _placements(
    edges: Sequence[EdgeSizes], setting: CollectiveSetting, total: int, eras: Sequence[NcclEra]
) -> list[tuple[tuple[Schedule, ...], _Choices, tuple[NcclEra, ...]]]:
    """Distinct placements of `total` that give the sizes of all edges, and the eras that give each.
    Thousands of totals are tried, of which few have the sizes: these are compared first."""
    alike: dict[object, tuple[tuple[Schedule, ...], _Choices, list[NcclEra]]] = {}
    for era in eras:
        schedules: list[Schedule] = []
        choices: list[tuple[tuple[int, ...], ...]] = []
        for edge in edges:
            schedules.append(setting.schedule(total, era, edge.sender))
            choices.append(_choices(edge, schedules[-1]))
            if not choices[-1]:
                break
        else:
            places = tuple(sends.key for schedule in schedules for sends in schedule)
            alike.setdefault(places, (tuple(schedules), tuple(choices), []))[2].append(era)
    return [(schedules, choices, tuple(found)) for schedules, choices, found in alike.values()]


def _choices(edge: EdgeSizes, schedule: Schedule) -> tuple[tuple[int, ...], ...]:
    """[flow] -> channels it may be; () if no assignment of flows to channels exists."""
    sizes = [sends.wire_bytes.tolist() for sends in schedule]
    choices = tuple(
        tuple(channel for channel, due in enumerate(sizes) if _agrees(flow, due))
        for flow in edge.flows
    )
    owner: dict[int, int] = {}
    for flow in range(len(choices)):
        if not _assign(flow, choices, owner, set()):
            return ()
    return choices


def _agrees(seen: Sizes, due: Sequence[int]) -> bool:
    return len(seen) == len(due) and all(
        a is None or a == b for a, b in zip(seen, due, strict=True)
    )


def _assign(
    flow: int, choices: Sequence[Sequence[int]], owner: dict[int, int], tried: set[int]
) -> bool:
    """Give `flow` a channel, moving others if need be (augmenting path)."""
    for channel in choices[flow]:
        if channel in tried:
            continue
        tried.add(channel)
        if channel not in owner or _assign(owner[channel], choices, owner, tried):
            owner[channel] = flow
            return True
    return False


def _launch(setting: CollectiveSetting) -> Launch:
    """Only for the size of a full chunk, which hardly depends on the era."""
    return Launch(
        kind=setting.kind,
        work_bytes=0,
        element_bytes=setting.element_bytes or 1,
        ranks=setting.ranks,
        channels=setting.channels,
        protocol=setting.protocol,
        era=NcclEra.V2_19,
        tuning=setting.tuning,
    )


def _slack_bytes(protocol: Protocol, chunks: int) -> int:
    """How much less data than room. In LL only the end of the tensor is off a line's end."""
    if protocol is Protocol.LL:
        return 7 if chunks else 0
    return 1919 * chunks if protocol is Protocol.LL128 else 0


def _chunks(flow: Sizes, setting: CollectiveSetting) -> list[int | None]:
    """Most data bytes of every distinct chunk of a flow, None where no copy's size is known. Which
    sends carry one chunk is the same whoever writes."""
    slices = sends_per_chunk(setting.kind, setting.protocol)
    hops = hops_per_loop(setting.kind, setting.ranks, setting.extra_sends)
    lanes = setting.ranks if setting.kind is CollectiveKind.ALL_REDUCE else 1
    best: dict[tuple[int, int, int], int | None] = {}
    for position, size in enumerate(flow):
        hop, part = divmod(position, slices)
        key = (hop // hops, hop % hops % lanes, part)
        room = None if size is None else data_bytes_of(setting.protocol, size)
        if best.get(key) is None:
            best[key] = room
    return list(best.values())
