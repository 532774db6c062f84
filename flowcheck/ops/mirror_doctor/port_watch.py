"""One port under watch: its frames through ring and parser into figures."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from flowcheck.closing_context import Closeable
from flowcheck.ops.mirror_doctor.live_port import RING_SLOTS, LivePort, unnamed_ring
from flowcheck.ops.mirror_doctor.named_ports import NamedPort, PortKind
from flowcheck.ops.mirror_doctor.nic_counters import (
    NOTHING_KNOWN,
    InterfaceState,
    grown,
    interface_state,
)
from flowcheck.ops.mirror_doctor.port_figures import PortFigures, links_of, losses_of
from flowcheck.ops.mirror_doctor.slot_figures import SlotFigures
from flowcheck.plane.extraction.packet_parser import Parser
from flowcheck.plane.frame_sources.pcap_source import PcapSource
from flowcheck.plane.shared_memory.packet_counters import counter_values, frames_by_verdict

TURN_SLOTS = 512
"""Slots of one turn: half a millisecond of parsing, so that several ports are served evenly."""
FILE_SLOTS = 4096
"""Slots of a file's ring, which waits while the ring is full."""
BUSY_EVERY = 64
"""Frames of which one has its ICRC checked once half the ring waits. A choice: the rest of the
parser is some times as fast as the ICRC."""
ICRC_WRONG_LEAST = 16
"""Frames with a wrong ICRC, and none with a right one, from which on the ICRC is left out, as
`analyze` does it (REWRITTEN_FRAMES)."""
SAMPLED_BY_DROPS = ("kinds", "hosts", "duplicates", "loss", "peaks", "burst")
"""Figures that rest on a sample where frames were dropped here."""


class PortWatch(Closeable):
    """A port's ring, parser and figures; frames come from a LivePort or a file."""

    def __init__(self, named: NamedPort, *, icrc_every: int = 1) -> None:
        """Raises CaptureError for a file that is no capture, RingError where memory is short."""
        self.named = named
        self._opened = ExitStack()
        try:
            self._file: PcapSource | None = None
            if not named.live:
                self._file = self._opened.enter_context(PcapSource(Path(named.name)))
            slots = RING_SLOTS if named.live else FILE_SLOTS
            made = unnamed_ring(slots, live_source=named.live)
            self.ring, self._flows = self._opened.enter_context(made)
            self._commit = self.ring.capture_commit()
            self._slots = SlotFigures(self.ring, live=named.live)
            self._icrc_every = icrc_every
            self._parser = Parser(self.ring, self._flows, icrc_every=icrc_every)
        except BaseException:
            self._opened.close()
            raise
        self._tagged = 0
        self._icrc_sampled = False
        self._port: LivePort | None = None
        self._before: InterfaceState = NOTHING_KNOWN

    @property
    def interface(self) -> str | None:
        return self.named.name if self.named.kind is PortKind.INTERFACE else None

    def attach(self, port: LivePort) -> None:
        """The port whose frames come into `ring`; it begins."""
        self._port = port
        self._before = interface_state(self.interface)
        port.start()

    @property
    def ended(self) -> bool:
        """A file has no more frames, and all were looked at."""
        return self._file is not None and self._file.ended and self.ring.parsed == self.ring.head

    def turn(self) -> int:
        """Looks at the next frames; how many."""
        if self._file is not None:
            self._file.read_into(self.ring, TURN_SLOTS, self._commit)
        elif self._port is not None:
            self._port.check()
            if self.ring.head - self.ring.parsed > self.ring.slots // 2:
                self._check_fewer()
        start = self.ring.parsed
        done = self._parser.parse(TURN_SLOTS)
        if done:
            self._slots.add(start, start + done, tagged=self._has_new_tags())
            self.ring.release(start + done)
            if self._icrc_every and self._no_icrc_is_right():
                self._reopen(0)
        return done

    def finish(self) -> None:
        """After the watch: looks at what still waits, which is at most a ring."""
        if self._port is not None:
            self._port.stop()
        for _ in range(self.ring.slots // TURN_SLOTS + 1):
            if not self.turn():
                return

    def check_end(self) -> None:
        """Raises CaptureError where the file is torn at its end."""
        if self._file is not None:
            self._file.read_into(self.ring, 1, self._commit)

    @property
    def was_rewritten(self) -> bool:
        """No ICRC was right, and the flow table lacks the frames until that was known."""
        return self._icrc_every == 0

    def _check_fewer(self) -> None:
        if self._icrc_every == 1:
            self._icrc_sampled = True
            self._reopen(BUSY_EVERY)

    def _reopen(self, icrc_every: int) -> None:
        self._parser.close()
        self._parser = Parser(self.ring, self._flows, icrc_every=icrc_every)
        self._icrc_every = icrc_every

    def _no_icrc_is_right(self) -> bool:
        commit = self.ring.parse_commit()
        wrong = int(commit.counters.icrc_bad_frames)
        return wrong >= ICRC_WRONG_LEAST and wrong == int(commit.counters.icrc_checked_frames)

    def _has_new_tags(self) -> bool:
        commit = self.ring.parse_commit()
        tagged = int(commit.counters.vlan_frames) + int(commit.counters.encapsulated_frames)
        found, self._tagged = tagged > self._tagged, tagged
        return found

    def figures(self, seconds: float) -> PortFigures:
        """What came. seconds: how long the port was watched; of a file its own time is taken."""
        state = interface_state(self.interface)
        speed = state.speed_mbps
        link_up = state.link_up
        if self._port is not None and self.interface is None:
            speed, link_up = self._port.port.link_mbps or None, self._port.port.link_up
        capture, parse = self.ring.capture_commit(), self.ring.parse_commit()
        counted = counter_values(parse.counters)
        taken = counter_values(capture.counters)
        load = self._slots.load
        shown_s = seconds if self.named.live else (load.last_ns - load.first_ns) / 1e9
        most_cut = self._slots.cut_lengths.most_common(1)
        verdicts = {name: n for name, n in frames_by_verdict(parse.counters).items() if n}
        return PortFigures(
            port=self.named.name,
            kind=self.named.kind.value,
            seconds=round(shown_s, 6),
            frames=sum(verdicts.values()) + sum(losses_of(taken).values()),
            verdicts=verdicts,
            links=links_of(self._flows.flows()),
            load=load.load(seconds if self.named.live else None, speed),
            icrc_checked=counted["icrc_checked_frames"],
            icrc_every=self._icrc_every,
            duplicate_packets=counted["duplicate_packets"],
            vlan_frames=counted["vlan_frames"],
            encapsulated_frames=counted["encapsulated_frames"],
            tunnels=dict(self._slots.tunnels),
            vlans=sorted(self._slots.vlans),
            cut_frames=self._slots.cut_frames,
            cut_bytes=most_cut[0][0] if most_cut else None,
            cut_by_capture=not self.named.live and self._slots.stated_lengths > 0,
            capture_losses=losses_of(taken),
            interface_counters=grown(self._before, state) if self.interface else {},
            link_up=link_up,
            admin_up=state.admin_up,
            speed_mbps=speed,
            flow_table_full_packets=counted["flow_table_full_packets"],
            gone=state is NOTHING_KNOWN and self._before is not NOTHING_KNOWN,
            sampled=self._sampled(sum(losses_of(taken).values())),
        )

    def _sampled(self, dropped: int) -> tuple[str, ...]:
        found = list(SAMPLED_BY_DROPS) if dropped else []
        found += ["icrc"] if self._icrc_sampled or dropped else []
        found += ["truncation"] if self._slots.cut_sampled or dropped else []
        return tuple(found)

    def close(self) -> None:
        if self._port is not None and self._port.hangs:
            return  # the memory must stay
        self._parser.close()
        self._slots.close()
        self._opened.close()
