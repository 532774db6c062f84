"""NAKs that end a queue pair: what they name never reached memory, nor did what follows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.transport import ACK, Packet, parsed, send, write
from support.writes import frames, payload

from flowcheck._core import lib

SENT = [p for n in range(4) for p in write(payload(700, n), psn=3 * n, va=n << 16)]
NAK = Packet(ACK, 4, syndrome=0x62, dest_qp=0x22, source="10.0.0.2", destination="10.0.0.1", msn=1)


@pytest.mark.parametrize("syndrome", [0x61, 0x62, 0x63, 0x64])
def test_a_refused_message_and_all_after_it_are_never_complete(syndrome: int, shm: Path) -> None:
    nak = replace(NAK, syndrome=syndrome)
    with parsed(shm, frames([*SENT[:9], nak, *SENT[9:], *SENT[3:6]])) as run:
        records = list(run.table.messages())
        refused = [bool(m.flags & lib.FC_MESSAGE_REFUSED) for m in records]
        assert refused == [False, True, True, True]
        assert [m.packets_seen for m in records] == [3, 0, 0, 0]
        assert run.counters()["refused_messages"] == 3
        assert run.verdicts() == {"write": 9, "nak": 1, "refused": 6}


@pytest.mark.parametrize("syndrome", [0x60, 0x20, 0x3F, 0x65, 0x00])
def test_other_answers_refuse_nothing(syndrome: int, shm: Path) -> None:
    with parsed(shm, frames([*SENT, replace(NAK, syndrome=syndrome)])) as run:
        assert [m.packets_seen for m in run.table.messages()] == [3] * 4
        assert run.counters()["refused_messages"] == 0


def test_of_several_queue_pairs_the_one_of_its_udp_port_is_meant(shm: Path) -> None:
    pairs = [replace(p, dest_qp=qp, port=50000 + qp) for qp in (1, 2, 3) for p in SENT]
    with parsed(shm, frames([*pairs, replace(NAK, port=50002)])) as run:
        found = [int(flow["refused_psn"]) for flow in run.table.flows()]
        assert [bool(psn) for psn in found] == [False, True, False, False]
    for port in (50000, 50009):
        with parsed(shm, frames([*pairs, replace(NAK, port=port)])) as run:
            assert run.counters()["unpaired_refusals"] == 1
            assert run.counters()["refused_messages"] == 0


def test_each_nak_finds_its_hosts_among_many_also_those_that_came_after_another(shm: Path) -> None:
    """One flow between each two hosts, and NAKs in between: each refuses what it names alone."""
    hosts = [f"10.1.{n // 200}.{n % 200 + 1}" for n in range(600)]
    packets, asked = [], []
    for n, host in enumerate(hosts):
        packets += [replace(p, source=host) for p in SENT[:6]]
        if n % 7 == 3:  # of this one, and of an older one that no NAK named
            for of in (n, n // 2):
                packets.append(replace(NAK, destination=hosts[of]))
                asked.append(of)
    with parsed(shm, frames(packets)) as run:
        found = [bool(flow["refused_psn"]) for flow in run.table.flows() if flow["has_writes"]]
        assert found == [n in asked for n in range(600)]
        assert run.counters()["unpaired_refusals"] == 0


def test_a_nak_before_its_message_and_one_of_a_send(shm: Path) -> None:
    early = [*SENT[:3], replace(NAK, psn=3), *SENT[3:6]]
    with parsed(shm, frames(early)) as run:
        assert [m.packets_seen for m in run.table.messages()] == [3, 0]
    packets = [*send(payload(700), psn=0), *send(payload(700), psn=3)]
    with parsed(shm, frames([*packets[:5], NAK, packets[5]])) as run:
        assert list(run.sends().values()) == [payload(700)]
        assert run.counters()["refused_messages"] == 1


def test_a_corrupt_nak_refuses_nothing_however_icrcs_are_sampled(shm: Path) -> None:
    frame = bytearray(NAK.frame())
    frame[-1] ^= 1
    for every in (1, 1000):
        with parsed(shm, [*frames(SENT), bytes(frame)], icrc_every=every) as run:
            assert run.counters()["refused_messages"] == 0
            assert run.mark(12).said == "icrc_bad"


def test_the_next_owner_starts_without_refusals(shm: Path) -> None:
    new = [replace(p, rkey=99) for p in SENT]
    with parsed(shm, frames([*SENT, NAK, *new])) as run:
        assert [m.packets_seen for m in run.table.messages()] == [3, 0, 0, 0, 3, 3, 3, 3]
