"""A snapshot of what is staged: what it holds, and that it stays as it was while more comes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.extraction import LL, PMTU_BYTES, QP, SIMPLE, Send, bench, packets_of, plan_of

from flowcheck.plane.extraction.payload_extractor import place_staged_bytes
from flowcheck.plane.extraction.staged_snapshot import staged_snapshot_of
from flowcheck.wire.training_job.connection_messages import SendKind

SIZES = (1, 255, 256, 257, 4096, 5000, 256 * 64, 256 * 65 + 3)
"""Bytes of messages: of one packet, of whole packets, of one more than a word of the bitmap."""


def whole(seed: int, size: int, protocol: int = SIMPLE) -> Send:
    data = np.random.default_rng(seed).integers(0, 256, size, np.uint8).tobytes()
    return Send(data, protocol, SendKind.FINAL, ((0, size, 0),))


@pytest.mark.parametrize("seed", range(6))
def test_it_has_of_each_message_what_came_and_zeros_elsewhere(seed: int, shm: Path) -> None:
    chance = np.random.default_rng(seed)
    sends = [whole(size, size) for size in chance.permutation(SIZES)]
    packets = packets_of(sends)
    kept = [packet for packet in packets if chance.random() < 0.7 or packet.offset == 0]
    with bench(shm) as run:
        run.run(kept)
        found = {
            message.number: message for message in staged_snapshot_of(run.extractor).messages()
        }
        assert sorted(found) == list(range(len(sends)))
        for number, send in enumerate(sends):
            there = np.zeros(len(send.data), bool)
            for packet in (packet for packet in kept if packet.number == number):
                there[packet.offset : packet.offset + packet.size] = True
            want = np.where(there, np.frombuffer(send.data, np.uint8), 0)
            message = found[number]
            assert message.payload.tobytes() == want.astype(np.uint8).tobytes()
            missing = np.ones(len(send.data), bool)
            for start, stop in message.missing:
                missing[start:stop] = False
            assert np.array_equal(missing, there)
            assert message.complete == bool(there.all())


def test_what_comes_later_is_not_in_it(shm: Path) -> None:
    sends = [whole(1, 4096), whole(2, 4096), whole(3, 4096)]
    packets = packets_of(sends)
    with bench(shm) as run:
        run.run(packets[:20])
        seen = staged_snapshot_of(run.extractor)
        run.run(packets[20:])
        first, second = seen.messages()
        assert first.complete and first.payload.tobytes() == sends[0].data
        assert second.missing == ((4 * PMTU_BYTES, 4096),)
        assert second.payload.tobytes() == sends[1].data[: 4 * PMTU_BYTES].ljust(4096, b"\0")
        assert [m.complete for m in staged_snapshot_of(run.extractor).messages()] == [True] * 3


@pytest.mark.parametrize("later", [False, True])
def test_a_block_that_another_message_has_by_now_is_not_read(later: bool, shm: Path) -> None:
    """Its own message was placed while the snapshot was looked at."""
    sends = [whole(1, 4096), whole(2, 4096)]
    packets = packets_of(sends)
    with bench(shm) as run:
        run.run(packets[:4])
        seen = staged_snapshot_of(run.extractor)
        run.extractor.ignore(0)
        assert run.extractor.assign_staged() == 1
        if later:  # its record and its block, as they were freed last
            run.run(packets_of([whole(3, 4096)], qp=QP + 1, port=50001)[:4])
        [message] = seen.messages()
        assert message.missing == ((0, 4096),) and not message.payload.any()


def test_messages_of_some_flows_alone(shm: Path) -> None:
    one, other = packets_of([whole(1, 512)]), packets_of([whole(2, 512)], qp=QP + 1, port=50001)
    with bench(shm) as run:
        run.run(one + other)
        seen = staged_snapshot_of(run.extractor, only=[1])
        assert len(seen.keys) == 2, "its flows are all of the ring's"
        [message] = seen.messages()
        assert message.flow == seen.keys[1] and message.flow.dest_qp == QP + 1


@pytest.mark.parametrize("protocol", [SIMPLE, LL])
def test_staging_is_emptied_some_bytes_at_a_time_in_the_order_of_the_plan(
    protocol: int, shm: Path
) -> None:
    """The first message's start comes last, so that it is found last."""
    sends = [
        Send(whole(n, 1024).data, protocol, SendKind.FINAL, ((0, 1024, 1024 * n),))
        for n in range(4)
    ]
    packets = packets_of(sends)
    with bench(shm) as run:
        run.run([packet for packet in packets if packet.number] + packets[: len(packets) // 4])
        run.shard.begin(0, 1)
        run.extractor.install_plan(plan_of(sends), frontier=0)
        steps = []
        while True:
            moved, more = place_staged_bytes([run.extractor], {}, 1500)
            steps.append((moved, run.shard.covered_bytes(0)))
            if not more:
                break
        one = 1 if protocol == LL else 2  # a line of 16 bytes has 8 of data
        assert steps[0] == (one, one * 1024)
        assert sum(moved for moved, _ in steps) == 4
        assert run.shard.gradient(0).tobytes() == b"".join(send.data for send in sends)
        assert place_staged_bytes([run.extractor], {}, 1500) == (0, False)
