"""Recognizes collectives that are in no plan (metrics, barriers, evaluation) by the sizes of their
messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from flowcheck.wire.algorithms.algorithm_registry import followed_algorithms
from flowcheck.wire.algorithms.algorithm_spec import MirroredLane, UnplannedSearch
from flowcheck.wire.collectives.nccl_parameters import pieces
from flowcheck.wire.traffic.observed_messages import NOT_ARRIVED
from flowcheck.wire.training_job.learned_job import LearnedJob

LaneSizes = tuple[tuple[int, ...], ...]
"""[lane][message] wire bytes; a lane is a mirrored flow of the communicator."""
MessageSizeAt = Callable[[int, int], int | None]
"""(lane, message number) -> wire bytes; None: was lost, or nobody knows; NOT_ARRIVED."""


class ExtraCollectives:
    """What may lie between the buckets of one communicator."""

    def __init__(
        self,
        job: LearnedJob,
        communicator: int,
        lanes: Sequence[tuple[int, int]],
        known: Sequence[LaneSizes],
        *,
        guess: bool,
    ) -> None:
        """lanes: [lane] (edge, channel); known: collectives that were seen at start-up; guess:
        others are possible too, by each algorithm that the communicator may use."""
        self._known = [sizes for sizes in known if any(sizes)]
        self._pieces = max(job.edges[edge].pieces for edge, _ in lanes) if lanes else 1
        own = job.communicators[communicator]
        places = [MirroredLane(job.edges[edge], edge, channel) for edge, channel in lanes]
        self._searches: list[UnplannedSearch] = []
        for spec in followed_algorithms() if guess else ():
            search = spec.unplanned(own, job.era, places) if spec.unplanned is not None else None
            if search is not None:
                self._searches.append(search)

    def begin(self) -> None:
        """Another reading."""
        for search in self._searches:
            search.begin()

    def at(self, at: tuple[int, ...], size: MessageSizeAt) -> Iterator[LaneSizes]:
        """Collectives that may begin with the messages numbered `at`, each size once."""
        yield from self._known
        told = set(self._known)
        for search in self._searches:
            for sends in search.at(lambda lane, n: self._whole(size, lane, at[lane], n)):
                sizes = tuple(tuple(self._pieces_of(lane)) for lane in sends)
                if sizes not in told:
                    told.add(sizes)
                    yield sizes

    def _pieces_of(self, sends: Sequence[int]) -> Iterator[int]:
        """Messages that they are, where queue pairs split them."""
        for size in sends:
            yield from (stop - start for start, stop in pieces(size, self._pieces))

    def _whole(self, size: MessageSizeAt, lane: int, at: int, send: int) -> int | None:
        """Wire bytes of a send; of one that queue pairs split, of all its pieces."""
        sizes = [size(lane, at + send * self._pieces + n) for n in range(self._pieces)]
        if NOT_ARRIVED in sizes:
            return NOT_ARRIVED
        known = [one for one in sizes if one is not None]
        return sum(known) if len(known) == len(sizes) else None
