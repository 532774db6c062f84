"""The mirror doctor on real captures and on what a mirror does to them; judged by the truth of the
captures, and by what scapy was told to make of them."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scapy.contrib.erspan import ERSPAN_II, ERSPAN_III
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import GRE, Dot1Q, Ether
from scapy.layers.vxlan import VXLAN
from scapy.utils import RawPcapNgReader, RawPcapReader, RawPcapWriter

from flowcheck._core import lib
from flowcheck.errors import ConfigError
from flowcheck.ops.mirror_doctor import live_doctor
from flowcheck.ops.mirror_doctor.copy_causes import CopyCause, copy_causes
from flowcheck.ops.mirror_doctor.loss_runs import LossRuns
from flowcheck.ops.mirror_doctor.named_ports import NamedPort, PortKind
from flowcheck.ops.mirror_doctor.nic_counters import (
    damaged_counters,
    grown,
    interface_state,
    lost_counters,
)
from flowcheck.ops.mirror_doctor.port_figures import Link, links_of
from flowcheck.ops.mirror_doctor.port_verdict import PortQuestion, checks_of
from flowcheck.ops.mirror_doctor.port_watch import PortWatch
from flowcheck.ops.mirror_doctor.switch_words import switch_words
from flowcheck.ops.switch.switch_platforms import all_platforms
from flowcheck.plane.shared_memory.flow_table import flow_key

BOTH_WAYS = "allreduce+partial_p2p"
ONE_WAY = "iter_40000_p2p_iter10"
A, B = "fe80::e42:a1ff:fe9f:58f8", "fe80::ac0:ebff:fe8c:282c"
BTH_AT = 14 + 40 + 8
"""In these captures: IPv6 without tags."""
Frame = tuple[bytes, int]
"""Bytes, microseconds."""
Doctor = Callable[..., tuple[int, dict[str, Any]]]


def frames_of(path: Path) -> list[Frame]:
    with RawPcapNgReader(str(path)) as reader:
        read: Any = reader  # scapy types what pcap has, not pcapng
        return [(data, (meta.tshigh << 32) + meta.tslow) for data, meta in read]


def roce(frame: bytes) -> bool:
    return frame[12:14] == b"\x86\xdd" and frame[20] == 17 and frame[56:58] == b"\x12\xb7"


def opcode(frame: bytes) -> int:
    return frame[BTH_AT]


def is_write(frame: bytes) -> bool:
    """Opcodes of IB table 38."""
    return roce(frame) and 6 <= opcode(frame) <= 11


@pytest.fixture
def real(captures: Path) -> list[Frame]:
    """All frames of a capture of both directions of a port."""
    return frames_of(captures / f"{BOTH_WAYS}.pcapng")


@pytest.fixture
def doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """(exit code, document) of frames that lie in a file."""

    def told(*ports: Sequence[Frame]) -> tuple[int, dict[str, Any]]:
        paths = []
        for number, frames in enumerate(ports):
            paths.append(str(tmp_path / f"{number}.pcap"))
            with RawPcapWriter(paths[-1], linktype=1) as writer:
                writer.write_header(None)
                for data, at_us in frames:
                    writer.write_packet(data, sec=at_us // 10**6, usec=at_us % 10**6)
        code = live_doctor.run(paths, as_json=True)
        return code, json.loads(capsys.readouterr().out)

    return told


def failing(told: dict[str, Any]) -> dict[str, str]:
    """{check: code} of all lines that say that something has to change."""
    lines = [*told["checks"], *(line for port in told["ports"] for line in port["checks"])]
    assert all(line["found"]["remedy"] for line in lines if line["level"] != "ok")
    return {line["check"]: line["found"]["code"] for line in lines if line["level"] == "fail"}


def line_of(told: dict[str, Any], check: str) -> dict[str, Any]:
    lines = [*told["checks"], *told["ports"][0]["checks"]]
    found: dict[str, Any] = next(one["found"] for one in lines if one["check"] == check)
    return found


@pytest.mark.parametrize("name", [BOTH_WAYS, ONE_WAY])
def test_a_real_capture_is_counted_as_its_truth_has_it(
    name: str, captures: Path, truth: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = live_doctor.run([str(captures / f"{name}.pcapng")], as_json=True)
    told = json.loads(capsys.readouterr().out)
    (port,) = told["ports"]
    known = json.loads((truth / f"{name}.json").read_text())
    opcodes = known["roce"]["opcodes"]
    writes = sum(count for opcode, count in opcodes.items() if "RDMA_WRITE" in opcode)
    assert sum(link["data_packets"] + link["control_packets"] for link in port["links"]) == writes
    assert port["verdicts"]["write"] == writes and port["verdicts"]["ack"] == opcodes["RC_ACK"]
    assert port["frames"] == known["capture"]["frames"]
    assert port["duplicate_packets"] == 0 and port["cut_frames"] == 0
    assert sum(link["missing_packets"] for link in port["links"]) == 0
    right = sum(port["verdicts"].get(kind, 0) for kind in ("write", "ack", "mad"))
    assert port["icrc_checked"] == right and "icrc_bad" not in port["verdicts"]
    if name == BOTH_WAYS:
        assert (code, failing(told)) == (0, {})
    else:
        assert (code, failing(told)) == (1, {"halves": "mirror_port.one_half"})


def test_each_host_s_bytes_are_those_of_its_payloads(real: list[Frame], doctor: Doctor) -> None:
    _, told = doctor(real)
    sent = {A: 0, B: 0}
    for data, _ in real:
        if is_write(data) and opcode(data) != 10:  # all but the clear-to-sends
            reth, immediate = opcode(data) in (6, 11), opcode(data) in (9, 11)
            pad = data[BTH_AT + 1] >> 4 & 3
            size = len(data) - BTH_AT - 12 - 16 * reth - 4 * immediate - pad - 4
            sent[A if data[6:12].hex() == "0c42a19f58f8" else B] += size
    hosts = {host["address"]: host for host in told["hosts"]}
    assert {address: hosts[address]["sends_bytes"] for address in sent} == sent
    assert sum(host["receives_bytes"] for host in hosts.values()) == sum(sent.values())


def test_one_direction_dropped_is_one_half(real: list[Frame], doctor: Doctor) -> None:
    """All that comes from B is gone; A's clear-to-sends show that it was sent data."""
    kept = [
        (data, at) for data, at in real if data[6:12].hex() == "0c42a19f58f8" and data[5] != 0x2D
    ]
    code, told = doctor(kept)
    assert (code, failing(told)) == (1, {"halves": "mirror_port.one_half"})
    what = line_of(told, "halves")["arguments"]
    assert (what["source"], what["destination"]) == (A, B)
    granted = sum(is_write(data) and opcode(data) == 10 for data, _ in kept)
    assert [one["level"] for one in told["checks"] if one["check"] == "halves"] == ["fail"]
    (evidence,) = what["granted"]
    assert evidence["code"] == "mirror_port.granted_unseen"
    assert evidence["arguments"] == {"host": A, "packets": granted}


def test_each_frame_twice_is_a_session_of_two_sources(real: list[Frame], doctor: Doctor) -> None:
    code, told = doctor([frame for frame in real for _ in range(2)])
    assert code == 1 and failing(told) == {"duplicates": "mirror_port.mirrored_twice"}
    assert told["ports"][0]["duplicate_packets"] == sum(is_write(data) for data, _ in real)


def test_a_few_packets_twice_without_a_refusal_were_mirrored_twice(
    real: list[Frame], doctor: Doctor
) -> None:
    again = [index for index, (data, _) in enumerate(real) if is_write(data)][10:13]
    frames = [f for index, f in enumerate(real) for _ in range(1 + (index in again))]
    code, told = doctor(frames)
    assert (code, failing(told)) == (0, {})
    assert line_of(told, "duplicates")["code"] == "mirror_port.mirrored_in_part"
    assert line_of(told, "duplicates")["arguments"]["packets"] == 3


def rxe(captures: Path, name: str) -> list[Frame]:
    """A capture of the kernel's soft RoCE over IPv4, with real refusals and retransmissions."""
    with RawPcapReader(str(captures / "rxe" / f"v4_{name}.pcap")) as reader:
        read: Any = reader
        return [(data, meta.sec * 10**6 + meta.usec) for data, meta in read]


@pytest.mark.parametrize(("when", "naks"), [("before", 7), ("after", 5)])
def test_copies_behind_refusals_were_sent_again(
    when: str, naks: int, captures: Path, doctor: Doctor
) -> None:
    frames = rxe(captures, f"write_loss_{when}_mirror")
    _, told = doctor(frames)
    assert "duplicates" not in failing(told)
    what = line_of(told, "duplicates")
    assert what["code"] == "mirror_port.sent_again" and what["arguments"]["naks"] == naks
    assert what["arguments"]["packets"] == told["ports"][0]["duplicate_packets"] > 100
    assert sum(link["nak_packets"] for link in told["ports"][0]["links"]) == naks


def test_copies_are_either_where_the_receiver_is_not_heard(captures: Path, doctor: Doctor) -> None:
    frames = rxe(captures, "write_loss_before_mirror")
    writes = [frame for frame in frames if 6 <= frame[0][14 + 20 + 8] <= 11]
    _, told = doctor(writes)
    assert "duplicates" not in failing(told)
    what = line_of(told, "duplicates")
    assert what["code"] == "mirror_port.came_again" and what["arguments"]["naks"] == 0


def test_copies_are_either_where_a_gap_is_open(real: list[Frame], doctor: Doctor) -> None:
    lost, *again = long_writes(real)[:4]
    frames = [f for n, f in enumerate(real) for _ in range(1 + (n in again)) if n != lost]
    _, told = doctor(frames)
    codes = {one["found"]["code"] for one in told["ports"][0]["checks"]}
    assert "mirror_port.came_again" in codes and "mirror_port.mirrored_twice" not in codes


@pytest.mark.parametrize("copies", [2, 3])
def test_a_refusal_does_not_hide_a_mirror_that_sends_all_twice(copies: int) -> None:
    links = [
        Link(source="a", destination="b", data_packets=9000 * copies,
             duplicate_packets=9000 * (copies - 1), doubled_packets=9000 * (copies - 1)),
        Link(source="b", destination="a", ack_packets=90 * copies, nak_packets=2),
    ]  # fmt: skip
    assert [cause for _, cause in copy_causes(links)] == [CopyCause.EITHER]


def test_frames_of_128_bytes_were_cut_by_the_session(real: list[Frame], doctor: Doctor) -> None:
    """The switch sends them so: no length tells how long they were but the IP header."""
    code, told = doctor([(data[:128], at) for data, at in real])
    cut = sum(roce(data) and len(data) > 128 for data, _ in real)
    assert code == 1 and failing(told)["truncation"] == "mirror_port.truncated"
    what = line_of(told, "truncation")["arguments"]
    assert (what["frames"], what["bytes"]) == (cut, 128)


@pytest.mark.parametrize(
    ("outer", "kind"),
    [
        (lambda inner: Ether(inner[:12] + b"\x81\x00") / Dot1Q(vlan=77, type=0x86DD) / inner[14:],
         None),
        (lambda inner: _tunnel(GRE(proto=0x88BE, seqnum_present=1) / ERSPAN_II(ver=1), inner),
         "ERSPAN II"),
        (lambda inner: _tunnel(GRE(proto=0x22EB, seqnum_present=1) / ERSPAN_III(ver=2), inner),
         "ERSPAN III"),
        (lambda inner: _tunnel(GRE(proto=0x88BE), inner), "ERSPAN I"),
        (lambda inner: _tunnel(GRE(proto=0x6558), inner), "GRE"),
        (lambda inner: _tunnel(UDP(sport=9, dport=4789, chksum=0) / VXLAN(vni=5), inner), "VXLAN"),
    ],
)  # fmt: skip
def test_what_a_mirror_wraps_around_is_told_and_taken_off(
    outer: Callable[[bytes], Any], kind: str | None, real: list[Frame], doctor: Doctor
) -> None:
    only = [(data, at) for data, at in real if roce(data)]
    code, told = doctor([(bytes(outer(data)), at) for data, at in only])
    (port,) = told["ports"]
    assert (code, failing(told)) == (0, {})
    assert port["verdicts"]["write"] == sum(is_write(data) for data, _ in only)
    assert port["encapsulated_frames"] == (len(only) if kind else 0)
    assert list(port["tunnels"]) == ([kind] if kind else [])
    assert (port["vlan_frames"], port["vlans"]) == ((0, []) if kind else (len(only), [77]))


def _tunnel(header: Any, inner: bytes) -> Any:
    return Ether(type=0x0800) / IP(src="10.0.0.1", dst="10.0.0.2") / header / inner


def test_lost_copies_are_counted_by_their_sequence_numbers(captures: Path, doctor: Doctor) -> None:
    """Every 97th frame is gone; of those the write packets within their queue pair count."""
    frames = frames_of(captures / f"{ONE_WAY}.pcapng")
    flows: dict[bytes, list[int]] = {}
    for index, (data, _) in enumerate(frames):
        if is_write(data):
            flows.setdefault(data[BTH_AT + 5 : BTH_AT + 8], []).append(index)
    gone = {index for index in range(len(frames)) if index % 97 == 50}
    missing = 0
    for indices in flows.values():
        kept = [index for index in indices if index not in gone]
        missing += sum(kept[0] < index < kept[-1] for index in indices if index in gone)
    code, told = doctor([frame for index, frame in enumerate(frames) if index not in gone])
    assert code == 1 and failing(told)["loss"] == "mirror_port.lost_before"
    assert missing > 5 and line_of(told, "loss")["arguments"]["packets"] == missing


def longest_flow(frames: Sequence[Frame]) -> list[int]:
    """The frames with writes of the queue pair that has most of them."""
    flows: dict[bytes, list[int]] = {}
    for n, (data, _) in enumerate(frames):
        if is_write(data):
            flows.setdefault(data[BTH_AT + 5 : BTH_AT + 8], []).append(n)
    return max(flows.values(), key=len)


def without_runs(frames: list[Frame], lengths: Sequence[int]) -> list[Frame]:
    """Of the longest flow so many in a row are gone, with five left before each."""
    own, gone = longest_flow(frames), set[int]()
    at = 0
    for length in lengths:
        gone |= {*own[at + 5 : at + 5 + length]}
        at += 5 + length
    assert at < len(own)
    return [frame for n, frame in enumerate(frames) if n not in gone]


def test_losses_in_a_row_are_as_long_as_they_were(captures: Path, doctor: Doctor) -> None:
    frames = frames_of(captures / f"{ONE_WAY}.pcapng")
    _, told = doctor(without_runs(frames, (1, 4, 1, 10)))
    what = line_of(told, "loss_runs")
    assert what["code"] == "mirror_port.lost_in_a_row"
    assert what["arguments"] | {"unlisted": [], "damaged": []} == what["arguments"]
    known = {"mean": 4.0, "longest": 10, "gaps": 4}
    assert what["arguments"] | known == what["arguments"]
    (runs,) = [one["loss_runs"] for one in told["ports"][0]["links"] if one["missing_packets"]]
    assert runs == {"runs": 4, "packets": 16, "longest": 10, "unlisted_packets": 0}
    _, whole = doctor(frames)
    assert not [one for one in whole["ports"][0]["checks"] if one["check"] == "loss_runs"]


def test_gaps_that_the_table_has_no_place_for_are_told(captures: Path, doctor: Doctor) -> None:
    """It lists the latest 16 of a queue pair."""
    frames = frames_of(captures / f"{ONE_WAY}.pcapng")
    _, told = doctor(without_runs(frames, (7, 6, *[2] * 16)))
    what = line_of(told, "loss_runs")["arguments"]
    assert (what["mean"], what["longest"], what["gaps"]) == (2.0, 2, 16)
    assert what["unlisted"][0]["arguments"] == {"packets": 13}
    assert line_of(told, "loss")["arguments"]["packets"] == 13 + 32


def test_gaps_before_the_watch_of_a_chain_s_port_are_left_out(captures: Path) -> None:
    """The first gap, of 9, loses its place to later ones."""
    frames = without_runs(frames_of(captures / f"{ONE_WAY}.pcapng"), (9, 3, *[2] * 15))
    middle = longest_flow(frames)[7]
    with PortWatch(NamedPort("eth-none", PortKind.INTERFACE)) as watch:

        def records(start: int, stop: int) -> list[np.void]:
            for n, (data, _) in enumerate(frames[start:stop], start):
                size = len(data)
                assert not lib.fc_ring_put(watch.ring.handle, n, data, size, size, n + 1, n)
            lib.fc_ring_publish(watch.ring.handle, stop, watch.ring.capture_commit())
            while watch.turn():
                pass
            return [record.copy() for record in watch._flows.flows()]

        before = {flow_key(one): one for one in records(0, middle)}
        links = links_of(records(middle, len(frames)), before)
    assert sum(one["holes_used"] for one in before.values()) == 1
    (found,) = [one.loss_runs for one in links if one.loss_runs.runs]
    assert found == LossRuns(runs=16, packets=33, longest=3, unlisted_packets=0)


def test_a_burst_is_as_long_and_large_as_it_was_sent(real: list[Frame], doctor: Doctor) -> None:
    """300 frames evenly in 3 ms, ten more in the second before and after."""
    one = next(data for data, _ in real if is_write(data) and len(data) > 1000)
    lone = [(one, 1_000_000 * 10**3 // 10**3 + 100_000 * n) for n in range(10)]
    burst = [(one, 2_000_000 + 10 * n) for n in range(300)]
    _, told = doctor([*lone, *burst, (one, 3_000_000)])
    load = told["ports"][0]["load"]
    assert (load["busy_run_bytes"], load["busy_run_ms"]) == (300 * len(one), 3)
    assert load["peak_1ms_gbps"] == pytest.approx(100 * (len(one) + 24) * 8 / 1e6, rel=1e-3)
    assert load["peak_100ms_gbps"] == pytest.approx(300 * (len(one) + 24) * 8 / 1e8, rel=1e-3)
    assert 295 * len(one) < load["backlog_bytes"] <= 310 * len(one)


def test_rewritten_addresses_leave_no_right_checksum(real: list[Frame], doctor: Doctor) -> None:
    """As NAT on the way: the ICRC covers the addresses, but not the hop limit."""
    far = [(d[:21] + b"\x07" + d[22:] if roce(d) else d, at) for d, at in real]
    assert doctor(far)[0] == 0
    moved = [(d[:22] + b"\xfd" + d[23:] if roce(d) else d, at) for d, at in real]
    code, told = doctor(moved)
    assert code == 1 and failing(told) == {"icrc": "mirror_port.icrc_none_right"}
    writes = sum(is_write(data) for data, _ in real)
    (port,) = told["ports"]
    assert sum(link["data_packets"] + link["control_packets"] for link in port["links"]) == writes


def damage(frame: Frame) -> Frame:
    data, at_us = frame
    return data[:500] + bytes([data[500] ^ 1]) + data[501:], at_us


def long_writes(frames: Sequence[Frame]) -> list[int]:
    """Frames with writes amid their queue pair: a later one shows that they are missing."""
    writes = [n for n, (data, _) in enumerate(frames) if is_write(data)]
    last = {frames[n][0][BTH_AT + 5 : BTH_AT + 8]: n for n in writes}
    found = [n for n in writes if len(frames[n][0]) > 1000][4:]
    return [n for n in found if last[frames[n][0][BTH_AT + 5 : BTH_AT + 8]] != n]


def test_damaged_frames_are_not_lost_on_the_way_too(real: list[Frame], doctor: Doctor) -> None:
    for at in long_writes(real)[:3]:
        real[at] = damage(real[at])
    code, told = doctor(real)
    assert (code, failing(told)) == (1, {"icrc": "mirror_port.icrc_some_wrong"})
    assert line_of(told, "icrc")["arguments"] == {"frames": 3, "of": sum(map(_roce, real))}
    assert line_of(told, "loss")["code"] == "mirror_port.came_damaged"
    assert line_of(told, "loss")["arguments"]["packets"] == 3
    links = told["ports"][0]["links"]
    assert sum(link["damaged_packets"] for link in links) == 3


def test_what_is_lost_beside_damaged_frames_is_told_of_its_link(
    captures: Path, doctor: Doctor
) -> None:
    frames = frames_of(captures / f"{ONE_WAY}.pcapng")
    at = long_writes(frames)[:40:4]
    for damaged in at[:4]:
        frames[damaged] = damage(frames[damaged])
    code, told = doctor([frame for n, frame in enumerate(frames) if n not in at[4:]])
    assert code == 1 and failing(told)["loss"] == "mirror_port.lost_before"
    what = line_of(told, "loss")["arguments"]
    assert what["packets"] == 6 and what["beside"][0]["arguments"] == {"packets": 4}
    assert [one["arguments"]["packets"] for one in what["links"]] == [6]


@pytest.mark.parametrize("lost", [0, 3])
def test_cut_frames_are_not_lost_on_the_way_too(lost: int, captures: Path, doctor: Doctor) -> None:
    """No figure has the queue pair of a cut frame: the port's sum tells."""
    frames = frames_of(captures / f"{ONE_WAY}.pcapng")
    at = long_writes(frames)[:120:4]
    for cut in at[lost:]:
        frames[cut] = frames[cut][0][:128], frames[cut][1]
    code, told = doctor([frame for n, frame in enumerate(frames) if n not in at[:lost]])
    found, what = failing(told), line_of(told, "loss")
    assert code == 1 and found["truncation"] == "mirror_port.truncated"
    if lost:
        assert found["loss"] == "mirror_port.lost_before" and what["arguments"]["packets"] == 3
    else:
        assert "loss" not in found and what["code"] == "mirror_port.came_damaged"
        assert what["arguments"]["packets"] == len(at)


def test_of_two_links_beside_cut_frames_each_loss_is_at_most_so_large(
    real: list[Frame], doctor: Doctor
) -> None:
    """Of each link two packets are lost and one is cut: whose the cut ones are is not known."""
    lost: set[int] = set()
    for host in ("0c42a19f58f8", "08c0eb8c282c"):
        others = bytes(100), 0
        flow = longest_flow([one if one[0][6:12].hex() == host else others for one in real])
        lost |= {flow[5], flow[7]}
        real[flow[9]] = real[flow[9]][0][:128], real[flow[9]][1]
    _, told = doctor([frame for n, frame in enumerate(real) if n not in lost])
    what = line_of(told, "loss")["arguments"]
    assert what["packets"] == 4 and what["beside"][0]["arguments"] == {"packets": 2}
    links = [(one["code"], one["arguments"]["packets"]) for one in what["links"]]
    assert links == [("mirror_port.lost_of_link_at_most", 3)] * 2


def _roce(frame: Frame) -> bool:
    return roce(frame[0])


def test_traffic_without_rdma_says_what_it_is(real: list[Frame], doctor: Doctor) -> None:
    code, told = doctor([frame for frame in real if not roce(frame[0])])
    assert code == 1 and failing(told)["frames"]
    assert line_of(told, "frames")["code"] == "mirror_port.no_writes"
    assert doctor([])[1]["ports"][0]["checks"][0]["found"]["code"] == (
        "mirror_port.file_without_frames"
    )


def test_two_ports_together_have_both_halves(real: list[Frame], doctor: Doctor) -> None:
    from_a = [frame for frame in real if frame[0][6:12].hex() == "0c42a19f58f8"]
    others = [frame for frame in real if frame[0][6:12].hex() != "0c42a19f58f8"]
    code, told = doctor(from_a, others)
    assert (code, failing(told)) == (0, {})
    both = doctor(real, real)[1]
    second = [one["found"] for one in both["checks"] if one["check"] == "second_mirror"]
    assert len(second) == 1 and len(second[0]["arguments"]["ports"]) == 2


def test_hostile_frames_end_in_a_report(real: list[Frame], doctor: Doctor) -> None:
    """Cut at each length, bits turned over, stamps that go back and a length of nothing."""
    data = next(data for data, _ in real if is_write(data))
    frames = [(data[:size], size * 7 % 50) for size in range(1, len(data), 5)]
    frames += [(data[:n] + bytes([data[n] ^ 0xFF]) + data[n + 1 :], 9) for n in range(14, 90)]
    tunnel = struct.pack("!HH", 0x1000, 0x88BE) + bytes(8)
    frames += [(bytes(Ether(type=0x0800) / IP(proto=47) / tunnel[:n]), 3) for n in range(13)]
    code, told = doctor(frames)
    assert code == 1 and sum(told["ports"][0]["verdicts"].values()) == len(frames)


def test_a_port_that_is_none_is_refused_with_what_there_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pcap")
    for names, code in (
        ([str(tmp_path / "pipe.pcap")], "mirror_port.not_a_file"),
        (["eth-none"], "mirror_port.neither_port_nor_file"),
        (["lo", "lo"], "mirror_port.named_twice"),
        (["0000:ff:1f.7"], "capture_port.no_device"),
    ):
        with pytest.raises(ConfigError) as refused:
            live_doctor.run(names)
        assert refused.value.right.code == code and refused.value.right.remedy


class NoPort:
    """Stands for a port of which frames lie in the ring already."""

    hangs = False

    def start(self) -> None: ...

    def check(self) -> None: ...

    def stop(self) -> None: ...


def test_more_than_it_can_look_at_is_told_as_a_sample(captures: Path) -> None:
    """Three quarters of the ring wait, and the capture's counters tell of frames that it had no
    room for."""
    frames = frames_of(captures / f"{ONE_WAY}.pcapng")
    dropped = 200
    kept = [data for index, (data, _) in enumerate(frames) if not 700 <= index < 700 + dropped]
    with PortWatch(NamedPort("eth-none", PortKind.INTERFACE)) as watch:
        repeated = [kept[0]] * (watch.ring.slots * 3 // 4 - len(kept)) + kept
        for number, data in enumerate(repeated):
            put = lib.fc_ring_put(
                watch.ring.handle, number, data, len(data), len(data), number * 1000 + 1, number
            )
            assert put == 0
        commit = watch.ring.capture_commit()
        commit.counters.rx_frames = len(repeated) + dropped
        commit.counters.ring_full_frames = dropped
        lib.fc_ring_publish(watch.ring.handle, len(repeated), commit)
        watch.attach(NoPort())  # type: ignore[arg-type]
        watch.finish()
        port = watch.figures(1.0)
    assert port.frames == len(repeated) + dropped
    assert {"icrc", "loss", "peaks"} <= {*port.sampled}
    assert port.icrc_checked < len(repeated) / 2
    lines = {one.check: one for one in checks_of(port, seconds=1.0)}
    lost = lines[PortQuestion.LOSS]
    assert (lost.level, lost.found.code) == ("warn", "mirror_port.lost_uncertain")
    assert lost.found.arguments["least"] == 0
    assert lines[PortQuestion.LOST_HERE].found.code == "mirror_port.dropped_here"


@pytest.mark.parametrize(
    ("names", "kinds"),
    [
        # mlx5 and ice (kernel sources, en_stats.c and ice_ethtool.c), ixgbe, bnxt, and sysfs
        (("rx_out_of_buffer", "rx_discards_phy", "rx_missed_errors"), "lost"),
        (("rx_no_buffer_count", "rx_fifo_errors", "rx_total_discard_pkts"), "lost"),
        (("rx_no_dma_resources", "rx_over_errors"), "lost"),
        (("rx_crc_errors_phy", "rx_symbol_err_phy", "rx_fcs_err_frames"), "damaged"),
        (("rx_packets", "rx_dropped", "tx_discards_phy", "rx_vport_unicast_packets"), ""),
    ],
)
def test_counters_of_drivers_are_known_by_their_names(names: tuple[str, ...], kinds: str) -> None:
    counters = dict.fromkeys(names, 1)
    assert set(lost_counters(counters)) == (set(names) if kinds == "lost" else set())
    assert set(damaged_counters(counters)) == (set(names) if kinds == "damaged" else set())


def test_why_nothing_came_is_told_by_the_interface(tmp_path: Path) -> None:
    """Files as the kernel has them (sysfs-class-net)."""
    folder = tmp_path / "eth9"
    (folder / "statistics").mkdir(parents=True)
    for state, code in (
        ({"flags": "0x1002"}, "mirror_port.is_down"),
        ({"flags": "0x1003", "carrier": "0"}, "mirror_port.no_link"),
        ({"flags": "0x1003", "carrier": "1", "speed": "100000"}, "mirror_port.no_frame"),
        ({"statistics/rx_missed_errors": "9"}, "mirror_port.no_frame_but_counted"),
    ):
        before = interface_state("eth9", tmp_path)
        for name, value in state.items():
            (folder / name).write_text(f"{value}\n")
        now = interface_state("eth9", tmp_path)
        with PortWatch(NamedPort("eth9", PortKind.INTERFACE)) as watch:
            port = watch.figures(2.0)
        port.admin_up, port.link_up, port.speed_mbps = now.admin_up, now.link_up, now.speed_mbps
        port.interface_counters = grown(before, now)
        (line,) = checks_of(port, seconds=2.0)
        assert (line.level, line.found.code) == ("fail", code)
    port.gone = True
    assert checks_of(port, seconds=2.0)[0].found.code == "mirror_port.is_gone"
    assert port.speed_mbps == 100000


@pytest.mark.parametrize("system", [*all_platforms()])
def test_each_switch_system_has_its_words(system: str) -> None:
    words = switch_words(system)
    assert words.found.arguments["truncation"] == all_platforms()[system].truncation
    assert words.commands
