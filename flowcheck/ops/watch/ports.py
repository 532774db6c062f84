"""The rings of a chain's ports, as their shared memory tells."""

from __future__ import annotations

from flowcheck.config import JobConfig, SourceConfig
from flowcheck.ops.watch.parts.ring import Ring as State
from flowcheck.plane.counters import LOSSES, VERDICTS
from flowcheck.plane.flows import FlowTable
from flowcheck.plane.ring import Ring
from flowcheck.stages.chain.missing import missing_packets
from flowcheck.stages.rundir import RunDir

CAPTURE_BYTES, CAPTURE_FRAMES = "rx_bytes", "rx_frames"


def source_name(source: SourceConfig) -> str:
    return source.pci or source.interface or source.file or source.vdev or ""


def read_ring(run: RunDir, config: JobConfig, number: int) -> tuple[State, dict[str, int]]:
    """(the ring, its capture counters). Raises RingError where it is not there."""
    with Ring.open(run.ring(number)) as ring, FlowTable.open(run.flows(number)) as flows:
        counters = ring.counters()
        capture, parse = counters["capture"], counters["parse"]
        least, tail = ring.least_tail, ring.tail
        parsed = ring.parsed  # a position that is read later is never behind
        head = ring.head
        filled = max(0, head - least)
        verdicts = {name: parse.pop(f"{name}_frames") for name in VERDICTS}
        state = State(
            number=number,
            source=source_name(config.source[config.rings[number][0]]),
            slots=ring.slots,
            filled_slots=filled,
            fill=round(filled / ring.slots, 4),
            huge_pages=ring.huge_pages,
            head=head,
            parsed=parsed,
            tail=tail,
            captured_bytes=capture[CAPTURE_BYTES],
            frame_age_s=None,
            dark_s=None,
            lost={name: capture[name] for name in LOSSES},
            verdicts={name: frames for name, frames in verdicts.items() if frames},
            parse=parse,
            extract=counters["extract"],
            missing_packets=missing_packets(flows),
        )
        ended = {"ended": int(ring.source_end is not None)}
        return state, capture | ended
