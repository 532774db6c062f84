"""Packets that wait for their message: who may have a place, and for how long."""

from __future__ import annotations

from pathlib import Path

from support.extraction import PMTU_BYTES, SIMPLE, Packet, Send, bench, packets_of, plan_of

from flowcheck.plane.extraction.flow_plan_install import PLAN_IGNORE
from flowcheck.wire.training_job.connection_messages import SendKind

STRANGER = 9
"""A queue pair that no plan follows."""


def final(size_bytes: int, at: int, fill: int) -> Send:
    return Send(bytes([fill]) * size_bytes, SIMPLE, SendKind.FINAL, ((0, size_bytes, at),))


def without_starts(count: int) -> list[Packet]:
    """Of so many messages of the stranger, all but the first packets."""
    sends = [final(3 * PMTU_BYTES, 0, n) for n in range(count)]
    return [p for p in packets_of(sends, qp=STRANGER, immediate=False) if p.offset]


def test_a_flow_that_is_ignored_gives_its_places_back_and_takes_no_more(shm: Path) -> None:
    with bench(shm, held=4) as run:
        waiting = without_starts(4)
        run.run(waiting[:4])
        assert run.staging.orphan_count == 4
        run.extractor.ignore(0)
        assert run.staging.orphan_count == 0
        assert int(run.staging.plans()["state"][0]) == PLAN_IGNORE
        run.run(waiting[4:])
        assert run.staging.orphan_count == 0
        assert run.counters()["ignored_packets"] == len(waiting)


def test_strangers_that_fill_all_places_cost_the_followed_flow_nothing(shm: Path) -> None:
    job = [final(3 * PMTU_BYTES, 0, 1), final(2 * PMTU_BYTES, 3 * PMTU_BYTES, 2)]
    packets = packets_of(job, immediate=False)
    with bench(shm, gradient_bytes=5 * PMTU_BYTES, held=4) as run:
        run.shard.begin(0, 1)
        run.run(packets[:1])
        assert run.extractor.install_plan(plan_of(job))
        run.run(without_starts(9))
        assert run.staging.orphan_count == 4
        run.run([packets[1], packets[2], packets[4], packets[3]])
        run.extractor.assign_staged()
        assert run.shard.missing(0) == ()
        counters = run.counters()
        assert counters["held_given_up_packets"] == 15  # 18 came, 3 of 4 places stayed theirs
        assert run.shard.gradient(0).tobytes() == b"".join(send.data for send in job)


def test_no_stranger_takes_the_place_of_a_followed_packet(shm: Path) -> None:
    job = [final(3 * PMTU_BYTES, 0, 1), final(3 * PMTU_BYTES, 3 * PMTU_BYTES, 2)]
    packets = packets_of(job, immediate=False)
    with bench(shm, gradient_bytes=6 * PMTU_BYTES, held=2) as run:
        run.shard.begin(0, 1)
        run.run(packets[:1])
        assert run.extractor.install_plan(plan_of(job))
        run.run(packets[4:6])
        run.run(without_starts(9))
        run.run(packets[1:4])
        run.extractor.assign_staged()
        assert run.shard.missing(0) == ()


def test_a_held_packet_of_another_size_is_none_of_its_message(shm: Path) -> None:
    """The last packet of a message that was told to be shorter than it is."""
    job = [final(2 * PMTU_BYTES, 0, 1)]
    longer = packets_of([final(3 * PMTU_BYTES, 0, 7)], immediate=False)
    shorter = packets_of([final(PMTU_BYTES + 40, 0, 7)], immediate=False)
    packets = packets_of(job, immediate=False)
    for wrong in (longer[2], shorter[1]):
        (shm / str(wrong.offset)).mkdir()
        with bench(shm / str(wrong.offset), gradient_bytes=2 * PMTU_BYTES) as run:
            run.shard.begin(0, 1)
            run.run([wrong])
            run.run(packets[:1])
            assert run.extractor.install_plan(plan_of(job))
            run.run(packets)
            run.extractor.assign_staged()
            data = run.shard.gradient(0)
            assert all(data[at] == 1 for at in range(len(data)) if run.covered()[at])
