"""Homes of messages: plans obeyed, deviations caught, limits counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from support.extraction import (
    FLOW,
    LL,
    PMTU_BYTES,
    SIMPLE,
    Bench,
    Packet,
    Send,
    bench,
    packets_of,
    plan_of,
)

from flowcheck.plane.extraction.flow_plan_install import PLAN_SUSPENDED
from flowcheck.plane.extraction.staged_snapshot import staged_snapshot_of
from flowcheck.plane.shared_memory.differing_copies import differences
from flowcheck.wire.training_job.connection_messages import SendKind

SIZE = 4096


def data(seed: int, size: int = SIZE) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8).tobytes()


def whole(seed: int, protocol: int = SIMPLE, size: int = SIZE) -> Send:
    return Send(data(seed, size), protocol, SendKind.FINAL, ((0, size, 0),))


def learn_flow(run: Bench, packet: Packet) -> None:
    run.run([packet])


def test_two_steps_fill_two_generations_and_a_third_waits_staged(shm: Path) -> None:
    sends = [whole(1), whole(2, LL), whole(3), whole(4)]
    packets = packets_of(sends)
    with bench(shm) as run:
        run.shard.begin(0, 1)
        run.shard.begin(1, 2)
        learn_flow(run, packets[0])
        each = [whole(0)]
        plan = plan_of([sends[0]], each=each)
        # Step 2 is LL here: of another size on the wire than the plan says.
        run.extractor.install_plan(plan)
        run.extractor.assign_staged()
        run.run(packets[1:])
        assert run.counters()["deviating_messages"] == 1
        assert run.staging.plans()["state"][0] == PLAN_SUSPENDED
        assert run.shard.gradient(0).tobytes() == sends[0].data
        assert run.shard.covered_bytes(1) == 0
        assert sorted(m.number for m in staged_snapshot_of(run.extractor).messages()) == [1, 2, 3]


def test_a_step_without_a_generation_is_staged_and_placed_when_one_is_free(shm: Path) -> None:
    sends = [whole(seed) for seed in range(4)]
    packets = packets_of(sends)
    with bench(shm) as run:
        run.shard.begin(0, 1)
        run.shard.begin(1, 2)
        learn_flow(run, packets[0])
        run.extractor.install_plan(plan_of(sends[:1], each=[whole(0)]))
        run.extractor.assign_staged()
        run.run(packets[1:])
        assert run.shard.finish(0) and run.shard.finish(1)
        assert [m.number for m in staged_snapshot_of(run.extractor).messages()] == [2, 3]
        for step in (3, 4):
            generation = (step - 1) % 2
            run.shard.apply(step - 2)
            run.shard.begin(generation, step)
            assert run.extractor.assign_staged() == 1
            assert run.shard.finish(generation)
            assert run.shard.gradient(generation).tobytes() == sends[step - 1].data
        assert run.staging.plans()["last_step"][0] == 4
        assert run.counters()["placed_bytes"] == 4 * SIZE


def test_bytes_that_come_again_are_compared_and_never_replaced(shm: Path) -> None:
    good, bad = [whole(1)], [whole(1)]
    changed = bytearray(good[0].data)
    changed[PMTU_BYTES + 5] ^= 1
    bad[0] = Send(bytes(changed), SIMPLE, SendKind.FINAL, good[0].segments)
    first, again = packets_of(good), packets_of(bad)
    with bench(shm) as run:
        run.shard.begin(0, 1)
        learn_flow(run, first[0])
        run.extractor.install_plan(plan_of(good))
        run.extractor.assign_staged()
        run.run(first[1:])
        run.run(again)
        assert run.shard.gradient(0).tobytes() == good[0].data
        assert run.counters()["conflict_bytes"] == 4
        assert run.counters()["duplicate_bytes"] == SIZE - 4
        assert run.shard.covered_bytes(0) == SIZE
        assert run.shard.conflict_bytes(0) == 4
        assert not run.shard.finish(0)


def test_copies_that_differed_while_staged_keep_their_step_from_being_whole(shm: Path) -> None:
    good = [whole(1)]
    changed = bytearray(good[0].data)
    changed[PMTU_BYTES + 5] ^= 1
    bad = [Send(bytes(changed), SIMPLE, SendKind.FINAL, good[0].segments)]
    with bench(shm) as run:
        run.run(packets_of(good))
        run.run(packets_of(bad))
        [staged] = staged_snapshot_of(run.extractor).messages()
        at = PMTU_BYTES + 5
        assert staged.conflicts == ((at, at + 1),)
        run.shard.begin(0, 1)
        run.extractor.install_plan(plan_of(good))
        assert run.extractor.assign_staged() == 1
        assert run.shard.gradient(0).tobytes() == good[0].data
        element = slice(PMTU_BYTES + 4, PMTU_BYTES + 8)
        [found] = differences(run.shard, 0).ranges
        assert (found.start, found.stop) == (element.start, element.stop)
        assert (found.first, found.later) == (good[0].data[element], bad[0].data[element])
        assert run.shard.conflict_bytes(0) == 4
        assert not run.shard.finish(0)
        run.shard.begin(0, 2)
        assert run.shard.conflict_bytes(0) == 0


def test_lines_with_a_wrong_flag_stay_missing_and_are_counted(shm: Path) -> None:
    send = whole(1, LL)
    packets = packets_of([send])
    # Line 2 of the second packet, its first flag; the ICRC is not checked twice.
    frame = bytearray(packets[1].frame)
    at = 14 + 20 + 8 + 12 + 2 * 16 + 4
    assert frame[at : at + 4] == (1).to_bytes(4, "little")
    frame[at] = 9
    packets[1] = Packet(0, PMTU_BYTES, PMTU_BYTES, bytes(frame))
    with bench(shm) as run:
        run.parser.close()
        run.parser = type(run.parser)(run.ring, run.flows, icrc_every=0)
        run.shard.begin(0, 1)
        learn_flow(run, packets[0])
        run.extractor.install_plan(plan_of([send]))
        run.extractor.assign_staged()
        run.run(packets[1:])
        begin = PMTU_BYTES // 2 + 2 * 8
        assert run.shard.missing(0) == ((begin, begin + 8),)
        assert run.counters()["flag_mismatch_lines"] == 1
        run.parser.close()


def test_message_before_the_plan_and_ignored_flows_cost_nothing(shm: Path) -> None:
    sends = [whole(1), whole(2)]
    packets = packets_of(sends)
    with bench(shm) as run:
        run.shard.begin(0, 1)
        learn_flow(run, packets[0])
        run.extractor.install_plan(plan_of(sends[1:], first_number=1))
        run.extractor.assign_staged()
        run.run(packets[1:])
        assert run.shard.gradient(0).tobytes() == sends[1].data
        run.run(packets_of([whole(3)], qp=8)[:1])
        run.extractor.ignore(1)
        assert run.extractor.assign_staged() == 1
        run.run(packets_of([whole(3)], qp=8)[1:])
        assert run.counters()["ignored_packets"] >= 15
        assert run.staging.handle.header.records_in_use == 0


def test_file_source_waits_for_room_and_a_live_one_drops_and_counts(shm: Path) -> None:
    packets = packets_of([whole(seed) for seed in range(8)])
    for live in (False, True):
        folder = shm / str(live)
        folder.mkdir()
        with bench(folder, records=3, live=live) as run:
            run.run(packets)
            staged = [m.number for m in staged_snapshot_of(run.extractor).messages()]
            assert staged == [0, 1, 2]
            assert run.extractor.stalled is not live
            assert run.ring.tail == (len(packets) if live else 3 * 16)
            assert run.counters()["staging_full_packets"] == (5 * 16 if live else 0)
            if not live:
                run.extractor.extract(100)
                assert run.ring.tail == 48
                run.extractor.ignore(0)
                assert run.extractor.assign_staged() == 3
                run.extractor.extract(1000)
                assert run.ring.tail == len(packets)


def test_released_room_is_used_again(shm: Path) -> None:
    with bench(shm, data_bytes=1 << 16, records=64) as run:
        for qp in range(100, 160):
            run.run(packets_of([whole(qp)], qp=qp))
            run.extractor.ignore(run.extractor.keys().index(run.extractor.keys()[-1]))
            assert run.extractor.assign_staged() == 1
        assert run.counters()["staging_full_packets"] == 0
        assert run.staging.handle.header.data_in_use == 0


def test_packets_before_their_message_wait_for_it(shm: Path) -> None:
    packets = packets_of([whole(1), whole(2)], immediate=False)
    late = packets[:3] + packets[17:] + packets[16:17] + packets[3:16]
    with bench(shm) as run:
        run.run(late[:10])
        assert run.staging.orphan_count == 7
        assert run.counters()["held_packets"] == 7
        run.run(late[10:])
        assert run.staging.orphan_count == 0
        assert [m.payload.tobytes() for m in staged_snapshot_of(run.extractor).messages()] == [
            data(1),
            data(2),
        ]
        assert run.staging.completions == 2


def test_more_orphans_than_fit_are_dropped_and_counted(shm: Path) -> None:
    packets = packets_of([whole(1), whole(2)], immediate=False)
    with bench(shm, held=4) as run:
        run.run(packets[:16] + packets[17:])
        assert run.staging.orphan_count == 4
        assert run.counters()["orphan_dropped_packets"] == 11


def test_staged_message_tells_its_gaps_and_shows_zero_there(shm: Path) -> None:
    packets = packets_of([whole(1)])
    with bench(shm) as run:
        run.run(packets[:2] + packets[5:9])
        [message] = staged_snapshot_of(run.extractor).messages()
        assert message.flow == FLOW
        assert message.missing == ((2 * PMTU_BYTES, 5 * PMTU_BYTES), (9 * PMTU_BYTES, SIZE))
        assert not message.payload[2 * PMTU_BYTES : 5 * PMTU_BYTES].any()
        assert message.payload[: 2 * PMTU_BYTES].tobytes() == data(1)[: 2 * PMTU_BYTES]
        assert run.staging.completions == 0
        run.run(packets)
        [message] = staged_snapshot_of(run.extractor).messages()
        assert run.staging.completions == 1 and message.complete and message.number == 0
