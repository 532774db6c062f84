"""Two packets claim one place with different bytes: no step that holds either is told complete."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from support.extraction import (
    PMTU_BYTES,
    QP,
    RECEIVER,
    SENDER,
    SIMPLE,
    Bench,
    Packet,
    Send,
    bench,
    packets_of,
    plan_of,
)  # fmt: skip

from flowcheck._core import ffi, lib
from flowcheck.lab.synthetic_traffic.roce_frames import frame, write_packets
from flowcheck.wire.training_job.connection_messages import SendKind

LENGTHS = (3 * PMTU_BYTES, PMTU_BYTES, 2 * PMTU_BYTES, 40)
HOUR_NS = 3_600_000_000_000
Timed = tuple[bytes, int]
"""A frame, and when it was captured."""


def job(fill: int = 1) -> list[Send]:
    begins = itertools.accumulate(LENGTHS, initial=0)
    return [
        Send(bytes([fill + n]) * size, SIMPLE, SendKind.FINAL, ((0, size, at),))
        for n, (size, at) in enumerate(zip(LENGTHS, begins, strict=False))
    ]


PACKETS, COPIES = packets_of(job()), packets_of(job(101))
"""Each of COPIES is what another one would have sent in the place of one of PACKETS."""


def runs(frames: Iterable[Packet]) -> list[Timed]:
    return [(packet.frame, 1) for packet in frames]


def inserted(nth: int, at: int) -> list[Packet]:
    return [*PACKETS[:at], COPIES[nth], *PACKETS[at:]]


def ran(run: Bench, frames: Iterable[Timed]) -> None:
    commit = run.ring.capture_commit()
    for one, at_ns in frames:
        code = lib.fc_ring_put(
            run.ring.handle, 0, ffi.from_buffer(one), len(one), len(one), at_ns, 0
        )
        assert code == 0
        lib.fc_ring_publish(run.ring.handle, 1, commit)
    run.parser.parse(run.ring.slots)
    run.extractor.extract(run.ring.slots)


def told_exact(folder: Path, frames: Sequence[Timed], planned_at: int = 1) -> bool:
    """Whether the step is complete, in which case it holds what was sent. planned_at: how many of
    the frames come before the plan, and are staged."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = b"".join(send.data for send in job())
    with bench(folder, gradient_bytes=len(whole)) as run:
        run.shard.begin(0, 1)
        ran(run, frames[:planned_at])
        assert run.extractor.install_plan(plan_of(job()))
        ran(run, frames[planned_at:])
        run.extractor.assign_staged()
        exact = not run.shard.missing(0) and not run.shard.conflict_bytes(0)
        if exact:
            assert run.shard.gradient(0).tobytes() == whole
    for left in folder.iterdir():
        left.unlink()
    return exact


def every_insertion() -> Iterator[tuple[int, int]]:
    return itertools.product(range(len(COPIES)), range(len(PACKETS) + 1))


def test_without_a_copy_the_step_is_exact(shm: Path) -> None:
    for planned_at in (1, len(PACKETS)):
        assert told_exact(shm / "run", runs(PACKETS), planned_at)


@pytest.mark.parametrize("rested", [False, True])
def test_a_copy_that_differs_is_never_believed(shm: Path, rested: bool) -> None:
    """Wherever it comes; rested: time stamps jump by an hour behind it, as if its sender had long
    ended."""
    for nth, at in every_insertion():
        frames = runs(inserted(nth, at))
        if rested:
            frames = [(one, 1 + HOUR_NS * (n > at)) for n, (one, _) in enumerate(frames)]
        for planned_at in (1, 4, len(frames)):
            told = told_exact(shm / "run", frames, planned_at)
            assert not told, (nth, at, planned_at)


def test_two_copies_that_differ_are_never_believed(shm: Path) -> None:
    """As the first of one message and a later packet of it or another one."""
    for one, other in itertools.combinations(range(len(COPIES)), 2):
        for at, behind in ((0, 0), (0, 2), (one, other), (one + 1, other + 2), (len(PACKETS), 0)):
            frames = inserted(one, at)
            frames.insert(min(behind, len(frames)), COPIES[other])
            assert not told_exact(shm / "run", runs(frames)), (one, other, at, behind)


def test_a_whole_other_message_in_the_place_of_one_is_never_believed(shm: Path) -> None:
    """All copies of a message together: before, amid and behind the true one."""
    for number, at in itertools.product(range(len(LENGTHS)), range(len(PACKETS) + 1)):
        own = [copy for copy in COPIES if copy.number == number]
        frames = runs([*PACKETS[:at], *own, *PACKETS[at:]])
        assert not told_exact(shm / "run", frames), (number, at)


CLAIMS = [(10, 3), (10, 8), (9, 3), (5, 8), (8, 8), (11, 2)]


@pytest.mark.parametrize(
    ("first", "packets", "middle"),
    [
        pytest.param(*claim, middle, marks=[pytest.mark.nightly] * ((number + middle) % 4 > 0))
        for number, claim in enumerate(CLAIMS)
        for middle in (10, 11, 12, 13)
    ],
)
def test_what_another_owner_takes_is_compared_too(
    first: int, packets: int, middle: int, shm: Path
) -> None:
    """A made-up owner with a key of its own gets the true packet, the followed one the made-up."""
    size = 8 * PMTU_BYTES
    sends = [
        Send(bytes([n + 1]) * size, SIMPLE, SendKind.FINAL, ((0, size, n * size),))
        for n in range(4)
    ]
    whole = b"".join(send.data for send in sends)
    true = [packet.frame for packet in packets_of(sends)]
    claim = write_packets(
        bytes(packets * PMTU_BYTES),
        **{"dest_qp": QP, "psn": first, "va": 9, "rkey": 77},
        **{"pmtu_bytes": PMTU_BYTES, "immediate": None},
    )[0]
    wrong = packets_of([Send(bytes([99]) * 4 * size, SIMPLE, SendKind.FINAL, ())])[middle].frame
    again = frame(SENDER, RECEIVER, 50000, claim)
    for at in range(9, 14):
        for forged in (
            [again, wrong, again],
            [again, wrong],
            [wrong, again],
            [again, again, wrong],
        ):
            folder = shm / "run"
            folder.mkdir(exist_ok=True)
            with bench(folder, gradient_bytes=len(whole)) as run:
                run.shard.begin(0, 1)
                ran(run, [(true[0], 1)])
                assert run.extractor.install_plan(plan_of(sends))
                ran(run, [(one, 1) for one in [*true[1:at], *forged, *true[at:]]])
                run.extractor.assign_staged()
                exact = not run.shard.missing(0) and not run.shard.conflict_bytes(0)
                assert not exact or run.shard.gradient(0).tobytes() == whole, (at, forged)
            for left in folder.iterdir():
                left.unlink()
