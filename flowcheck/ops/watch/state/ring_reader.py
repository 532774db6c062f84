"""Reads the state and counters of a mirror port's ring from shared memory."""

from __future__ import annotations

from flowcheck.config import JobConfig, SourceConfig
from flowcheck.ops.watch.state.chain_state import RingState as State
from flowcheck.plane.shared_memory.flow_table import FlowTable
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.plane.shared_memory.packet_counters import LOSS_COUNTERS, VERDICTS
from flowcheck.stages.chain_events.lost_packets import missing_packets
from flowcheck.stages.run_directory.run_dir import RunDir

CAPTURE_BYTES, CAPTURE_FRAMES = "rx_bytes", "rx_frames"


def source_name(source: SourceConfig) -> str:
    """The interface, PCI address, device or file of a source, for display."""
    return source.pci or source.interface or source.file or source.vdev or ""


def read_ring(run: RunDir, config: JobConfig, number: int) -> tuple[State, dict[str, int]]:
    """(state of ring `number`, its capture counters). Raises RingError if the ring does not
    exist."""
    with FrameRing.open(run.ring(number)) as ring, FlowTable.open(run.flows(number)) as flows:
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
            lost={name: capture[name] for name in LOSS_COUNTERS},
            verdicts={name: frames for name, frames in verdicts.items() if frames},
            parse=parse,
            extract=counters["extract"],
            missing_packets=missing_packets(flows),
        )
        ended = {"ended": int(ring.source_end is not None)}
        return state, capture | ended
