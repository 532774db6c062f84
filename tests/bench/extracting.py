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
    address,
    memory,
    rewind,
    seconds,
    slots_of,
)
from flowcheck._core import ffi, lib
from flowcheck.plane.extractor import Extractor
from flowcheck.plane.flows import FlowTable
from flowcheck.plane.parser import Parser
from flowcheck.plane.ring import Ring
from flowcheck.plane.shard import Shard
from flowcheck.plane.staging import Staging
from flowcheck.wire.plan import SEGMENT, SEND, FlowPlan, SendKind, Table
from flowcheck.wire.seen import FlowKey

TARGETS = {"LL": 1.0, "Simple": 0.85}
CODES = {"LL": int(lib.FC_PROTOCOL_LL), "Simple": int(lib.FC_PROTOCOL_SIMPLE)}
PAYLOAD_AT = 64 + 14 + 40 + 8 + 12
"""Of a Middle packet, in its slot."""
FLOWS = 8


def figures(scale: Scale, _: Sequence[Figure]) -> Iterator[Figure]:
    copies = Copies()
    for pmtu_bytes in FRAME_BYTES:
        for protocol in TARGETS:
            load = Load(scale.frames(pmtu_bytes), FLOWS, pmtu_bytes, protocol)
            yield from _stage(scale, copies, load)


def table(load: Load, flow: int) -> Table:
    """Every message of the flow final: message m lies at (m x flows + flow) x its data."""
    sends = np.zeros(load.rounds, SEND)
    sends["wire_bytes"], sends["segments"] = load.wire_bytes, 1
    sends["first_segment"] = np.arange(load.rounds)
    sends["protocol"], sends["kind"] = CODES[load.protocol], SendKind.FINAL
    segments = np.zeros(load.rounds, SEGMENT)
    segments["data_bytes"] = load.data_bytes
    at = np.arange(load.rounds, dtype=np.uint64) * np.uint64(load.flows) + np.uint64(flow)
    segments["dst_byte"] = at * np.uint64(load.data_bytes)
    return Table(sends=sends, segments=segments)


def install(extractor: Extractor, load: Load) -> None:
    """Plans for all flows; their order is that of their QP numbers."""
    for flow, key in enumerate(sorted(extractor.keys(), key=lambda k: k.dest_qp)):
        assert isinstance(key, FlowKey)
        rows = table(load, flow)
        assert extractor.install(FlowPlan(flow=key, first_number=0, first=rows, each=rows))


def _stage(scale: Scale, copies: Copies, load: Load) -> Iterator[Figure]:
    size = FRAME_BYTES[load.pmtu_bytes]
    with (
        memory(load.frames * 4352) as folder,
        Ring.create(folder / "ring", slots=load.frames) as ring,
    ):
        count = fill(ring, load)
        target = np.zeros(count * load.pmtu_bytes, np.uint8)
        to = address(target), load.pmtu_bytes, 0
        taken = seconds(
            lambda: copies.copy("memcpy", to, slots_of(ring, PAYLOAD_AT), load.pmtu_bytes, count),
            scale.repeats,
        )
        wire = count * load.pmtu_bytes / 1e9
        bare = wire / taken
        stage = f"extract {load.protocol}, {size} B"
        yield Figure(stage, "memcpy of the payloads", bare, "GB/s")
        if load.protocol == "LL":
            yield _lines(scale, stage, target, wire, bare)
        del target
        rate = wire / _extract(scale, ring, folder, load, count)
        yield Figure(
            stage,
            f"placed by plan, {load.flows} flows",
            rate,
            "GB/s",
            rate / bare,
            "memcpy, per wire byte",
            TARGETS[load.protocol],
            f"{rate / load.pmtu_bytes * 1e3:.2f} M frames/s",
            load.pmtu_bytes / rate,
        )


def _lines(scale: Scale, stage: str, target: np.ndarray, wire: float, bare: float) -> Figure:
    """The unpacking alone, on flat memory."""
    lines = target.view("<u4")
    lines[1::2] = 7
    out = np.zeros(target.nbytes // 2, np.uint8)
    pointers = [ffi.cast("uint8_t *", address(array)) for array in (out, target)]

    def unpack() -> None:
        assert lib.fc_ll_unpack(*pointers, out.nbytes, 7) == out.nbytes // 8

    rate = wire / seconds(unpack, scale.repeats)
    name = f"lines unpacked and checked ({ffi.string(lib.fc_ll_name()).decode()})"
    return Figure(stage, name, rate, "GB/s", rate / bare, "memcpy, per wire byte")


def _extract(scale: Scale, ring: Ring, folder: Path, load: Load, count: int) -> float:
    """Median seconds for all frames of the ring, into a shard whose pages are there."""
    gradient_bytes = load.rounds * load.flows * load.data_bytes
    flows = FlowTable.create(folder / "flows", messages=2 * ring.slots)
    with Parser(ring, flows, icrc_every=0) as parser:
        assert parser.parse(count) == count
    shard = Shard.create(folder / "shard", gradient_bytes=gradient_bytes)
    shard.gradient(0)[:] = 0
    shard.gradient(1)[:] = 0
    made: list[Extractor] = []

    def again() -> None:
        _drop(made)
        rewind(ring, "tail")
        shard.begin(0, 1)
        staging = Staging.create(
            folder / "staging", messages=2 * ring.slots, data_bytes=1 << 20, records=16
        )
        made.append(Extractor(ring, flows, staging, shard))
        install(made[0], load)

    taken = seconds(lambda: made[0].extract(count), scale.repeats, again)
    counters = ring.counters()["extract"]
    assert counters["placed_bytes"] == gradient_bytes, counters
    _drop(made)
    shard.close()
    flows.close()
    return taken


def _drop(made: list[Extractor]) -> None:
    while made:
        extractor = made.pop()
        extractor.close()
        extractor.staging.close()
        extractor.staging.path.unlink()
