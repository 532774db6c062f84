"""Kernel RoCE captured on a mirror port: what our marks place equals what the receiver held."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from support.transport import Run, parsing

from flowcheck._core import lib
from flowcheck.plane.frame_sources.pcap_source import PcapSource
from flowcheck.plane.shared_memory.flow_table import psn_missing

WRITES = [
    *(f"v4_write_mtu{mtu}" for mtu in (256, 512, 1024, 2048, 4096)),
    *(f"v6_write_mtu{mtu}" for mtu in (1024, 4096)),
    "v4_write_imm_mtu1024",
    "v4_write_imm_mtu4096",
    "v6_write_imm_mtu1024",
    "v4_write_4qp_mtu1024",
    "v4_write_psnwrap_mtu1024",
    "v4_write_loss_before_mirror",
    "v4_write_ackloss",
    "v4_write_loss_after_mirror",
]
SENDS = [
    *(f"v{ip}_send_{kind}" for ip in (4, 6) for kind in ("mtu1024", "mtu4096", "imm_mtu1024")),
    "v4_send_loss_before_mirror",
    "v4_send_rnr",
]
OPCODES = {
    "WRITE": "write",
    "SEND": "send",
    "READ": "read",
    "FETCH": "atomic",
    "ATOMIC": "atomic",
    "ACK": "ack",
    "UD": "ud",
}


def fnv1a64(data: bytes) -> int:
    """As the receiver's program (rc_tool.c) computes it: its own start value, one digit short."""
    value = 1469598103934665603
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


@pytest.fixture(scope="module")
def scenarios(shared_folder: Path) -> dict[str, dict]:
    listed = json.loads((shared_folder / "captures/rxe/scenarios.json").read_text())
    return {entry["name"]: entry for entry in listed if "name" in entry}


def fill(run: Run, path: Path) -> None:
    with PcapSource(path) as source:
        commit = run.ring.capture_commit()
        while not source.ended:
            source.read_into(run.ring, 4096, commit)
    while run.parser.parse(37):
        continue


@pytest.mark.parametrize("name", WRITES)
def test_reassembled_writes_equal_the_receivers_memory(
    name: str, captures: Path, shm: Path, scenarios: dict[str, dict]
) -> None:
    path = captures / "rxe" / f"{name}.pcap"
    server = scenarios[name]["server"][1]
    addresses = [int(text, 16) for text in re.findall(r"addr 0x([0-9a-f]+)", server)]
    size, held = re.search(r"fnv1a64\(buffer,(\d+)\)=([0-9a-f]+)", server).groups()
    memory = bytearray(int(size))
    with parsing(shm, slots=1024) as run:
        fill(run, path)
        pieces = run.reassembled()
        for position, (data, seen) in sorted(pieces.items()):
            record = run.table.message(position)
            assert all(seen) and record.packets_seen == record.packets
            memory[record.va - addresses[0] : record.va - addresses[0] + len(data)] = data
        assert all(psn_missing(flow) == 0 for flow in run.table.flows())
        assert run.counters()["incarnations"] == 0
    assert fnv1a64(bytes(memory)) == int(held, 16)


def readme_rows(captures: Path) -> dict[str, tuple[Counter, int]]:
    """{file: (verdicts by tshark's opcodes, retransmitted requests)} from the captures' README."""
    rows = {}
    for line in (captures / "rxe/README.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) < 7 or not cells[1].endswith(".pcap"):
            continue
        counts: Counter = Counter()
        for item in cells[4].split(","):
            opcode, count = item.split()
            counts[OPCODES[opcode.split("_")[0]] if opcode != "ATOMIC_ACK" else "atomic"] += int(
                count
            )
        naks = sum(int(count) for count in re.findall(r": (\d+)", cells[6]))
        if naks:
            counts["nak"] += naks
            counts["ack"] -= naks
        rows[cells[1]] = (+counts, int(cells[5]))
    return rows


def test_verdicts_equal_the_opcode_counts_of_tshark(captures: Path, shm: Path) -> None:
    rows = readme_rows(captures)
    assert len(rows) > 30
    for name, (wanted, retransmitted) in rows.items():
        with parsing(shm, slots=1024) as run:
            fill(run, captures / "rxe" / name)
            said = run.verdicts()
            said["ud"] += said.pop("mad", 0)
            assert +said == wanted, name
            if "write" in wanted or "send" in wanted:
                assert run.counters()["duplicate_packets"] == retransmitted, name
            assert run.counters()["icrc_checked_frames"] == sum(wanted.values())


def test_reads_and_sends_on_the_same_queue_pair_leave_no_holes(captures: Path, shm: Path) -> None:
    with parsing(shm, slots=1024) as run:
        fill(run, captures / "rxe/v4_rping.pcap")
        assert [psn_missing(flow) for flow in run.table.flows()] == [0, 0]
        assert run.verdicts()["mad"] == 5
        lengths = Counter((m.kind, m.length_bytes) for m in run.table.messages())
        assert lengths == {(lib.FC_KIND_WRITE, 512): 3, (lib.FC_KIND_SEND, 16): 12}
        assert len(run.sends()) == 12


@pytest.mark.parametrize("name", SENDS)
def test_reassembled_sends_equal_the_receivers_memory(
    name: str, captures: Path, shm: Path, scenarios: dict[str, dict]
) -> None:
    server = scenarios[name]["server"][1]
    size, held = re.search(r"fnv1a64\(buffer,(\d+)\)=([0-9a-f]+)", server).groups()
    memory = bytearray(int(size))
    with parsing(shm, slots=1024) as run:
        fill(run, captures / "rxe" / f"{name}.pcap")
        pieces = sorted(run.sends().items())
        assert len(pieces) == int(re.search(r"recv_completions=(\d+)", server).group(1))
        # README of the captures: message k at (k % 4) of the buffer's quarters.
        for nth, (_, data) in enumerate(pieces):
            start = nth % 4 * len(memory) // 4
            memory[start : start + len(data)] = data
        assert all(m.number == 2**64 - 1 for m in run.table.messages())
        assert not any(flow["has_writes"] for flow in run.table.flows())
        if "imm" in name:
            last = max(run.table.messages(), key=lambda m: m.first_psn)
            assert last.immediate == int(re.search(r"last_imm=0x(\w+)", server).group(1), 16)
    assert fnv1a64(bytes(memory)) == int(held, 16)


def test_pings_of_both_directions_are_whole_sends(captures: Path, shm: Path) -> None:
    for name, size, count in [("v4_ibv_rc_pingpong", 4096, 40), ("v6_ibv_rc_pingpong", 8192, 20)]:
        with parsing(shm, slots=1024) as run:
            fill(run, captures / "rxe" / f"{name}.pcap")
            assert [len(data) for data in run.sends().values()] == [size] * (count)


def test_a_refused_write_reached_no_memory(captures: Path, shm: Path) -> None:
    with parsing(shm, slots=1024) as run:
        fill(run, captures / "rxe/v4_write_bad_rkey.pcap")
        [message] = run.table.messages()
        assert message.flags & lib.FC_MESSAGE_REFUSED and message.packets == 3
        assert message.packets_seen == 0, "never complete"
        assert [int(flow["nak_packets"]) for flow in run.table.flows()] == [0, 1]
        assert run.counters()["refused_messages"] == 1
        assert run.counters()["unpaired_refusals"] == 0


def test_no_other_nak_refuses_anything(captures: Path, shm: Path) -> None:
    for path in sorted((captures / "rxe").glob("*.pcap")):
        if path.stem != "v4_write_bad_rkey":
            with parsing(shm, slots=1024) as run:
                fill(run, path)
                counted = run.counters()
                assert counted["refused_messages"] == counted["unpaired_refusals"] == 0, path.stem
                assert counted["doubtful_frames"] == counted["malformed_frames"] == 0, path.stem


KINDS = {
    "arp": "arp",
    "ipv4/tcp": "tcp",
    "ipv4/udp/dhcp": "udp_other",
    "ipv4/udp/ptp-event": "ptp",
    "ipv4/udp/ptp-general": "ptp",
    "llc/stp": "stp",
    "lldp": "lldp",
}
ROCE = {"RC_RDMA_WRITE": "write", "RC_ACK": "ack", "UD_SEND_ONLY": "mad"}


def test_nccl_captures_hold_what_their_truth_says(captures: Path, truth: Path, shm: Path) -> None:
    for path in sorted(captures.glob("*.pcapng")):
        told = json.loads((truth / f"{path.stem}.json").read_text())
        wanted: Counter = Counter()
        for kind, count in told["frame_census"].items():
            if kind in KINDS:
                wanted[KINDS[kind]] += count
        for opcode, count in told["roce"]["opcodes"].items():
            wanted[next(v for k, v in ROCE.items() if opcode.startswith(k))] += count
        with parsing(shm, slots=2048) as run:
            fill(run, path)
            assert run.verdicts() == wanted, path.name
            missing = sum(psn_missing(flow) for flow in run.table.flows())
            assert missing == told["psn_summary"]["missing_packets_incl_message_tails"]
            found = sorted(
                (m.first_psn - 2**32, m.va, m.rkey, m.length_bytes) for m in run.table.messages()
            )
            assert found == sorted(
                (m["psn_first"], int(m["va"], 16), int(m["rkey"], 16), m["dma_len"])
                for m in told["rdma_messages"]
            )
            for record in run.table.messages():
                assert record.flags & 32, "every message is counted from PSN 0"
                if record.flags & 16 and record.flags & 2:
                    assert record.line_flag == record.number + 1 or record.pmtu_bytes == 0
