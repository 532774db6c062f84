"""Mirror points joined: owners of a key, wrapped PSNs, copies that differ. Frames made here."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address
from pathlib import Path

import numpy as np

from flowcheck.lab.synthetic_traffic.queue_pair_frames import WireFrame
from flowcheck.lab.synthetic_traffic.roce_frames import NicPort, frame, write_packets
from flowcheck.lab.synthetic_traffic.synthetic_job import write_pcap
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files

SENDER = NicPort(b"\x02\0\0\0\0\1", IPv4Address("10.0.0.1"))
RECEIVER = NicPort(b"\x02\0\0\0\0\2", IPv4Address("10.0.0.2"))
PMTU_BYTES = 256
MESSAGE_BYTES = 700
PACKETS = 3


def sent(
    seed: int, messages: int, *, psn: int = 0, rkey: int = 9, start_ns: int = 0
) -> tuple[list[bytes], list[WireFrame]]:
    """(payloads, frames) of one queue pair, one frame a microsecond."""
    rng = np.random.default_rng(seed)
    payloads, frames = [], []
    for number in range(messages):
        payloads.append(rng.bytes(MESSAGE_BYTES))
        for transport in write_packets(
            payloads[-1],
            dest_qp=7,
            psn=(psn + number * PACKETS) % (1 << 24),
            va=rkey * 0x100000 + 0x1000 * (number % 8),
            rkey=rkey,
            pmtu_bytes=PMTU_BYTES,
            immediate=struct.pack("<I", MESSAGE_BYTES),
        ):
            time_ns = start_ns + 1000 * len(frames)
            raw = frame(SENDER, RECEIVER, 50000, transport)
            frames.append(WireFrame(time_ns, 0, 1, "data", 0, number, raw))
    return payloads, frames


def written(folder: Path, files: Sequence[Iterable[WireFrame]]) -> list[Path]:
    paths = [folder / f"{number}.pcap" for number in range(len(files))]
    for path, frames in zip(paths, files, strict=True):
        write_pcap(path, frames)
    return paths


def test_two_runs_on_one_queue_pair_seen_by_different_files_are_not_mixed(tmp_path: Path) -> None:
    first, one = sent(1, 5)
    second, two = sent(2, 5, rkey=77, start_ns=10**9)
    for files in ((one, two), (two, one)):
        tape = read_capture_files(written(tmp_path, files))
        assert tape.conflicts == 0
        got = {incarnation: [] for incarnation in (0, 1)}
        for message in tape.messages:
            got[message.flow.incarnation].append(message.payload.tobytes())
        assert got == {0: first, 1: second}
        assert sorted(flow.key.incarnation for flow in tape.flows) == [0, 1]


def test_file_that_saw_both_runs_and_one_that_saw_the_second_agree(tmp_path: Path) -> None:
    first, one = sent(1, 5)
    second, two = sent(2, 5, rkey=77, start_ns=10**9)
    tape = read_capture_files(written(tmp_path, (two[1:], [*one, *two[:-2]])))
    assert [m.payload.tobytes() for m in tape.messages] == first + second
    assert [m.flow.incarnation for m in tape.messages] == [0] * 5 + [1] * 5
    assert all(message.complete for message in tape.messages)


def test_files_that_start_before_and_after_a_wrap_of_the_psn_are_aligned(tmp_path: Path) -> None:
    payloads, frames = sent(3, 12, psn=(1 << 24) - 4 * PACKETS)
    late = frames[5 * PACKETS :]
    early = [wire for wire in frames if wire.message not in (6, 8)]
    for files in ((early, late), (late, early)):
        tape = read_capture_files(written(tmp_path, files))
        assert [m.payload.tobytes() for m in tape.messages] == payloads
        assert len({m.first_psn for m in tape.messages}) == 12
        assert [flow.psn_missing for flow in tape.flows] == [0]


def test_halves_of_one_run_that_share_no_message_are_one_flow(tmp_path: Path) -> None:
    payloads, frames = sent(4, 10, psn=(1 << 24) - 5 * PACKETS)
    cut = 5 * PACKETS
    tape = read_capture_files(written(tmp_path, (frames[:cut], frames[cut:])))
    assert [m.payload.tobytes() for m in tape.messages] == payloads
    assert {m.flow.incarnation for m in tape.messages} == {0}
    starts = [m.first_psn for m in tape.messages]
    assert np.diff(starts).tolist() == [PACKETS] * 9


def test_bytes_on_which_copies_differ_are_named_by_range(tmp_path: Path) -> None:
    _, frames = sent(5, 4)
    other = list(frames)
    at = 2 * PACKETS + 1
    raw = bytearray(other[at].frame)
    raw[60] ^= 0xFF
    other[at] = WireFrame(other[at].time_ns, 0, 1, "data", 0, 2, bytes(raw))
    tape = read_capture_files(written(tmp_path, (frames, other)), icrc_every=0)
    differ = {number: m.conflicts for number, m in enumerate(tape.messages)}
    start = PMTU_BYTES + 60 - (14 + 20 + 8 + 12)
    assert differ == {0: (), 1: (), 2: ((start, start + 1),), 3: ()}
    assert tape.conflicts == 1
    # The same from one mirror point that copied the packet twice.
    both = [*frames[: at + 1], other[at], *frames[at + 1 :]]
    single = read_capture_files(written(tmp_path, (both,)), icrc_every=0)
    assert single.messages[2].conflicts == ((start, start + 1),)
