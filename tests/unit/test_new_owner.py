"""A queue pair that changes hands: nothing of the next owner lies in the last one's messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.transport import MIDDLE, Packet, parsed, parsing, write
from support.writes import frames, little, payload

from flowcheck._core import lib
from flowcheck.plane.shared_memory.flow_table import flow_key, psn_missing

OLD = write(payload(256 * 10), psn=0)
"""Packet 4 is lost: the hole that must not be filled by somebody else."""
HOLED = OLD[:4] + OLD[5:]
NEW = [replace(packet, rkey=99) for packet in write(payload(256 * 10, 9), psn=0)]


LEAP_BYTES = 256 * 16
"""As many packets as an owner sends far from where it was until it is believed to go on there."""


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
    ahead = [
        *write(payload(LEAP_BYTES), psn=70_000 - 16),
        *write(payload(600, 2), psn=70_000, va=9),
    ]
    with parsed(shm, frames([*HOLED, *ahead, OLD[4]])) as run:
        assert run.mark(28).said == "doubtful"
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


CHANGES = {
    "rkey": {"rkey": 99},
    "address": {"va": 0x9000},
    "length": {"payload": payload(700)},
    "first bytes": {"payload": b"x" * 600},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_key_that_comes_back_with_something_else_is_a_new_flow(change: str, shm: Path) -> None:
    told = {"payload": payload(600), "rkey": 7, "va": 0x1000}
    old = write(**told, psn=0) + write(payload(600, 5), psn=3)
    new = write(**{**told, **CHANGES[change]}, psn=0)
    with parsed(shm, frames(old + new)) as run:
        first, second = run.table.flows()
        assert (first["retired"], second["retired"]) == (1, 0)
        assert (flow_key(first).incarnation, flow_key(second).incarnation) == (0, 1)
        assert not any(mark.again for mark in run.marks())
        assert [mark.flow for mark in run.marks()] == [0] * 6 + [1] * len(new)
        message = run.table.message(3)
        assert message.flags & lib.FC_MESSAGE_COUNTED and message.number == 0
        assert run.counters()["incarnations"] == 1


def test_going_back_n_is_never_a_new_owner(shm: Path) -> None:
    sends = [write(payload(700, n), psn=3 * n, va=0x1000 + (n % 4) * 0x1000) for n in range(9)]
    sent = [p for send in sends for p in send]
    order = sent[:20] + sent[4:24] + sent[2:]
    with parsed(shm, frames(order)) as run:
        assert run.counters()["incarnations"] == 0
        assert run.verdicts() == {"write": len(order)}
        assert len(run.table.flows()) == 1 and run.table.newest_message == 9


def test_a_far_psn_is_a_new_flow_only_at_a_fresh_start_with_a_key_never_used(
    shm: Path,
) -> None:
    old, far = write(payload(600), psn=0), 0x400000
    late = write(payload(600), psn=0xC00000)
    with parsed(shm, frames(late + write(payload(600), psn=0, rkey=8))) as run:
        assert [int(f["incarnation"]) for f in run.table.flows()] == [0, 1]
        assert psn_missing(run.table.flows()[0]) == 0
    with parsed(shm, frames(late + write(payload(600), psn=0, va=5))) as run:
        assert len(run.table.flows()) == 1
    # A capture that paused while the next protocol, with a key of its own, began.
    for there in ({"rkey": 8}, {"va": 5}):
        leap = write(payload(LEAP_BYTES), psn=far - 16, **there)
        with parsed(shm, frames(old + leap + write(payload(600), psn=far, **there))) as run:
            [flow] = run.table.flows()
            assert psn_missing(flow) == far - 3
            assert [m.packets_seen for m in run.table.messages()] == [3, 3]

    stray = Packet(MIDDLE, far, payload(256))
    with parsed(shm, frames([*old, stray, *write(payload(256), psn=3)])) as run:
        assert run.verdicts() == {"write": 4, "orphan": 1}
        assert psn_missing(run.table.flows()[0]) == 0


@pytest.mark.parametrize("far", [70_000, 0x400000, 0x7FFF00, 0x800100, 0xFE0000])
@pytest.mark.parametrize("count", [1, 3, 15])
@pytest.mark.parametrize("rkey", [7, 8])
def test_a_few_packets_far_away_cost_a_sender_nothing(
    shm: Path, far: int, count: int, rkey: int
) -> None:
    old = write(payload(600), psn=70_000) + write(payload(600), psn=70_003, va=0x5000)
    made_up = [
        write(payload(100), psn=(70_003 + far + n) % 2**24, va=9, rkey=rkey)[0]
        for n in range(count)
    ]
    with parsed(shm, frames([*old[:3], *made_up, *old[3:]])) as run:
        flow = run.table.flows()[0]
        assert psn_missing(flow) == 0
        own = [m for m in run.table.messages() if m.flow == 0]
        assert [(m.packets_seen, m.packets) for m in own] == [(3, 3), (3, 3)]
        assert len({m.run_psn for m in own}) == 1


def test_a_late_start_with_a_key_of_its_own_is_not_a_new_owner(shm: Path) -> None:
    data = payload(1025, 6)
    packets = write(data, psn=0, pmtu=512, immediate=little(1025))
    with parsed(shm, frames([packets[1], packets[2], packets[0]])) as run:
        assert run.counters()["incarnations"] == 0
        assert run.table.message(1).packets_seen == 3
        assert run.verdicts() == {"orphan": 1, "write": 2}
