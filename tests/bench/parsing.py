"""Parse: frames in a ring to marks and flow table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.load import Load, fill
from bench.measure import FRAME_BYTES, Figure, Scale, Work, memory, rewind, together
from flowcheck._core import ffi, lib
from flowcheck.plane.extraction.packet_parser import Parser
from flowcheck.plane.shared_memory.flow_table import FlowTable
from flowcheck.plane.shared_memory.frame_ring import FrameRing

OFF, IN_COPY, HERE = "off", "in the copy", "by"
TARGETS = {OFF: 20.0, IN_COPY: 6.0, HERE: 6.0}
"""{who made the ICRC: million frames/s at 1,102 bytes}"""
FLOWS = (10, 1000, 10_000)


def figures(scale: Scale, _: Sequence[Figure]) -> Iterator[Figure]:
    crc = ffi.string(lib.fc_crc32_name()).decode()
    for pmtu_bytes, size in FRAME_BYTES.items():
        slots = scale.frames(pmtu_bytes)
        for flows in FLOWS:
            # 16 packets a message, so that ten thousand flows have whole messages in a ring.
            load = Load(slots, flows, pmtu_bytes, wire_bytes=16 * pmtu_bytes)
            if load.rounds == 0:
                continue
            with (
                memory(slots * 4352) as folder,
                FrameRing.create(folder / "r", slots=slots) as ring,
            ):
                ring.handle.header.icrc_every = 1  # as a parser that checks all
                count = fill(ring, load)
                for who, target in TARGETS.items():
                    if who == HERE:
                        _forget_notes(ring, count)
                    taken = _parse(scale, ring, folder, count, 0 if who == OFF else 1)
                    rate = count / taken / 1e6
                    name = f"ICRC {who + ' ' + crc if who == HERE else who}, {flows} flows"
                    yield Figure(
                        f"parse, {size} B",
                        name,
                        rate,
                        "M frames/s",
                        target=target if pmtu_bytes == 1024 else None,
                        note=f"{1e3 / rate:.0f} ns a frame",
                        ns_per_frame=1e3 / rate,
                    )


def _forget_notes(ring: FrameRing, count: int) -> None:
    """As if an engine had copied the frames."""
    for position in range(count):
        lib.fc_ring_at(ring.handle, position).icrc_l3_at = 0


def _parse(scale: Scale, ring: FrameRing, folder: Path, count: int, icrc_every: int) -> float:
    """Median seconds for all frames of the ring."""
    path = folder / "flows"
    parsers: list[Parser] = []

    def again() -> None:
        for parser in parsers:
            parser.close()
            parser.flows.close()
        parsers.clear()
        path.unlink(missing_ok=True)
        rewind(ring, "parsed")
        table = FlowTable.create(path, messages=2 * ring.slots)
        parsers.append(Parser(ring, table, icrc_every=icrc_every))

    work = Work(lambda: parsers[0].parse(count), again)
    taken = together(scale.repeats, {"parse": work})["parse"]
    verdicts = ring.counters()["parse"]
    assert verdicts["write_frames"] == count, verdicts
    parsers[0].close()
    parsers[0].flows.close()
    path.unlink()
    return taken
