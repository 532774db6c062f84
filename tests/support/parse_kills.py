"""A parser killed before every one of its stores, in many small scenes.

`python -m support.parse_kills SCENE,... [SECOND_KILLS [EVERY]]` on a build of support.kill_points:
a scene's frames lie in a ring; parsing them is done once undisturbed, and once more for every store
it makes, killed there and begun anew. Marks, flows, messages and counters must come out alike; and
who reads at the instant of a kill finds what was committed, as it will stay.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from support import kill_points
from support.kill_points import reordered
from support.transport import ACK, FIRST, MIDDLE, ONLY, READ_REQUEST, Packet, Run, parsing
from support.transport import send as sent
from support.transport import write as written
from support.writes import little, payload

from flowcheck._core import ffi, lib
from flowcheck.plane.extraction.packet_parser import Parser
from flowcheck.plane.shared_memory.packet_counters import counter_values

FOREIGN = b"\xee" * 256
FATAL = 0x62
"""Syndrome of a NAK that puts the queue pair in error (IB 9.7.5.2.8: remote access error)."""


@dataclass(frozen=True)
class Scene:
    """packets: what the parser finds; before: what one before it parsed to its end; span: slots of
    one call; judge: whether the parts are there that the scene is for."""

    packets: Sequence[Packet | bytes]
    judge: Callable[[Run], None]
    before: Sequence[Packet] = ()
    span: int = 16
    icrc_every: int = 1
    slots: int = 64
    messages: int = 0
    """Records of the pool, if not as few as may be."""


SCENES: dict[str, Scene] = {}
NIGHTLY: set[str] = set()
"""Those of more stores than a day's suite has time for."""


def explore(name: str, twice: int, every: int) -> kill_points.Explored:
    of = SCENES[name]
    folder = Path(tempfile.mkdtemp(prefix="flowcheck-test-", dir="/dev/shm"))
    try:
        with parsing(folder, slots=of.slots, icrc_every=of.icrc_every, messages=of.messages) as run:
            for at in range(0, len(of.before), of.slots):
                run.put([packet.frame() for packet in of.before[at : at + of.slots]])
                while run.parser.parse(of.slots):
                    continue
                run.ring.handle.reader.tail = run.ring.parsed
            run.put([p if isinstance(p, bytes) else p.frame() for p in of.packets])
            return _explore(run, of, twice, every)
    finally:
        shutil.rmtree(folder)


def _explore(run: Run, of: Scene, twice: int, every: int) -> kill_points.Explored:
    begun, told = run.ring.parsed, [0]
    final: list[tuple[bytes, list[bytes]]] = []

    def work() -> None:
        with Parser(run.ring, run.table, icrc_every=of.icrc_every) as parser:
            while parser.parse(of.span):
                continue

    def outcome() -> dict[str, Any]:
        if not final:
            of.judge(run)
            final.append((marks(run, begun, run.ring.parsed), flow_keys(run)))
        return found(run, begun)

    def instant(again: bool) -> None:
        stays, keys = final[0]
        assert stays.startswith(marks(run, begun, run.ring.parsed)), "a committed mark changes"
        found = flow_keys(run)
        assert keys[: len(found)] == found, "a flow is another one later"
        assert len(found) >= told[0], "a flow that was there is gone"
        told[0] = told[0] if again else len(found)
        commit = run.ring.parse_commit()
        assert commit.at_position == run.ring.parsed, "no counters for what was committed"
        for at in range(begun, run.ring.parsed):
            mark = run.mark(at)
            record = run.table.message(mark.message) if mark.message else None
            assert not mark.message or (record and record.flow == mark.flow), "a mark names nothing"

    maps = [kill_points.mapped(run.ring.handle.map), kill_points.mapped(run.table.handle.map)]
    return kill_points.explore(maps, work, outcome, instant=instant, twice=twice, every=every)


def marks(run: Run, start: int, stop: int) -> bytes:
    return b"".join(
        bytes(ffi.buffer(ffi.addressof(lib.fc_ring_at(run.ring.handle, at), "mark")))
        for at in range(start, stop)
    )


def flow_keys(run: Run) -> list[bytes]:
    """As a reader copies them that keeps what it has read (Extractor.keys)."""
    return [flow["key"].tobytes() + flow["incarnation"].tobytes() for flow in run.table.flows()]


def found(run: Run, begun: int) -> dict[str, Any]:
    """What readers of ring and table find, now that all is parsed."""
    header = run.table.handle.header
    records = ffi.buffer(run.table.handle.messages, run.table.pool_records * 128)
    index = ffi.buffer(run.table.handle.index, header.flows_offset - header.index_offset)
    commit = run.ring.parse_commit()
    return {
        "marks": marks(run, begun, run.ring.head),
        "positions": (run.ring.parsed, int(commit.at_position), int(header.undo_used_bytes)),
        "counters": counter_values(commit.counters),
        "flows used": (int(header.flows_used), int(header.flows_made)),
        "used": (int(header.messages_made), int(header.silent_flows)),
        "flows": run.table.flows().tobytes(),
        "messages": bytes(records),
        "index": bytes(index),
    }


def whole(truth: Mapping[int, bytes]) -> Callable[[Run], None]:
    """The first flow has every message, with all its packets; what marks say of it is as it was
    sent. truth: {first PSN: bytes}."""

    def judge(run: Run) -> None:
        pieces = run.reassembled()
        messages = [m for m in run.table.messages() if m.flow == 0]
        assert {int(m.first_psn) - 2**32: int(m.length_bytes) for m in messages} == {
            psn: len(data) for psn, data in truth.items()
        }
        assert all(m.packets_seen == m.packets for m in messages)
        for m in messages:
            data, seen = pieces[m.position]
            right = truth[int(m.first_psn) - 2**32]
            assert all(
                not there or one == own for one, own, there in zip(data, right, seen, strict=True)
            )

    return judge


def counted(**least: int) -> Callable[[Run], None]:
    """The parser's counters are at least these; `flows`, `lost_holes`: of the table."""

    def judge(run: Run) -> None:
        flows = run.table.flows()
        has = run.counters() | {
            "flows": len(flows),
            "lost_holes": int(flows["lost_holes"].sum()),
            "retired": int(flows["retired"].sum()),
        }
        lacking = {name: has[name] for name, value in least.items() if has[name] < value}
        assert not lacking, (lacking, has)

    return judge


SIZES = (700, 2000, 100, 1500, 600)


def job(
    sizes: Sequence[int] = SIZES, psn: int = 0, like: Packet | None = None, rkey: int = 7
) -> tuple[list[Packet], dict[int, bytes]]:
    """Writes of one connection, two keys by turns; and what each holds by its first PSN."""
    packets: list[Packet] = []
    truth: dict[int, bytes] = {}
    for nth, size in enumerate(sizes):
        data = payload(size, nth)
        truth[psn + len(packets)] = data
        packets += written(
            data,
            psn=psn + len(packets),
            va=(nth + 1) << 16,
            rkey=rkey + nth % 2,
            immediate=little(size) if nth % 2 else None,
            like=like,
        )
    return packets, truth


def _order_and_loss() -> None:
    packets, truth = job()
    for window, seed in ((3, 1), (6, 2)):
        mixed = [packets[0], *reordered(packets[1:], window, seed)]
        SCENES[f"reordered-{window}"] = Scene(mixed, whole(truth), span=7)
    lossy = [p for nth, p in enumerate(packets) if nth not in (1, 4, 9, 13)]
    SCENES["loss"] = Scene([*lossy, packets[9]], counted(write_frames=len(lossy)))
    # Every second packet of one long message is lost: more holes than a flow remembers.
    long = written(payload(256 * 44), psn=0)
    SCENES["more-holes-than-fit"] = Scene([*long[::2], *long[1:9:2]], counted(lost_holes=3))
    again = [*packets[:9], *packets[4:12], *packets[2:], packets[0]]
    SCENES["go-back-n"] = Scene(again, counted(duplicate_packets=14))
    # The start of the second and the fourth message comes last; one is known by its immediate.
    late = [p for p in packets if p.psn not in (3, 12)] + [packets[3], packets[12]]
    SCENES["late-firsts"] = Scene(late, counted(orphan_frames=4), span=9)
    bad = bytearray(packets[2].frame())
    bad[-1] ^= 1
    read_request = Packet(READ_REQUEST, len(packets), length=700, rkey=5)
    beside = [Packet(ACK, 5, dest_qp=0x22, source="10.0.0.2", destination="10.0.0.1")]
    mixed_in = [*packets[:3], bytes(bad), *beside, *packets[3:], read_request, b"\0" * 64]
    SCENES["strangers-between"] = Scene(mixed_in, counted(icrc_bad_frames=1, flows=2))


def _owners() -> None:
    own, _ = job()
    lives = [[replace(p, rkey=p.rkey + 10 * n) for p in own[:7]] for n in range(6)]
    # Cut off in a message, then taken over: five times, more owners than a key remembers.
    taken = [p for n, life in enumerate(lives) for p in life[: 7 - n % 2]]
    SCENES["key-reuse"] = Scene(taken, counted(incarnations=5, flows=6), span=11)
    short = [p for n in range(2) for p in job((300, 40), rkey=7 + 10 * n)[0]]
    SCENES["two-in-turn"] = Scene(short, counted(incarnations=1), span=4)
    turns = [p for pair in zip(lives[0], lives[1], strict=True) for p in pair]
    SCENES["two-owners-by-turns"] = Scene(turns, counted(incarnations=1, retired=0))
    forged = [Packet(ONLY, 8, FOREIGN, va=9, rkey=99, length=256)]
    forged += [Packet(FIRST, 11, FOREIGN, va=9, rkey=99, length=600)]
    mixed = [*own[:8], forged[0], *own[8:10], forged[1], Packet(MIDDLE, 2, FOREIGN), *own[10:]]
    SCENES["forged-owner"] = Scene(mixed, counted(doubtful_frames=0), span=5)
    # A key that is new where the next message belongs gives way to the genuine one.
    rival = [Packet(FIRST, 12, FOREIGN, va=9, rkey=99, length=1500), Packet(MIDDLE, 13, FOREIGN)]
    SCENES["a-rival-is-withdrawn"] = Scene([*own[:12], *rival, *own[12:]], withdrawn, span=5)
    proof, _ = job([256] * 290, psn=3, rkey=40)
    calm, _ = job([256] * 5)
    SCENES["another-becomes-first"] = Scene(
        [*calm, *proof, calm[4]], counted(incarnations=1), slots=512, span=100
    )
    NIGHTLY.add("another-becomes-first")


def withdrawn(run: Run) -> None:
    standings = [int(m.standing) for m in run.table.messages()]
    assert lib.FC_STANDING_UNPROVEN in standings, standings


def _wraps() -> None:
    start = 2**24 - 9
    packets, truth = job(psn=start)
    mixed = [packets[0], *reordered(packets[1:], 4, 3)]
    SCENES["psn-wrap"] = Scene(mixed, whole(truth), span=7)
    # Records of a lap of the pool before, and a ring that is written over.
    old, _ = job([300, 40] * 30)
    new, _ = job((700, 600, 40), psn=len(old))
    SCENES["ring-and-pool-go-round"] = Scene(new, new_records, before=old, slots=16, span=5)
    # Sixteen packets there, and its owner is believed to go on behind them.
    leap, _ = job((16 * 256,), psn=3 + (1 << 23))
    half, _ = job((700,), psn=19 + (1 << 23))
    far = [*job((700,))[0], *leap, *half, *half]
    SCENES["half-a-lap-on"] = Scene(far, counted(duplicate_packets=3))


def new_records(run: Run) -> None:
    assert run.table.newest_message > run.table.pool_records


def _held() -> None:
    """An open message while others use up the pool: it is held, found again, and gives way."""
    own, _ = job((1500,))
    like = Packet(ONLY, 0, FOREIGN[:4], va=1, rkey=3, length=4, dest_qp=0x99)
    tenant = [replace(like, psn=psn) for psn in range(100)]
    reach, pool = 11, 32  # fc_record_reach() and the records of a ring of 16 slots

    def judge(run: Run) -> None:
        record = run.table.message(1)
        assert record and record.packets_seen == len(own)
        assert run.table.handle.header.held_messages == 1

    def given_back(run: Run) -> None:
        assert run.table.message(1) is None and run.table.handle.header.held_messages == 0

    for name, others in (("is-held", reach - 2), ("keeps-its-place", pool - 4)):
        begun = [*own[:2], *tenant[:others]]
        rest = [*tenant[others : others + 5], own[2], *tenant[others + 5 : others + 8], *own[3:]]
        SCENES[f"open-message-{name}"] = Scene(rest, judge, before=begun, slots=16, span=5)
    over = [*own[:2], *tenant[:40], *own[2:], *tenant[40 : 40 + pool - 10]]
    SCENES["held-message-gives-way"] = Scene(
        tenant[80:96], given_back, before=[*over, *tenant[62:80]], slots=16, span=5
    )


def _several() -> None:
    ways = []
    for n in range(2):
        like = Packet(0, 0, dest_qp=0x50 + n, port=50000 + n)
        ways.append(job((700, 300, 100), like=like)[0])
    mixed = [p for pair in zip(*ways, strict=True) for p in pair]
    SCENES["two-queue-pairs"] = Scene(mixed, counted(flows=2), span=6)
    back = {"source": "10.0.0.2", "destination": "10.0.0.1"}
    nak = Packet(ACK, 4, syndrome=FATAL, dest_qp=0x61, port=50001, **back)
    lost = replace(nak, port=50009)
    refused = [*mixed[:9], lost, *mixed[9:], nak, *ways[1][3:], *ways[0][:2]]
    SCENES["fatal-nak"] = Scene(refused, counted(refused_messages=2, unpaired_refusals=1), span=9)


def _full_journal() -> None:
    """Refusals of all that their flows have sent, more of them than a span's journal holds."""
    before, naks = [], []
    for n in range(30):
        like = Packet(ONLY, 0, FOREIGN[:4], va=1, rkey=3, length=4, dest_qp=n, port=50000 + n)
        before += [replace(like, psn=psn) for psn in range(1024)]
        back = {"source": like.destination, "destination": like.source}
        naks.append(Packet(ACK, 0, syndrome=FATAL, dest_qp=90 + n, port=like.port, **back))

    def judge(run: Run) -> None:
        counted(refused_messages=30 * 1024)(run)
        spans = {int(commit.at_position) for commit in run.ring.handle.header.parse}
        assert min(spans) > len(before), "one span was enough"

    SCENES["full-journal"] = Scene(naks, judge, before=before, slots=256, messages=1 << 16, span=64)
    NIGHTLY.add("full-journal")


def _sends() -> None:
    packets: list[Packet] = []
    truth: dict[int, bytes] = {}
    for nth, (size, end) in enumerate(((600, ""), (1500, "imm"), (40, ""), (900, "invalidate"))):
        truth[len(packets) + 2**32] = payload(size, nth)
        packets += sent(payload(size, nth), psn=len(packets), end=end)

    def judge(run: Run) -> None:
        assert run.sends() == truth

    SCENES["sends"] = Scene(packets, judge, span=5)
    for window, seed in ((4, 1), (7, 2)):
        mixed = [packets[0], *reordered(packets[1:], window, seed)]
        SCENES[f"sends-reordered-{window}"] = Scene(mixed, judge, span=6)
    writes, _ = job((300, 600), psn=len(packets))
    others = [*packets[:3], *packets[5:], *writes, packets[4], packets[3], *packets[2:6]]
    SCENES["sends-and-writes"] = Scene(others, judge, span=6)


_order_and_loss()
_owners()
_wraps()
_held()
_several()
_full_journal()
_sends()


def main() -> None:
    twice, every = map(int, (sys.argv[2:] + ["0", "1"][len(sys.argv) - 2 :]))
    for name in sys.argv[1].split(","):
        print(name, explore(name, twice, every), flush=True)


if __name__ == "__main__":
    main()
