"""Faults of frames, applied to captures frame by frame."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from support.faults import forged
from support.faults.forged import Header, header_of
from support.faults.schedule import DOUBTS, LOSSES, FrameFault
from support.netib.encapsulation import wrap

Claim = tuple[bytes, int, int]
"""(destination address, queue pair, PSN): two frames with one claim contend for a place."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a capture, without what a mirror puts about it."""

    at_us: int
    data: bytes
    forged: bool = False
    """Nobody of the job sent it."""
    spoiled: bool = False
    """It does not arrive as it was sent."""
    wire_bytes: int = 0
    """Where the capture holds less than the frame was; 0: it holds all."""

    @property
    def header(self) -> Header | None:
        return header_of(self.data)

    @property
    def claim(self) -> Claim | None:
        header = self.header
        return (header.destination.ip, header.qp, header.psn) if header is not None else None


def read(path: Path) -> list[Frame]:
    """A pcap of microseconds, little-endian."""
    raw = path.read_bytes()
    assert raw[:4] == b"\xd4\xc3\xb2\xa1"
    frames, at = [], 24
    while at < len(raw):
        seconds, part, kept, _ = struct.unpack_from("<IIII", raw, at)
        frames.append(Frame(seconds * 1_000_000 + part, raw[at + 16 : at + 16 + kept]))
        at += 16 + kept
    return frames


def write(path: Path, frames: Sequence[Frame], kind: str) -> None:
    """kind: of the mirror's encapsulation."""
    with path.open("wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for number, frame in enumerate(frames):
            data = wrap(kind, frame.data, number)
            size = len(data) + max(0, frame.wire_bytes - len(frame.data))
            seconds, part = divmod(frame.at_us, 1_000_000)
            out.write(struct.pack("<IIII", seconds % 2**32, part, len(data), size) + data)


def disturbed(frames: list[Frame], faults: Sequence[FrameFault]) -> list[Frame]:
    """What is captured of a job's frames. What is forged goes first, so that it refers to frames
    as they were sent; a forged packet whose true one does not arrive is left out, for then nobody
    could tell which of the two is true."""
    sent = {frame.claim for frame in frames}
    for fault in sorted(faults, key=_rank):
        if all(frame.header is None for frame in frames):
            break  # nothing is left to be disturbed
        frames = FAULTS[fault.kind](frames, fault, random.Random(fault.seed))
    arrived = {frame.claim for frame in frames if not frame.forged and not frame.spoiled}
    return [f for f in frames if not f.forged or f.claim not in sent or f.claim in arrived]


def _rank(fault: FrameFault) -> int:
    if fault.kind in DOUBTS:
        return 0
    if fault.kind in LOSSES:
        return 1
    return 3 if fault.kind.startswith("clock") else 2


def _place(frames: Sequence[Frame], at: float) -> int:
    return min(len(frames) - 1, int(at * len(frames)))


def _writes(frames: Sequence[Frame], *, begins: bool = False) -> list[int]:
    """Indices of the job's own RDMA writes that carry something."""
    found = []
    for at, frame in enumerate(frames):
        header = None if frame.forged or frame.spoiled else frame.header
        if header is None or not header.payload:
            continue
        if header.writes and (not begins or header.begins):
            found.append(at)
    return found


def _picked(among: list[int], frames: Sequence[Frame], fault: FrameFault) -> list[int]:
    """`count` of the indices in a row, from the place of the fault on."""
    begin = _place(frames, fault.at)
    behind = [at for at in among if at >= begin]
    return (behind or among)[: fault.count]


def _lose(frames: list[Frame], fault: FrameFault, _: random.Random) -> list[Frame]:
    gone = set(_picked(_writes(frames), frames, fault))
    return [frame for at, frame in enumerate(frames) if at not in gone]


def _lose_firsts(frames: list[Frame], fault: FrameFault, _: random.Random) -> list[Frame]:
    gone = set(_picked(_writes(frames, begins=True), frames, fault))
    return [frame for at, frame in enumerate(frames) if at not in gone]


def _damage(frames: list[Frame], fault: FrameFault, dice: random.Random) -> list[Frame]:
    for at in _picked(_writes(frames), frames, fault):
        data = bytearray(frames[at].data)
        data[dice.randrange(42, len(data))] ^= 1 << dice.randrange(8)
        frames[at] = replace(frames[at], data=bytes(data), spoiled=True)
    return frames


def _shorten(frames: list[Frame], fault: FrameFault, dice: random.Random) -> list[Frame]:
    for at in _picked(_writes(frames), frames, fault):
        data = frames[at].data
        kept = data[: dice.randrange(20, len(data))]
        frames[at] = replace(frames[at], data=kept, spoiled=True, wire_bytes=len(data))
    return frames


def _cut_head(frames: list[Frame], fault: FrameFault, _: random.Random) -> list[Frame]:
    return frames[_place(frames, fault.at) :]


def _cut_tail(frames: list[Frame], fault: FrameFault, _: random.Random) -> list[Frame]:
    return frames[: max(1, _place(frames, fault.at))]


def _inserted(frames: list[Frame], new: Sequence[tuple[int, Frame]]) -> list[Frame]:
    """Each new frame before the one that has its index, with its time."""
    last = len(frames) - 1
    before: dict[int, list[Frame]] = {}
    for at, frame in new:
        place = max(0, min(at, last))
        before.setdefault(place, []).append(replace(frame, at_us=frames[place].at_us))
    return [each for at, frame in enumerate(frames) for each in (*before.get(at, ()), frame)]


def _repeat(frames: list[Frame], fault: FrameFault, dice: random.Random) -> list[Frame]:
    picked = _picked(list(range(len(frames))), frames, fault)
    return _inserted(
        frames, [(at + 1 + dice.randint(0, max(1, fault.reach)), frames[at]) for at in picked]
    )


def _differ(frames: list[Frame], fault: FrameFault, dice: random.Random) -> list[Frame]:
    new = []
    for at in _picked(_writes(frames), frames, fault):
        header = frames[at].header
        assert header is not None
        copy = Frame(0, forged.altered(header, dice), forged=True)
        new.append((at + dice.randint(-fault.reach, fault.reach + 1), copy))
    return _inserted(frames, new)


def _reorder(frames: list[Frame], fault: FrameFault, dice: random.Random) -> list[Frame]:
    order = sorted(range(len(frames)), key=lambda at: at + dice.uniform(0, fault.reach))
    return [frames[at] for at in order]


def _delay(frames: list[Frame], fault: FrameFault, dice: random.Random) -> list[Frame]:
    late = {
        at: at + dice.randint(1, max(1, fault.reach)) + 0.5
        for at in _picked(_writes(frames, begins=True), frames, fault)
    }
    order = sorted(range(len(frames)), key=lambda at: late.get(at, at))
    return [frames[at] for at in order]


def _scattered(
    frames: list[Frame], fault: FrameFault, new: Sequence[bytes], dice: random.Random
) -> list[Frame]:
    """New frames in their order, from the place of the fault on, between those of the job."""
    begin = _place(frames, fault.at)
    width = min(len(frames) - begin, dice.choice((1, len(new), 3 * len(new), len(frames))))
    places = sorted(begin + dice.randrange(max(1, width)) for _ in new)
    made = [Frame(0, data, forged=True) for data in new]
    return _inserted(frames, list(zip(places, made, strict=True)))


def _strangers(frames: list[Frame], fault: FrameFault, dice: random.Random) -> list[Frame]:
    return _scattered(frames, fault, forged.transfers(_some(frames), fault.count, dice), dice)


def _acknowledgements(frames: list[Frame], fault: FrameFault, dice: random.Random) -> list[Frame]:
    new = forged.acknowledgements(_some(frames), fault.count, dice)
    return _scattered(frames, fault, new, dice)


def _sends(frames: list[Frame], fault: FrameFault, dice: random.Random) -> list[Frame]:
    return _scattered(frames, fault, forged.sends(_some(frames), fault.count, dice), dice)


def _numbered(
    frames: list[Frame], fault: FrameFault, dice: random.Random, ahead: bool
) -> list[Frame]:
    begin = _place(frames, fault.at)
    writes = _writes(frames)
    near = [at for at in writes if at >= begin] or writes
    new = []
    for _ in range(fault.count):
        at = dice.choice(near[: 3 * fault.count])
        header = frames[at].header
        assert header is not None
        far = dice.choice((1, 2, 5, 40, 1000, 1 << 20, (1 << 23) - 2))
        psn = header.psn + (far if ahead else -far)
        new.append((at, Frame(0, forged.numbered(header, psn % 2**24, dice), forged=True)))
    return _inserted(frames, new)


def _forge_old(frames: list[Frame], fault: FrameFault, dice: random.Random) -> list[Frame]:
    return _numbered(frames, fault, dice, ahead=False)


def _forge_ahead(frames: list[Frame], fault: FrameFault, dice: random.Random) -> list[Frame]:
    return _numbered(frames, fault, dice, ahead=True)


def _forge_owner(frames: list[Frame], fault: FrameFault, dice: random.Random) -> list[Frame]:
    writes = _writes(frames)
    begin = _place(frames, fault.at)
    header = frames[next((at for at in writes if at >= begin), writes[-1])].header
    assert header is not None
    return _scattered(frames, fault, forged.owner(header, fault.count, dice), dice)


def _clock_back(frames: list[Frame], fault: FrameFault, _: random.Random) -> list[Frame]:
    return _shifted(frames, fault, -fault.reach)


def _clock_forth(frames: list[Frame], fault: FrameFault, _: random.Random) -> list[Frame]:
    return _shifted(frames, fault, fault.reach)


def _shifted(frames: list[Frame], fault: FrameFault, seconds: int) -> list[Frame]:
    begin, by_us = _place(frames, fault.at), seconds * 1_000_000
    return [
        replace(frame, at_us=frame.at_us + by_us) if at >= begin else frame
        for at, frame in enumerate(frames)
    ]


def _clock_stands(frames: list[Frame], _: FrameFault, __: random.Random) -> list[Frame]:
    return [replace(frame, at_us=frames[0].at_us) for frame in frames]


def _some(frames: Sequence[Frame]) -> Header:
    """Of any frame of the job's: whose addresses strangers share a port with."""
    return next(header for frame in frames if (header := frame.header) is not None)


Apply = Callable[[list[Frame], FrameFault, random.Random], list[Frame]]
FAULTS: dict[str, Apply] = {
    "lose": _lose,
    "lose firsts": _lose_firsts,
    "damage": _damage,
    "shorten": _shorten,
    "cut head": _cut_head,
    "cut tail": _cut_tail,
    "repeat": _repeat,
    "differ": _differ,
    "reorder": _reorder,
    "delay": _delay,
    "strangers": _strangers,
    "acknowledgements": _acknowledgements,
    "sends": _sends,
    "forge old": _forge_old,
    "forge ahead": _forge_ahead,
    "forge owner": _forge_owner,
    "clock back": _clock_back,
    "clock forth": _clock_forth,
    "clock stands": _clock_stands,
}
