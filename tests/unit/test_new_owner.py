"""A queue pair that changes hands: nothing of the next owner lies in the last one's messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.transport import MIDDLE, Packet, parsed, parsing, write

from flowcheck._core import lib
from flowcheck.plane.flows import psn_missing


def payload(size: int, seed: int = 1) -> bytes:
    return bytes((seed * 37 + i * 11 + (i >> 8)) & 0xFF for i in range(size))


def frames(packets: list[Packet]) -> list[bytes]:
    return [packet.frame() for packet in packets]


OLD = write(payload(256 * 10), psn=0)
"""Packet 4 is lost: the hole that must not be filled by somebody else."""
HOLED = OLD[:4] + OLD[5:]
NEW = [replace(packet, rkey=99) for packet in write(payload(256 * 10, 9), psn=0)]


def corrupt(packet: Packet) -> bytes:
    frame = bytearray(packet.frame())
    frame[-1] ^= 1
    return bytes(frame)


def test_another_udp_port_does_not_fill_an_old_hole(shm: Path) -> None:
    new = [replace(packet, port=50001) for packet in NEW]
    with parsed(shm, frames([*HOLED, new[4], new[0], *new[1:]])) as run:
        assert run.mark(9).said == "doubtful" and run.mark(9).message == 0
        old, owner = run.table.flows()
        assert psn_missing(old) == 1 and owner["incarnation"] == 1
        assert [m.packets_seen for m in run.table.messages()] == [9, 10]


def test_nothing_without_an_address_is_placed_after_a_contradiction(shm: Path) -> None:
    sign = Packet(MIDDLE, 9, payload(256))  # the old message has its Last here
    with parsed(shm, frames([*HOLED, sign, NEW[4]])) as run:
        assert [run.mark(at).said for at in (9, 10)] == ["malformed", "doubtful"]
        assert next(run.table.messages()).packets_seen == 9
    # The first new owner's address takes over, even where an old hole is.
    gap = OLD + write(payload(600), psn=20)
    late = write(payload(600, 3), psn=13, rkey=99)
    with parsed(shm, frames([*gap, sign, *late])) as run:
        assert [int(flow["incarnation"]) for flow in run.table.flows()] == [0, 1]


def test_the_same_owner_goes_on_when_the_sign_was_a_stray(shm: Path) -> None:
    stray = Packet(MIDDLE, 9, payload(256))
    after = write(payload(1000, 2), psn=10, va=0x9000)
    with parsed(shm, frames([*OLD, stray, *after])) as run:
        assert run.counters()["incarnations"] == 0
        assert [m.packets_seen for m in run.table.messages()] == [10, 4]


def test_what_is_far_behind_is_not_placed(shm: Path) -> None:
    ahead = write(payload(600, 2), psn=70_000, va=0x9000)
    with parsed(shm, frames([*HOLED, *ahead, OLD[4]])) as run:
        assert run.mark(12).said == "doubtful"
        assert next(run.table.messages()).packets_seen == 9
    near = write(payload(600, 2), psn=60_000, va=0x9000)
    with parsed(shm, frames([*HOLED, *near, OLD[4]])) as run:
        assert next(run.table.messages()).packets_seen == 10


@pytest.mark.parametrize(("rest_s", "seen"), [(5, 10), (21, 9)])
def test_a_message_long_at_rest_is_not_added_to(rest_s: int, seen: int, shm: Path) -> None:
    with parsing(shm) as run:
        run.put(frames(HOLED))
        commit = run.ring.capture_commit()
        frame = OLD[4].frame()
        at = 1000 + rest_s * 10**9
        assert lib.fc_ring_put(run.ring.handle, 0, frame, len(frame), len(frame), at, 0) == 0
        lib.fc_ring_publish(run.ring.handle, 1, commit)
        run.parser.parse(99)
        assert next(run.table.messages()).packets_seen == seen


@pytest.mark.parametrize("every", [1, 1000])
def test_a_corrupt_address_does_not_end_an_owner(every: int, shm: Path) -> None:
    """The ICRC is sampled, yet what would open an incarnation is always checked."""
    with parsed(shm, [*frames(OLD), corrupt(NEW[0]), *frames(OLD[3:])], icrc_every=every) as run:
        assert run.mark(10).said == "icrc_bad"
        assert len(run.table.flows()) == 1 and run.counters()["incarnations"] == 0
        assert run.table.flows()[0]["icrc_bad_frames"] == 1
        assert run.verdicts()["write"] == 17
    with parsed(shm, frames([*OLD, *NEW]), icrc_every=every) as run:
        assert run.counters()["incarnations"] == 1
    stray = corrupt(Packet(MIDDLE, 9, payload(256)))
    with parsed(shm, [*frames(HOLED), stray, *frames(OLD[4:5])], icrc_every=every) as run:
        assert next(run.table.messages()).packets_seen == 10, "no sign of anybody new"
