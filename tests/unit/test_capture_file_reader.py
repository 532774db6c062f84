"""Capture files read to their end, judged by what an independent decoder found in them."""

from __future__ import annotations

import gc
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scapy.all import Ether, PcapNgReader, PcapWriter
from scapy.contrib.roce import BTH
from support.netib import Options, generate

from flowcheck.errors import CaptureError
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.plane.mirror_merge.mirror_point_merge import merge_message
from flowcheck.wire.traffic.observed_messages import FlowKey, ObservedMessage

ADDSTEP = "allreduce_addstep.pcapng"


def seen(
    payload: list[int], missing: tuple[tuple[int, int], ...] = (), **more: object
) -> ObservedMessage:
    fields: dict[str, object] = {
        "flow": FlowKey(source="a", destination="b", dest_qp=1),
        "first_psn": 2**32,
        "packets": 2,
        "number": None,
        "psn_counted": False,
        "va": 0,
        "rkey": 0,
        "immediate": None,
        "wire_bytes": len(payload),
        "payload": np.array(payload, np.uint8),
        "missing": missing,
        "first_ns": 5,
        "order": 1,
    }
    return ObservedMessage(**(fields | more))  # type: ignore[arg-type]


def rewrite(source: Path, target: Path, keep: object) -> None:
    """The frames of `source` whose ordinal `keep` accepts, as scapy writes them."""
    with PcapNgReader(str(source)) as frames, PcapWriter(str(target), linktype=1) as out:
        for ordinal, frame in enumerate(frames):
            if keep(ordinal):  # type: ignore[operator]
                out.write(frame)


def test_every_frame_of_every_capture_has_a_verdict(captures: Path) -> None:
    for path in sorted(captures.glob("*.pcapng")):
        tape = read_capture_files([path])
        with PcapNgReader(str(path)) as frames:
            assert tape.total == sum(1 for _ in frames), path.name
        assert tape.frames["unknown"] == 0
        assert tape.conflicts == 0
        assert tape.dropped_packets == 0


def test_messages_carry_the_bytes_scapy_finds_in_the_frames(captures: Path) -> None:
    path = captures / "iter_40000_p2p.pcapng"
    expected: Counter[tuple[int, int]] = Counter()
    bodies: dict[int, list[bytes]] = {}
    with PcapNgReader(str(path)) as frames:
        for raw in frames:
            frame = Ether(bytes(raw))
            if BTH not in frame or not 6 <= frame[BTH].opcode <= 11:
                continue
            opcode, body = frame[BTH].opcode, bytes(frame[BTH].payload)
            body = body[16 if opcode in (6, 10, 11) else 0 :]
            body = body[4 if opcode in (9, 11) else 0 :]
            expected[frame[BTH].dqpn, opcode] += 1
            bodies.setdefault(frame[BTH].dqpn, []).append(body)
    tape = read_capture_files([path])
    for qp, pieces in bodies.items():
        ours = [m.payload.tobytes() for m in tape.messages if m.flow.dest_qp == qp]
        assert b"".join(ours) == b"".join(pieces)
    assert len(tape.messages) == sum(
        n for (_, opcode), n in expected.items() if opcode in (6, 10, 11)
    )


def test_lost_tail_of_the_capture_is_missing_packets_nine(captures: Path) -> None:
    tape = read_capture_files([captures / ADDSTEP])
    cut = [message for message in tape.messages if not message.complete]
    assert [(m.wire_bytes, m.missing) for m in cut] == [(16384, ((7 * 1024, 16384),))]
    assert not cut[0].payload[7 * 1024 :].any()
    assert sum(flow.psn_missing for flow in tape.flows) == 9


def test_two_mirror_points_that_lost_different_frames_make_one_whole(
    captures: Path, tmp_path: Path
) -> None:
    whole = read_capture_files([captures / "iter_40000_p2p.pcapng"])
    names = []
    for part in range(2):
        target = tmp_path / f"mirror{part}.pcap"
        rewrite(captures / "iter_40000_p2p.pcapng", target, lambda n, p=part: n % 5 != p + 1)
        names.append(target)
    single = read_capture_files(names[:1])
    both = read_capture_files(names)
    assert any(not message.complete for message in single.messages)
    assert both.conflicts == 0
    ours = {(m.flow, m.first_psn): m for m in both.messages}
    for message in whole.messages:
        twin = ours[message.flow, message.first_psn]
        assert twin.complete
        assert np.array_equal(twin.payload, message.payload)
    assert [flow.psn_missing for flow in both.flows] == [0] * len(whole.flows)
    assert {f.key: f.payload_bytes for f in both.flows} == {
        f.key: f.payload_bytes for f in whole.flows
    }


def test_merged_messages_fill_each_others_gaps_and_count_contradictions() -> None:
    one = seen([1, 2, 3, 0, 0, 0], ((3, 6),))
    other = seen([0, 2, 9, 4, 0, 0], ((0, 1), (4, 6)), number=7)
    both, differ = merge_message(one, other)
    assert both.payload.tolist() == [1, 2, 3, 4, 0, 0]
    assert both.missing == ((4, 6),)
    assert both.number == 7
    assert differ == 1


def test_length_of_a_message_with_its_start_beats_an_inferred_one() -> None:
    both, _ = merge_message(seen([1, 2], length_inferred=True), seen([1, 2, 3]))
    assert both.wire_bytes == 3


@pytest.mark.parametrize(
    "name",
    [
        "v4_write_loss_before_mirror",
        "v4_write_loss_after_mirror",
        "v4_write_ackloss",
        "v4_write_psnwrap_mtu1024",
        "v6_write_imm_mtu1024",
    ],
)
def test_receivers_memory_of_the_kernel_lab_is_in_the_messages(captures: Path, name: str) -> None:
    """Staged payloads, written to their addresses in order, hash as the kernel's receiver did."""
    listed = json.loads((captures / "rxe" / "scenarios.json").read_text())
    server = next(one["server"][1] for one in listed if one.get("name") == name)
    start = int(re.search(r"addr 0x([0-9a-f]+)", server)[1], 16)
    size, held = re.search(r"fnv1a64\(buffer,(\d+)\)=([0-9a-f]+)", server).groups()
    tape = read_capture_files([captures / "rxe" / f"{name}.pcap"])
    memory = bytearray(int(size))
    for message in tape.messages:
        assert message.complete
        memory[message.va - start : message.va - start + message.wire_bytes] = bytes(
            message.payload
        )
    value = 1469598103934665603  # rc_tool.c's own start value
    for byte in memory:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    assert value == int(held, 16)
    assert tape.conflicts == tape.dropped_packets == 0


def test_what_is_no_capture_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "not.pcap"
    target.write_bytes(b"hello" * 100)
    with pytest.raises(CaptureError):
        read_capture_files([target])


def test_payloads_lie_in_one_mapping_that_ends_with_the_last_of_them(tmp_path: Path) -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("flowcheck-tape-")

    before = mapped()
    made = generate(Options(shapes=((64, 100), (64,)), steps=3), tmp_path)
    messages = read_capture_files(made.files).messages
    assert mapped() > before
    longest = max(messages, key=lambda message: message.wire_bytes)
    payload, told = longest.payload, longest.payload.tobytes()
    assert not payload.flags.writeable
    del messages, longest
    gc.collect()
    assert mapped() > before
    assert payload.tobytes() == told
    del payload
    gc.collect()
    assert mapped() == before
