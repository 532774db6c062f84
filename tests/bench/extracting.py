"""Extract: payloads out of a parsed ring into the gradient, LL lines unpacked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bench.load import Load, fill
from bench.measure import (
    FRAME_BYTES,
    Copies,
    Figure,
    Scale,
    Work,
    address,
    frames_of,
    memory,
    rewind,
    together,
)
from flowcheck._core import ffi, lib
from flowcheck.plane.extraction.packet_parser import Parser
from flowcheck.plane.extraction.payload_extractor import Extractor
from flowcheck.plane.shared_memory.flow_table import FlowTable
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.plane.shared_memory.gradient_double_buffer import GradientShard
from flowcheck.plane.shared_memory.staging_file import Staging
from flowcheck.wire.traffic.observed_messages import FlowKey
from flowcheck.wire.training_job.connection_messages import SendKind
from flowcheck.wire.training_job.flow_plan import SEGMENT, SEND, FlowPlan, MessageTable

TARGETS = {"LL": 1.0, "Simple": 0.85}
CODES = {"LL": int(lib.FC_PROTOCOL_LL), "Simple": int(lib.FC_PROTOCOL_SIMPLE)}
PAYLOAD_AT = 14 + 40 + 8 + 12
"""Of a Middle packet, in its frame."""
FLOWS = 8


def figures(scale: Scale, _: Sequence[Figure]) -> Iterator[Figure]:
    copies = Copies()
    for pmtu_bytes in FRAME_BYTES:
        for protocol in TARGETS:
            load = Load(scale.frames(pmtu_bytes), FLOWS, pmtu_bytes, protocol)
            yield from _stage(scale, copies, load)


def table(load: Load, flow: int) -> MessageTable:
    """Every message of the flow final: message m lies at (m x flows + flow) x its data."""
    sends = np.zeros(load.rounds, SEND)
    sends["wire_bytes"], sends["segments"] = load.wire_bytes, 1
    sends["first_segment"] = np.arange(load.rounds)
    sends["protocol"], sends["kind"] = CODES[load.protocol], SendKind.FINAL
    segments = np.zeros(load.rounds, SEGMENT)
    segments["data_bytes"] = load.data_bytes
    at = np.arange(load.rounds, dtype=np.uint64) * np.uint64(load.flows) + np.uint64(flow)
    segments["dst_byte"] = at * np.uint64(load.data_bytes)
    return MessageTable(sends=sends, segments=segments)


def install(extractor: Extractor, load: Load) -> None:
    """Plans for all flows; their order is that of their QP numbers."""
    for flow, key in enumerate(sorted(extractor.keys(), key=lambda k: k.dest_qp)):
        assert isinstance(key, FlowKey)
        rows = table(load, flow)
        assert extractor.install_plan(FlowPlan(flow=key, first_number=0, first=rows, each=rows))


class Placing:
    """All frames of a parsed ring into a shard whose pages are there, as often as asked."""

    def __init__(self, ring: FrameRing, folder: Path, load: Load, count: int) -> None:
        self.ring, self.folder, self.load, self.count = ring, folder, load, count
        self.flows = FlowTable.create(folder / "flows", messages=2 * ring.slots)
        with Parser(ring, self.flows, icrc_every=0) as parser:
            assert parser.parse(count) == count
        size = load.rounds * load.flows * load.data_bytes
        self.shard = GradientShard.create(folder / "shard", gradient_bytes=size)
        self.shard.gradient(0)[:] = 0
        self.extractor: Extractor | None = None

    def again(self) -> None:
        """As if nothing had been extracted; the plans are there."""
        self.drop()
        rewind(self.ring, "tail")
        self.shard.begin(0, 1)
        rows = 2 * self.load.rounds * self.load.flows
        staging = Staging.create(
            self.folder / "staging",
            messages=2 * self.ring.slots,
            data_bytes=1 << 20,
            records=16,
            sends=rows,
            segments=rows,
        )
        self.extractor = Extractor(self.ring, self.flows, staging, self.shard)
        install(self.extractor, self.load)

    def place(self) -> None:
        assert self.extractor is not None
        assert self.extractor.extract(self.count) == self.count

    def drop(self) -> None:
        if self.extractor is not None:
            self.extractor.close()
            self.extractor.staging.close()
            self.extractor.staging.path.unlink()
            self.extractor = None

    def close(self) -> None:
        counters = self.ring.counters()["extract"]
        assert counters["placed_bytes"] == self.shard.gradient_bytes, counters
        self.drop()
        self.shard.close()
        self.flows.close()


def _stage(scale: Scale, copies: Copies, load: Load) -> Iterator[Figure]:
    with (
        memory(load.frames * 4352) as folder,
        FrameRing.create(folder / "ring", slots=load.frames) as ring,
    ):
        count = fill(ring, load)
        target = np.zeros(count * load.pmtu_bytes, np.uint8)
        to = address(target), load.pmtu_bytes, 0
        source = frames_of(ring, PAYLOAD_AT)
        placing = Placing(ring, folder, load, count)
        works = {
            "memcpy": Work(lambda: copies.copy("memcpy", to, source, load.pmtu_bytes, count)),
            "placed": Work(placing.place, placing.again),
        }
        if load.protocol == "LL":
            works["lines"] = _lines(count * load.pmtu_bytes)
        spent = together(scale.repeats, works)
        placing.close()
    wire = count * load.pmtu_bytes / 1e9
    yield from _told(load, {name: wire / value for name, value in spent.items()})


def _lines(wire_bytes: int) -> Work:
    """The unpacking alone, on flat memory."""
    lines = np.full(wire_bytes // 4, 7, "<u4")
    out = np.zeros(wire_bytes // 2, np.uint8)

    def unpack() -> None:
        pointers = [ffi.cast("uint8_t *", address(array)) for array in (out, lines)]
        assert lib.fc_ll_unpack(*pointers, out.nbytes, 7) == out.nbytes // 8

    return Work(unpack)


def _told(load: Load, rate: dict[str, float]) -> Iterator[Figure]:
    """rate: GB/s of wire bytes."""
    stage = f"extract {load.protocol}, {FRAME_BYTES[load.pmtu_bytes]} B"
    bare, placed = rate["memcpy"], rate["placed"]
    against = "memcpy, per wire byte"
    yield Figure(stage, "memcpy of the payloads", bare, "GB/s")
    if "lines" in rate:
        name = f"lines unpacked and checked ({ffi.string(lib.fc_ll_name()).decode()})"
        yield Figure(stage, name, rate["lines"], "GB/s", rate["lines"] / bare, against)
    yield Figure(
        stage,
        f"placed by plan, {load.flows} flows",
        placed,
        "GB/s",
        placed / bare,
        against,
        TARGETS[load.protocol],
        f"{placed / load.pmtu_bytes * 1e3:.2f} M frames/s",
        load.pmtu_bytes / placed,
    )
