"""The ICRC that the copy into a slot found right: of which bytes, and when the parser believes it.

Judged by fc_parse_frame_verdict(), which knows nothing of slots, and by frames made by hand.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.transport import FIRST, ONLY, Packet, Run, parsing

from flowcheck._core import ffi, lib
from flowcheck.plane.shared_memory.packet_counters import VERDICTS

LONG = Packet(FIRST, 5, bytes(range(256)) * 4, length=2048).frame()
LONG_6 = Packet(FIRST, 6, bytes(2048), length=4096, source="::1", destination="::2").frame()
SHORT = Packet(ONLY, 7, b"1234", length=4).frame()
TAG = b"\x81\x00\x00\x07"


def tagged(frame: bytes, tags: int = 1) -> bytes:
    return frame[:12] + TAG * tags + frame[12:]


def in_vxlan(frame: bytes) -> bytes:
    """UDP port 4789, RFC 7348."""
    outer = bytearray(Packet(ONLY, 0, bytes(len(frame) + 8 - 32), length=1).frame())
    at = 14 + 20 + 8
    outer[36:38] = (4789).to_bytes(2, "big")
    return bytes(outer[:at]) + b"\x08\0\0\0\0\0\x05\0" + frame


def broken(frame: bytes, at: int = -1) -> bytes:
    copy = bytearray(frame)
    copy[at] ^= 0x40
    return bytes(copy)


def note(run: Run, position: int) -> tuple[int, int]:
    slot = lib.fc_ring_at(run.ring.handle, position)
    return int(slot.icrc_l3_at), int(slot.icrc_after)


def verdicts(run: Run) -> list[str]:
    while run.parser.parse(7):
        continue
    return [VERDICTS[run.mark(position).verdict] for position in range(run.ring.parsed)]


def alone(frame: bytes) -> str:
    packet = ffi.new("struct fc_packet *")
    return VERDICTS[lib.fc_parse_frame_verdict(frame, len(frame), len(frame), packet)]


@pytest.mark.parametrize("frame", [LONG, LONG_6, SHORT], ids=["IPv4", "IPv6", "short"])
def test_what_the_copy_found_right_names_its_bytes(shm: Path, frame: bytes) -> None:
    frames = [frame, frame + b"fcs!", tagged(frame), tagged(frame, 2), broken(frame)]
    frames += [broken(frame, 70), frame + bytes(256), tagged(frame, 3), in_vxlan(frame)]
    with parsing(shm, slots=16) as run:
        run.put(frames)
        said = [note(run, position) for position in range(len(frames))]
        assert said == [(14, 0), (14, 4), (18, 0), (22, 0), *[(0, 0)] * 5]
        assert verdicts(run) == [alone(frame) for frame in frames]
        assert run.counters()["icrc_bad_frames"] == 2
        assert run.counters()["icrc_checked_frames"] == len(frames)


@pytest.mark.parametrize("every", [0, 1, 3])
def test_it_looks_at_the_slots_that_the_parser_checks(shm: Path, every: int) -> None:
    with parsing(shm, slots=16, icrc_every=every) as run:
        run.put([LONG] * 12)
        wanted = [every and position % every == 0 for position in range(12)]
        assert [note(run, position) == (14, 0) for position in range(12)] == wanted


def test_a_note_of_the_lap_before_is_gone(shm: Path) -> None:
    with parsing(shm, slots=4) as run:
        run.put([LONG] * 4)
        assert verdicts(run) == ["write"] * 4
        run.ring.release(4)
        run.put([broken(LONG), broken(SHORT), b"", LONG[:70]])
        run.parser.parse(4)
        assert [note(run, position) for position in range(4, 8)] == [(0, 0)] * 4
        found = [VERDICTS[run.mark(position).verdict] for position in range(4, 8)]
        assert found == [alone(f) for f in (broken(LONG), broken(SHORT), b"", LONG[:70])]


@pytest.mark.parametrize("noted", [(18, 0), (14, 1), (14, 4), (15, 0), (255, 255)])
def test_a_note_of_other_bytes_is_not_believed(shm: Path, noted: tuple[int, int]) -> None:
    with parsing(shm, slots=4) as run:
        run.put([broken(LONG, 100), LONG])
        for position in range(2):
            slot = lib.fc_ring_at(run.ring.handle, position)
            slot.icrc_l3_at, slot.icrc_after = noted
        assert verdicts(run) == ["icrc_bad", "write"]


def test_frames_changed_anywhere_get_the_verdict_they_get_alone(shm: Path) -> None:
    chance = random.Random(7)
    kinds = [LONG, LONG_6, SHORT, tagged(LONG), tagged(LONG_6, 2), in_vxlan(LONG), LONG + b"fcs!"]
    frames = [changed(chance, chance.choice(kinds)) for _ in range(4000)]
    with parsing(shm, slots=4096) as run:
        run.put(frames)
        found = verdicts(run)
        bad = [position for position, said in enumerate(found) if said == "icrc_bad"]
        assert bad == [n for n, frame in enumerate(frames) if alone(frame) == "icrc_bad"]
        # Both ways to judge were taken.
        assert 400 < sum(note(run, n) != (0, 0) for n in range(len(frames))) < 3600


def changed(chance: random.Random, frame: bytes) -> bytes:
    """Perhaps cut, perhaps longer, perhaps with a few other bytes, most of them in its headers."""
    kept = bytearray(frame)
    for _ in range(chance.choice((0, 0, 0, 1, 1, 2))):
        kept[chance.randrange(chance.choice((min(80, len(kept)), len(kept))))] = chance.randrange(
            256
        )
    return lengthened(chance, bytes(kept))


def lengthened(chance: random.Random, frame: bytes) -> bytes:
    choices: Sequence[bytes] = (frame, frame, frame, frame + b"\0\0", frame[: -chance.randrange(9)])
    return chance.choice(choices)
