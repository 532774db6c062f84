"""What the slots of a ring tell beside the parser's counters: load, cut frames, kinds of tunnels.

The parser has read each frame; a few are decoded again, by the same code, for what it keeps no
counter of.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from flowcheck._core import ffi, lib
from flowcheck.closing_context import Closeable
from flowcheck.ops.mirror_doctor.load_series import LoadSeries
from flowcheck.plane.shared_memory.flow_table import record_dtype
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.plane.shared_memory.packet_counters import VERDICTS

SAMPLED_IN_A_TURN = 16
"""Frames of a turn that are decoded again, if some came in a tunnel or with a tag. A choice that
bounds processor time."""
BROKEN_IN_A_TURN = 64
"""Malformed frames of a turn that are decoded again; of more, one stands for several. A choice that
bounds processor time."""
LENGTHS_MOST = 64
"""Lengths of cut frames that are kept: a session has one. A choice that bounds memory."""
TUNNELS = ("none", "GRE", "ERSPAN I", "ERSPAN II", "ERSPAN III", "VXLAN")
"""Names of enum fc_tunnel_kind (fc_parse.h), in its order."""
MALFORMED, SNAPPED = VERDICTS.index("malformed"), VERDICTS.index("snapped")


class SlotHeaders:
    """The headers of a ring's slots as numpy sees them."""

    def __init__(self, ring: FrameRing) -> None:
        self._dtype = record_dtype(ffi.typeof("struct fc_slot"))
        self._mask = ring.slots - 1
        headers = ffi.buffer(ring.handle.slots, ring.slots * ffi.sizeof("struct fc_slot"))
        self._slots: NDArray[np.void] = np.frombuffer(headers, dtype=self._dtype)

    def close(self) -> None:
        self._slots = np.empty(0, dtype=self._dtype)

    def copied(self, start: int, stop: int) -> NDArray[np.void]:
        """Copies of the headers of [start, stop)."""
        index = np.arange(start, stop, dtype=np.int64) & self._mask
        found: NDArray[np.void] = self._slots[index]
        return found


class SlotFigures(Closeable):
    """Counts over the slots of one ring."""

    def __init__(self, ring: FrameRing, *, live: bool) -> None:
        """live: the load is of the bytes that arrived; else of those a file says were sent."""
        self._ring, self._headers, self._live = ring, SlotHeaders(ring), live
        self._packet = ffi.new("struct fc_packet *")
        self.load = LoadSeries()
        self.tunnels: Counter[str] = Counter()
        self.vlans: Counter[int] = Counter()
        self.cut_frames = 0
        self.cut_sampled = False
        """`cut_frames` rests on a sample."""
        self.cut_lengths: Counter[int] = Counter()
        self.stated_lengths = 0
        """Frames of which the source itself says that they were longer."""

    def add(self, start: int, stop: int, *, tagged: bool) -> None:
        """Slots [start, stop), which the parser has marked. tagged: some of them came in a tunnel
        or with a VLAN tag."""
        if start == stop:
            return
        headers = self._headers.copied(start, stop)
        sizes = headers["frame_bytes" if self._live else "wire_bytes"]
        self.load.add(headers["timestamp_ns"], sizes)
        verdicts = headers["mark"]["verdict"]
        self.stated_lengths += int((headers["wire_bytes"] > headers["frame_bytes"]).sum())
        self._note_cut(headers["frame_bytes"][verdicts == SNAPPED])
        broken = np.flatnonzero(verdicts == MALFORMED)
        each = max(1, -(-broken.size // BROKEN_IN_A_TURN))
        for at in broken[::each].tolist():
            if self._is_cut(start + at):
                self._note_cut(np.repeat(headers["frame_bytes"][at], each))
        self.cut_sampled |= each > 1
        if tagged:
            step = max(1, (stop - start) // SAMPLED_IN_A_TURN)
            for position in range(start, stop, step):
                self._note_tags(position)

    def close(self) -> None:
        """Before the ring is closed, whose memory this looks at."""
        self._headers.close()

    def _note_cut(self, lengths: NDArray[np.uint32]) -> None:
        self.cut_frames += len(lengths)
        for length, count in zip(*np.unique(lengths, return_counts=True), strict=True):
            if length in self.cut_lengths or len(self.cut_lengths) < LENGTHS_MOST:
                self.cut_lengths[int(length)] += int(count)

    def _is_cut(self, position: int) -> bool:
        """Whether a frame whose lengths contradict each other is one whose end was cut off: then
        they do not, once the decoder is told that it was longer."""
        return self._decoded(position) == SNAPPED

    def _decoded(self, position: int) -> int:
        """The verdict on a frame, as if it had been longer than what is in the ring."""
        handle = self._ring.handle
        size = min(int(lib.fc_ring_at(handle, position).frame_bytes), int(handle.frame_room))
        frame = lib.fc_ring_frame_at(handle, position)
        return int(lib.fc_decode(frame, size, size + 1, self._packet))

    def _note_tags(self, position: int) -> None:
        packet = self._packet
        self._decoded(position)
        if packet.tunnel:
            self.tunnels[TUNNELS[int(packet.tunnel)]] += 1
        if packet.flags & lib.FC_PACKET_VLAN:
            vlan = int(packet.network) >> int(lib.FC_NETWORK_VLAN_SHIFT) & 0xFFF
            self.vlans[vlan] += 1
