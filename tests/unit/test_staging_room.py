"""Room to stage messages: who may reserve it, who gives way, and that what is free is one piece."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from support.extraction import (
    PMTU_BYTES,
    QP,
    SIMPLE,
    Bench,
    Send,
    bench,
    packets_of,
    plan_of,
)
from support.transport import FIRST, Packet

from flowcheck._core import lib
from flowcheck.plane.extraction.payload_extractor import Extractor
from flowcheck.plane.extraction.staged_snapshot import staged_snapshot_of
from flowcheck.wire.training_job.connection_messages import SendKind

ROOM_BYTES = 1 << 20


def final(size_bytes: int, fill: int) -> Send:
    return Send(bytes([fill]) * size_bytes, SIMPLE, SendKind.FINAL, ((0, size_bytes, 0),))


def claims(size_bytes: int) -> list[bytes]:
    """Firsts of strangers: each says how long its message is, and nothing more of it comes. So
    many that nothing is left, then shorter ones for what is left between them."""
    made = []
    while size_bytes > 2 * PMTU_BYTES:
        for _ in range(ROOM_BYTES // size_bytes + 1):
            qp = 0x900 + len(made)
            claim = Packet(FIRST, 0, bytes(PMTU_BYTES), 1, rkey=9, length=size_bytes, dest_qp=qp)
            made.append(claim.frame())
        size_bytes = size_bytes * 2 // 3
    return made[:1000]


def take(run: Bench, frames: list[bytes]) -> None:
    run.feed(frames)
    run.extractor.extract(run.ring.slots)


def release(run: Bench, orders: list[int]) -> None:
    """Gives back the staged messages of those positions, in that order."""
    records = run.staging.records()
    where = {int(r["message"]["position"]): n for n, r in enumerate(records) if r["state"] == 1}
    for order in orders:
        lib.fc_staged_release(run.extractor.handle, where[order])


def ends_exact(run: Bench, job: list[Send]) -> None:
    """Steps 1 and 2 are placed, 3 and 4 wait in staging until their generations are open."""
    for step, send in enumerate(job[2:], 3):
        generation = (step - 1) % 2
        assert run.shard.missing(generation) == (), step
        assert run.shard.gradient(generation).tobytes() == job[step - 3].data
        run.shard.apply(step - 2)
        run.shard.begin(generation, step)
        run.extractor.assign_staged()
        assert run.shard.missing(generation) == (), step
        assert run.shard.gradient(generation).tobytes() == send.data


@pytest.mark.parametrize("live", [False, True], ids=["file", "live"])
@pytest.mark.parametrize("size_bytes", [1 << 19, 1 << 18, 70_000, 3000])
@pytest.mark.parametrize("amid", [0, 1, 40, 90])
def test_claims_of_strangers_cost_a_followed_job_nothing(
    size_bytes: int, live: bool, amid: int, shm: Path
) -> None:
    """However many, however long, and wherever they come in between."""
    length = 32 * PMTU_BYTES
    job = [final(length, 10 + n) for n in range(4)]
    packets = [p.frame for p in packets_of(job, immediate=False)]
    with bench(shm, gradient_bytes=length, data_bytes=ROOM_BYTES, live=live, slots=8192) as run:
        run.shard.begin(0, 1)
        run.shard.begin(1, 2)
        take(run, packets[:1])
        assert run.extractor.install_plan(plan_of(job[:1], each=job[1:2]))
        run.extractor.assign_staged()
        made = claims(size_bytes)
        take(run, packets[1 : amid + 1])
        take(run, made)
        while run.extractor.stalled:
            run.extractor.unblock()
            run.extractor.extract(run.ring.slots)
        take(run, packets[amid + 1 :])
        assert not int(run.staging.plans()["deviating_number"][0]) + 1 - 2**64
        ends_exact(run, job)


@pytest.mark.parametrize("size_bytes", [1 << 19, 1 << 18])
def test_claims_do_not_keep_a_job_from_being_learned(size_bytes: int, shm: Path) -> None:
    """No flow has a plan: what was claimed and did not come gives way to what comes."""
    job = [final(8 * PMTU_BYTES, n) for n in range(100)]
    packets = [p.frame for p in packets_of(job, immediate=False)]
    with bench(shm, data_bytes=ROOM_BYTES, live=True) as run:
        take(run, packets[:80])
        take(run, claims(size_bytes))
        take(run, packets[80:])
        own = [m for m in staged_snapshot_of(run.extractor).messages() if m.flow.dest_qp == QP]
        assert [m.payload.tobytes() for m in own] == [send.data for send in job]
        assert all(m.complete for m in own)


def test_a_made_up_write_of_the_followed_flow_gives_way_too(shm: Path) -> None:
    """With a key that its connection never used, ahead of what comes next."""
    length = 32 * PMTU_BYTES
    job = [final(length, 10 + n) for n in range(4)]
    packets = [p.frame for p in packets_of(job, immediate=False)]
    with bench(shm, gradient_bytes=length, data_bytes=ROOM_BYTES, live=True) as run:
        run.shard.begin(0, 1)
        run.shard.begin(1, 2)
        take(run, packets[:1])
        assert run.extractor.install_plan(plan_of(job[:1], each=job[1:2]))
        run.extractor.assign_staged()
        take(run, packets[1:33])
        forged = [
            Packet(
                FIRST, n, bytes(PMTU_BYTES), va=1, rkey=n, length=ROOM_BYTES * 2 // 3, dest_qp=QP
            ).frame()
            for n in (4000, 9000, 14000)
        ]
        take(run, forged)
        take(run, packets[33:])
        ends_exact(run, job)


@pytest.mark.parametrize("turn", [1, -1], ids=["as sent", "last first"])
def test_what_was_given_back_is_one_piece_again(turn: int, shm: Path) -> None:
    """Many small messages, then one as long as nearly all of the room."""
    small = packets_of([final(40, n % 256) for n in range(900)], qp=1, immediate=False)
    with bench(shm, data_bytes=120_000, live=True, records=1000) as run:
        take(run, [p.frame for p in small[::turn]])
        held = [m.order for m in staged_snapshot_of(run.extractor).messages()]
        assert len(held) == 900
        Random(1).shuffle(held)
        release(run, held)
        assert run.staging.handle.header.data_in_use == 0
        large = packets_of([final(100_000, 5)], qp=2, immediate=False)
        take(run, [p.frame for p in large])
        assert [
            m.wire_bytes for m in staged_snapshot_of(run.extractor).messages() if m.complete
        ] == [100_000]
        assert run.counters()["staging_full_packets"] == 0


@pytest.mark.parametrize("seed", range(4))
def test_no_two_messages_share_a_byte(seed: int, shm: Path) -> None:
    """Messages of drawn sizes are staged and given back in drawn order, an extractor begins anew
    in between, and each reads as it was sent."""
    drawn = Random(seed)
    with bench(shm, data_bytes=300_000, live=True, records=1000, slots=8192) as run:
        sent: dict[int, bytes] = {}
        for turn in range(60):
            qp = 100 + turn
            jobs = [final(drawn.choice((8, 300, 3000, 20_000)), drawn.randrange(256))]
            jobs += [final(drawn.randrange(1, 6000), drawn.randrange(256)) for _ in range(3)]
            take(run, [p.frame for p in packets_of(jobs, qp=qp, immediate=False)])
            if turn % 7 == 3:
                run.extractor.close()
                run.extractor = Extractor(run.ring, run.flows, run.staging, run.shard, block=False)
            kept = staged_snapshot_of(run.extractor).messages()
            for m in kept:
                if m.flow.dest_qp == qp:
                    nth = m.first_psn - min(k.first_psn for k in kept if k.flow.dest_qp == qp)
                    sent.setdefault(m.order, jobs[order_of(jobs, nth)].data)
                assert m.complete and m.payload.tobytes() == sent[m.order]
            given = [m.order for m in kept if drawn.random() < 0.4]
            release(run, given)


def order_of(jobs: list[Send], psn: int) -> int:
    """Which of the messages begins at that PSN."""
    at = 0
    for n, send in enumerate(jobs):
        if at == psn:
            return n
        at += -(-len(send.data) // PMTU_BYTES)
    raise AssertionError(psn)


@pytest.mark.parametrize("length", [ROOM_BYTES - 64, ROOM_BYTES, 1 << 30, 1 << 31])
def test_nobody_waits_for_a_claim_that_is_larger_than_all_room(length: int, shm: Path) -> None:
    """A source that can wait would wait for ever."""
    job = [final(2 * PMTU_BYTES, 1)]
    claim = Packet(FIRST, 0, bytes(PMTU_BYTES), 1, rkey=9, length=length, dest_qp=0x900)
    with bench(shm, gradient_bytes=2 * PMTU_BYTES, data_bytes=ROOM_BYTES) as run:
        take(run, [claim.frame(), *(packet.frame for packet in packets_of(job))])
        assert not run.extractor.stalled
        assert run.counters()["seen_frames"] == 3
