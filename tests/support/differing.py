"""A mirrored port that brings other bytes than were sent, and both values of them as reported."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from support.incarnations import JOB, Life
from support.lives import Both
from support.staged import Chain

from flowcheck._core import ffi, lib
from flowcheck.lab.synthetic_traffic.queue_pair_frames import WireFrame
from flowcheck.lab.synthetic_traffic.roce_frames import crc_invariant
from flowcheck.lab.synthetic_traffic.synthetic_job import write_pcap

STEP, MESSAGE = 3, 14
"""A result of the third step that rank 0 sends, by LL."""
PAYLOAD = {6: 12 + 16, 7: 12, 8: 12, 9: 12 + 4, 10: 12 + 16, 11: 12 + 16 + 4}
"""{opcode of an RDMA write: bytes before its payload, from the BTH on}"""
MASK = 1
"""What a changed byte is XORed with: the lowest bits of a float32."""


def payload_of(wire: WireFrame) -> bytes:
    transport = wire.frame[62:-4]
    return transport[PAYLOAD[transport[0]] :]


def changed(wire: WireFrame, words: Iterable[int]) -> bytes:
    """The frame with one bit of these data words another, and an ICRC that is right. words: counted
    in its payload, two a line."""
    ip, udp, transport = wire.frame[14:54], wire.frame[54:62], bytearray(wire.frame[62:-4])
    assert crc_invariant(ip, udp, bytes(transport)) == wire.frame[-4:]
    for word in words:
        transport[PAYLOAD[transport[0]] + word // 2 * 16 + word % 2 * 8] ^= MASK
    return wire.frame[:62] + bytes(transport) + crc_invariant(ip, udp, bytes(transport))


def words_of(wire: WireFrame) -> int:
    return len(payload_of(wire)) // 8


def come(both: Both, time_ns: int, *frames: bytes) -> None:
    """Frames come into the first ring, with this time stamp, and all that came is extracted."""
    ring, _, parser, source = both.chain.parts[0]
    for one in frames:
        data = ffi.from_buffer(one)
        assert not lib.fc_ring_put(ring.handle, 0, data, len(one), len(one), time_ns, 0)
        lib.fc_ring_publish(ring.handle, 1, both.chain.commits[0])
    if source.ended:
        ring.end_source()
    parser.parse(ring.slots)
    for extractor in both.extract._extractors:
        extractor.extract(ring.slots)


class Port:
    """The stages over a life of the job, whose one port two mirrors bring, each to its ring."""

    def __init__(self, folder: Path, memory: Path, weights: np.ndarray, **settings: Any) -> None:
        """weights: float32, registration order."""
        life = Life(JOB, weights)
        self.gradients = life.generate().gradients
        self.frames = life.frames_of()
        self.step_frames = len(life.frames_of(stop=life.starts[STEP + 1]))
        self.step_frames -= len(life.frames_of(stop=life.starts[STEP]))
        """Of one step, at the port."""
        data = [wire for wire in self.frames if (wire.kind, wire.sender) == ("data", 0)]
        self.message = [wire for wire in data if wire.message == MESSAGE]
        """Packets."""
        self._place, self._settings = (folder, memory), settings

    def begin(
        self, words: Mapping[int, Iterable[int]] = MappingProxyType({}), ring: int = 1
    ) -> None:
        """words: {packet of the message: words of it that the mirror of that ring changes}"""
        folder, memory = self._place
        ways = [list(self.frames), list(self.frames)]
        for packet, own in words.items():
            at = ways[ring].index(self.message[packet])
            ways[ring][at] = replace(self.message[packet], frame=changed(self.message[packet], own))
        paths = [folder / "0.pcap", folder / "1.pcap"]
        for path, way in zip(paths, ways, strict=True):
            write_pcap(path, way)
        sources = [{"file": "0"}, {"file": "1"}]
        self.both = Both(Chain(folder, memory, paths, 256), source=sources, **self._settings)

    def begin_with_both(
        self, words: Mapping[int, Iterable[int]], *, changed_first: bool = False
    ) -> None:
        """One mirror brings these packets twice, and before the job can be learned all of it."""
        folder, memory = self._place
        way = list(self.frames)
        for packet, own in words.items():
            at = way.index(self.message[packet])
            other = replace(self.message[packet], frame=changed(self.message[packet], own))
            way.insert(at if changed_first else at + 1, other)
        write_pcap(folder / "0.pcap", way)
        self.both = Both(Chain(folder, memory, [folder / "0.pcap"], 4096), **self._settings)

    def lag(self, frames: int) -> None:
        """The second mirror is so many frames behind the first, as long as that one brings any."""
        chain, feed = self.both.chain, self.both.chain.feed

        def behind(limit: int = 0) -> None:
            (first, *_, source), (second, *_) = chain.parts
            due = limit if source.ended else first.head + limit - frames - second.head
            feed(limit, max(0, min(limit, due)))

        chain.feed = behind  # type: ignore[method-assign,assignment]

    @property
    def run(self) -> Any:
        return self.both.chain.run

    def hold_update(self, until: int) -> Callable[[], int]:
        """The updater stays at that step. Returns its work as it was."""
        both, work = self.both, self.both.update.work
        both.update.work = lambda: work() if both.applied_iteration() < until else 0  # type: ignore[method-assign]
        return work

    def come(self, *frames: bytes) -> None:
        """They come at once, and are extracted."""
        come(self.both, self.message[-1].time_ns, *frames)

    def heard(self, kind: type) -> list[Any]:
        return self.both.chain.heard.of(kind)

    def reported(self) -> list[dict[str, Any]]:
        """Ranges of the file of the step."""
        return list(json.loads(self.run.differing_copies(STEP).read_bytes())["elements"])

    def elements_of(self, first_is_sent: bool) -> np.ndarray:
        """[elements] numbers of the elements that are reported; their values must be what was sent
        and what `changed` makes of it."""
        truth, found = self.gradients[STEP - 1], []
        for one in self.reported():
            start, stop = one["start_byte"], one["stop_byte"]
            if not one["later"]:
                continue  # a packet that may be of another message as well is doubted whole
            values = bytes.fromhex(one["first"]), bytes.fromhex(one["later"])
            sent, other = values if first_is_sent else values[::-1]
            assert sent == truth[start:stop]
            flipped = np.frombuffer(sent, "<u4") ^ np.frombuffer(other, "<u4")
            assert (flipped == MASK).all() and start % 4 == stop % 4 == 0
            found += range(start // 4, stop // 4)
        return np.unique(found)
