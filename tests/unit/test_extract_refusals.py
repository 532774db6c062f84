"""What the extractor does not take: plans that contradict, files that do not belong together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.extraction import (
    SIMPLE,
    Bench,
    Packet,
    Send,
    bench,
    packets_of,
    plan_of,
)
from support.refused_as import Like, like, refused_as

from flowcheck.errors import RingError
from flowcheck.findings.catalog.extraction_refusals import (
    PLAN_SEGMENT_MISPLACED,
    PLAN_SEGMENTS_TOO_LONG,
    STAGING_OF_ANOTHER_TABLE,
)
from flowcheck.findings.catalog.shared_file_reasons import NOT_A_STAGING_FILE
from flowcheck.findings.catalog.shared_memory_files import DAMAGED
from flowcheck.plane.extraction.flow_plan_install import PLAN_ACTIVE
from flowcheck.plane.extraction.payload_extractor import Extractor
from flowcheck.plane.shared_memory.staging_file import Staging
from flowcheck.wire.training_job.connection_messages import SendKind

SIZE = 4096


def data(seed: int, size: int = SIZE) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8).tobytes()


def whole(seed: int, protocol: int = SIMPLE, size: int = SIZE) -> Send:
    return Send(data(seed, size), protocol, SendKind.FINAL, ((0, size, 0),))


def learn_flow(run: Bench, packet: Packet) -> None:
    run.run([packet])


@pytest.mark.parametrize(
    ("segments", "wanted"),
    [
        (((0, SIZE, 4),), like(PLAN_SEGMENT_MISPLACED, segment=0)),
        (((0, 8, 0), (4, 8, 16)), like(PLAN_SEGMENT_MISPLACED, segment=1)),
        (((0, 6, 0),), like(PLAN_SEGMENT_MISPLACED, segment=0)),
        (((4, SIZE, 0),), like(PLAN_SEGMENTS_TOO_LONG, end=SIZE + 4, bytes=SIZE)),
    ],
    ids=["beyond the gradient", "out of order", "between elements", "beyond the message"],
)
def test_plans_that_contradict_the_shard_are_refused(
    shm: Path, segments: tuple[tuple[int, int, int], ...], wanted: Like
) -> None:
    with bench(shm) as run:
        learn_flow(run, packets_of([whole(1)])[0])
        with refused_as(wanted, kind=RingError):
            run.extractor.install_plan(plan_of([Send(data(1), SIMPLE, SendKind.FINAL, segments)]))
        assert run.staging.plans()["state"][0] != PLAN_ACTIVE


def test_plan_of_a_flow_nobody_saw_waits(shm: Path) -> None:
    with bench(shm) as run:
        assert not run.extractor.install_plan(plan_of([whole(1)]))


def test_files_that_do_not_belong_together_are_refused(shm: Path) -> None:
    with bench(shm) as run:
        with (
            Staging.create(shm / "other", messages=64, data_bytes=1 << 16) as other,
            refused_as(STAGING_OF_ANOTHER_TABLE, kind=RingError, staging_messages=64),
        ):
            Extractor(run.ring, run.flows, other)
        (shm / "foreign").write_bytes(b"x" * 8192)
        with refused_as(DAMAGED, kind=RingError, error=like(NOT_A_STAGING_FILE)):
            Staging.open(shm / "foreign")


def altered(packet: Packet) -> Packet:
    """The same packet with another last payload byte; its ICRC is not looked at."""
    frame = bytearray(packet.frame)
    frame[-5] ^= 1
    return Packet(packet.number, packet.offset, packet.size, bytes(frame))


@pytest.mark.parametrize("planned", [True, False])
def test_copies_that_differ_before_their_message_is_known_keep_its_step_from_being_whole(
    shm: Path, planned: bool
) -> None:
    sends = [whole(1)]
    packets = packets_of(sends, immediate=False)
    with bench(shm) as run:
        run.parser.close()
        run.parser = type(run.parser)(run.ring, run.flows, icrc_every=0)
        run.shard.begin(0, 1)
        run.run([packets[3], altered(packets[3])])
        assert run.staging.orphan_count == 1
        if planned:
            run.extractor.install_plan(plan_of(sends))
        run.run(packets)
        if not planned:
            run.extractor.install_plan(plan_of(sends))
            run.extractor.assign_staged()
        assert run.shard.covered_bytes(0) == SIZE
        assert run.shard.conflict_bytes(0) == 256
        assert not run.shard.finish(0)
        run.parser.close()


def test_an_ignored_flow_gives_its_held_packets_back_and_no_more_are_kept(shm: Path) -> None:
    stranger = packets_of([whole(2)], qp=8, immediate=False)[1:]
    with bench(shm, held=20) as run:
        run.run(stranger)
        assert run.staging.orphan_count == len(stranger)
        run.extractor.ignore(0)
        assert run.staging.orphan_count == 0
        run.run(stranger)
        assert run.staging.orphan_count == 0
        assert run.counters()["orphan_dropped_packets"] == 0


def test_strangers_packets_make_room_for_those_of_a_followed_flow_and_never_take_it(
    shm: Path,
) -> None:
    sends = [whole(1)]
    packets = packets_of(sends, immediate=False)
    with bench(shm, held=4) as run:
        run.shard.begin(0, 1)
        run.feed([packets[1].frame])
        run.extractor.install_plan(plan_of(sends))
        run.run(packets_of([whole(2)], qp=8, immediate=False)[1:])
        assert {flow for flow, _, _ in run.staging.orphan_packets()} == {0, 1}
        run.run(packets[2:4])
        assert sum(flow == 0 for flow, _, _ in run.staging.orphan_packets()) == 3
        run.run(packets_of([whole(3)], qp=9, immediate=False)[1:])
        assert sum(flow == 0 for flow, _, _ in run.staging.orphan_packets()) == 3
        assert run.counters()["held_given_up_packets"] > 0
        run.run(packets[:1] + packets[4:])
        assert run.shard.finish(0)
        assert run.shard.gradient(0).tobytes() == sends[0].data
