"""Whatever is lost, repeated or late: bytes lie right or are known to be missing."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from support.transport import MIDDLE, Packet, parsed, send, write

from flowcheck._core import lib
from flowcheck.plane.shared_memory.flow_table import PSN_ORIGIN, psn_missing

PMTUS = st.sampled_from([256, 512, 1024])
SIZES = st.lists(st.integers(0, 6000), min_size=1, max_size=8)


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[bytes], list[Packet]]:
    """The messages of one queue pair and their packets, PSNs continued over the wrap."""
    pmtu = draw(PMTUS)
    psn = draw(st.sampled_from([0, 5, 0xFFFFF8]))
    with_immediate = draw(st.booleans())
    messages, packets = [], []
    for nth, size in enumerate(draw(SIZES)):
        data = bytes((nth * 91 + i * 7 + (i >> 8)) & 0xFF for i in range(size))
        immediate = int.from_bytes(size.to_bytes(4, "little"), "big") if with_immediate else None
        made = write(data, psn=psn, va=0x10000 * nth, pmtu=pmtu, immediate=immediate)
        psn += len(made)
        messages.append(data)
        packets += made
    return messages, packets


def check(sent: list[bytes], arrivals: list[Packet], *, all_came: bool) -> None:
    folder = Path(tempfile.mkdtemp(prefix="flowcheck-property-", dir="/dev/shm"))
    try:
        with parsed(folder, [packet.frame() for packet in arrivals], span=5) as run:
            placed = run.reassembled()
            for position, (data, seen) in placed.items():
                record = run.table.message(position)
                assert record.packets_seen <= record.packets
                candidates = [
                    message
                    for nth, message in enumerate(sent)
                    if len(message) == record.length_bytes
                    and (record.flags & 8 or record.va == 0x10000 * nth)
                ]
                assert any(
                    all(d == m for d, m, s in zip(data, message, seen, strict=True) if s)
                    for message in candidates
                )
            distinct = {packet.psn for packet in arrivals}
            flow = run.table.flows()[0]
            span = int(flow["next_psn"]) - int(flow["first_psn"])
            tail = max(0, int(flow["expected_psn"]) - int(flow["next_psn"]))
            assert psn_missing(flow) == span + tail - len(distinct)
            assert flow["duplicate_packets"] == len(arrivals) - len(distinct)
            assert run.counters()["incarnations"] == 0
            assert run.verdicts().keys() <= {"write", "orphan"}
            if all_came:
                assert psn_missing(flow) == 0
                assert sorted(m.length_bytes for m in run.table.messages()) == sorted(
                    map(len, sent)
                )
    finally:
        shutil.rmtree(folder)


@settings(max_examples=60, deadline=None)
@given(streams(), st.data())
def test_lost_and_repeated_packets(
    stream: tuple[list[bytes], list[Packet]], data: st.DataObject
) -> None:
    messages, packets = stream
    keep = data.draw(st.lists(st.integers(0, 2), min_size=len(packets), max_size=len(packets)))
    arrivals = [packet for packet, n in zip(packets, keep, strict=True) for _ in range(n)]
    holes = sum(1 for a, b in itertools.pairwise(keep) if a and not b)
    if arrivals and holes <= 16:
        check(messages, arrivals, all_came=False)


@settings(max_examples=60, deadline=None)
@given(streams(), st.randoms(use_true_random=False))
def test_packets_in_any_order(stream: tuple[list[bytes], list[Packet]], dice: object) -> None:
    messages, packets = stream
    order = list(packets)
    for at in range(0, len(order), 12):
        window = order[at : at + 12]
        dice.shuffle(window)
        order[at : at + 12] = window
    check(messages, order, all_came=True)


@settings(max_examples=40, deadline=None)
@given(streams(), st.data())
def test_going_back_n(stream: tuple[list[bytes], list[Packet]], data: st.DataObject) -> None:
    messages, packets = stream
    stop = data.draw(st.integers(1, len(packets)))
    back = data.draw(st.integers(0, stop - 1))
    check(messages, packets[:stop] + packets[back:], all_came=True)


@st.composite
def mixed(draw: st.DrawFn) -> list[tuple[int, bytes, bool, list[Packet]]]:
    """(first PSN, bytes, is it a SEND, packets) of writes and SENDs on one queue pair."""
    pmtu = draw(PMTUS)
    psn = draw(st.sampled_from([0, 5, 0xFFFFF8]))
    made = []
    for nth, size in enumerate(draw(SIZES)):
        data = bytes((nth * 91 + i * 7 + (i >> 8)) & 0xFF for i in range(size))
        end = draw(st.sampled_from([None, None, "", "imm", "invalidate"]))
        if end is None:
            packets = write(data, psn=psn, va=0x10000 * nth, pmtu=pmtu)
        else:
            packets = send(data, psn=psn, pmtu=pmtu, end=end)
        made.append((psn, data, end is not None, packets))
        psn += len(packets)
    return made


@settings(max_examples=120, deadline=None)
@given(mixed(), st.data())
def test_sends_among_writes_lost_late_and_repeated(
    stream: list[tuple[int, bytes, bool, list[Packet]]], data: st.DataObject
) -> None:
    """A SEND is whole if and only if each of its packets came; and it is what was sent."""
    packets = [packet for *_, some in stream for packet in some]
    keep = data.draw(st.lists(st.integers(0, 2), min_size=len(packets), max_size=len(packets)))
    arrivals = [packet for packet, n in zip(packets, keep, strict=True) for _ in range(n)]
    dice = data.draw(st.randoms(use_true_random=False))
    for at in range(0, len(arrivals), 8):
        window = arrivals[at : at + 8]
        dice.shuffle(window)
        arrivals[at : at + 8] = window
    if not arrivals:
        return
    came = {packet.psn for packet in arrivals}
    wanted = {
        PSN_ORIGIN + psn: sent
        for psn, sent, is_send, some in stream
        if is_send and all(packet.psn in came for packet in some)
    }
    folder = Path(tempfile.mkdtemp(prefix="flowcheck-property-", dir="/dev/shm"))
    try:
        with parsed(folder, [packet.frame() for packet in arrivals], span=5) as run:
            first = int(run.table.flows()[0]["first_psn"])
            # Before the wrap or behind it: the flow's own numbers start where its first came.
            shift = -(2**24) if first < PSN_ORIGIN + stream[0][0] - 2**23 else 0
            assert run.sends() == {psn + shift: sent for psn, sent in wanted.items()}
            assert run.counters()["incarnations"] == 0
            assert run.verdicts().keys() <= {"write", "orphan", "send"}
            writes = [m for m in run.table.messages() if m.kind == lib.FC_KIND_WRITE]
            assert all(m.va in {0x10000 * n for n in range(len(stream))} for m in writes)
            for position, (found, seen) in run.reassembled().items():
                sent = stream[run.table.message(position).va // 0x10000][1]
                assert all(f == b for f, b, s in zip(found, sent, seen, strict=True) if s)
    finally:
        shutil.rmtree(folder)


@settings(max_examples=80, deadline=None)
@given(streams(), streams(), st.data())
def test_a_next_owner_from_another_port_never_lies_in_the_last_ones_messages(
    old: tuple[list[bytes], list[Packet]],
    new: tuple[list[bytes], list[Packet]],
    data: st.DataObject,
) -> None:
    """Whatever of both is lost: an old record holds old bytes only."""
    mine = [packet for packet in old[1] if data.draw(st.integers(0, 3))]
    theirs = [
        Packet(**{**vars(packet), "port": 50001, "rkey": 99, "payload": packet.payload[::-1]})
        for packet in new[1]
        if data.draw(st.integers(0, 3))
    ]
    if not mine or not theirs or not any(packet.opcode != MIDDLE for packet in mine):
        return
    folder = Path(tempfile.mkdtemp(prefix="flowcheck-property-", dir="/dev/shm"))
    try:
        with parsed(folder, [packet.frame() for packet in mine + theirs], span=5) as run:
            # An empty write has no bytes that could lie anywhere, nor a key that could differ.
            placed = [
                mark.message if mark.said == "write" and packet.payload else None
                for mark, packet in zip(run.marks(), mine + theirs, strict=True)
            ]
            before, after = set(placed[: len(mine)]), set(placed[len(mine) :])
            assert before & after <= {None}
    finally:
        shutil.rmtree(folder)
