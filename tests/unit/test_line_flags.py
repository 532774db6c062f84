"""What is lines and what only looks like them: by a few lines, by clear-to-send messages for the
same buffers, and by the sends beside it; judged by a generator that shares nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.netib import Options, generate

from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.collectives.nccl_parameters import Protocol
from flowcheck.wire.collectives.nccl_wire_format import ClearToSend, CtsLayout
from flowcheck.wire.learn import read_stream
from flowcheck.wire.learn.flows.granted_buffers import GrantedBuffers
from flowcheck.wire.learn.flows.line_flags import Place, line_flag, out_of_step
from flowcheck.wire.traffic.observed_messages import FlowKey, ObservedMessage, Range

MIXED = Options(
    protocol="Simple", mix=((4096, "LL"),), shapes=((16448,),), steps=4, version=(2, 23)
)
"""Slices of 32,768 and of 128 bytes in Simple, start-up messages in LL."""
DICE = np.random.default_rng(3)


@pytest.mark.parametrize("lost", range(0, 36, 3))
@pytest.mark.parametrize("shift", [0, 1])
def test_a_lost_clear_to_send_leaves_what_it_granted_told(
    lost: int, shift: int, tmp_path: Path
) -> None:
    made = generate(replace(MIXED, grants_lost=(lost + shift,)), tmp_path)
    tape = read_capture_files(made.files)
    reading = read_stream(tape.flows, tape.messages)
    assert reading.job is not None, reading.why_not
    told = [(c.kind, c.protocol.value, c.result.tobytes()) for c in reading.collectives]
    assert told == [(c.kind, c.protocol, c.result) for c in made.truth.collectives]
    assert all(c.complete for c in reading.collectives)


@pytest.mark.parametrize("ranks", [2, 3])
def test_one_way_without_any_clear_to_send_slices_of_a_line_are_none(
    ranks: int, tmp_path: Path
) -> None:
    """Every clear-to-send of the way seen goes the other way."""
    shapes = ((8224 * ranks,),)
    made = generate(replace(MIXED, ranks=ranks, shapes=shapes, directions="tx"), tmp_path)
    tape = read_capture_files(made.files)
    reading = read_stream(tape.flows, tape.messages)
    assert reading.job is not None, reading.why_not
    assert {c.protocol for c in reading.collectives if c.bytes > 4096} == {Protocol.SIMPLE}
    assert not any(c.protocol is Protocol.LL128 for c in reading.collectives)


def message(
    payload: NDArray[np.uint8], *, missing: tuple[Range, ...] = (), stated: int | None = None
) -> ObservedMessage:
    """stated: by its immediate; None: its own size."""
    size = len(payload) if stated is None else stated
    return ObservedMessage(
        flow=FlowKey(source="A", destination="B", dest_qp=7),
        first_psn=1 << 32,
        packets=1,
        number=0,
        psn_counted=True,
        va=1 << 40,
        rkey=9,
        immediate=int.from_bytes(size.to_bytes(4, "little"), "big"),
        wire_bytes=len(payload),
        payload=payload,
        missing=missing,
        first_ns=0,
        order=0,
    )


def in_ll(lines: int, flag: int) -> NDArray[np.uint8]:
    words = DICE.integers(1, 1 << 32, (lines, 4), np.uint32)
    words[:, 1::2] = flag
    return words.reshape(-1).view(np.uint8)


def in_ll128(lines: int, flag: int) -> NDArray[np.uint8]:
    words = DICE.integers(1, 1 << 63, (lines, 16), np.uint64)
    words[:, 15] = flag
    return words.reshape(-1).view(np.uint8)


@pytest.mark.parametrize("lines", [1, 2, 7, 8, 9, 1000])
def test_lines_are_known_by_their_flag(lines: int) -> None:
    assert line_flag(message(in_ll(lines, 5))) == (Protocol.LL, 5)
    assert line_flag(message(in_ll128(16 * lines, 6))) == (Protocol.LL128, 6)


def test_a_whole_message_in_ll128_is_groups_of_lines_and_a_piece_is_lines() -> None:
    assert line_flag(message(in_ll128(1, 6))) is None
    assert line_flag(message(in_ll128(24, 6))) is None
    assert line_flag(message(in_ll128(1, 6), stated=2048)) == (Protocol.LL128, 6)


def test_a_word_whose_upper_half_is_used_is_no_flag() -> None:
    assert line_flag(message(in_ll128(16, 1 << 32 | 6))) is None


def test_one_line_of_another_flag_among_few_says_that_there_are_none() -> None:
    payload = in_ll(8, 5)
    payload.view("<u4")[4 * 3 + 1] = 6
    assert line_flag(message(payload)) is None


def test_only_lines_that_were_captured_are_read() -> None:
    payload = in_ll(100, 5)
    for start, stop in (lost := ((0, 24), (64, 1200), (1590, 1600))):
        payload[start:stop] = 0
    assert line_flag(message(payload, missing=lost)) == (Protocol.LL, 5)
    assert line_flag(message(payload, missing=((0, 1600),))) is None


class Counted(np.ndarray[Any, np.dtype[np.uint8]]):
    """Bytes of which parts are counted as they are taken."""

    taken = 0

    def __getitem__(self, at: Any) -> Any:
        part = super().__getitem__(at)
        Counted.taken += part.nbytes
        return part


@pytest.mark.parametrize("granted", [None, *Protocol])
@pytest.mark.parametrize("made", [in_ll(1 << 16, 5), in_ll128(1 << 13, 6)], ids=["LL", "LL128"])
def test_a_long_message_is_not_read(made: NDArray[np.uint8], granted: Protocol | None) -> None:
    Counted.taken = 0
    line_flag(message(made.view(Counted)), granted)
    assert Counted.taken <= (0 if granted is Protocol.SIMPLE else 2048)


def places(flags: Sequence[int | None], lost: dict[int, int] | None = None) -> list[Place]:
    """lost: {place: packets lost before it}."""
    psn, found = 1 << 32, []
    for i, flag in enumerate(flags):
        psn += (lost or {}).get(i, 0)
        found.append(Place(flag, psn, psn + 1))
        psn += 1
    return found


@pytest.mark.parametrize(
    ("flags", "wrong"),
    [
        ([1, 2, 3, 4], set()),
        ([1, 2, 1065353216, 4], {2}),
        ([1065353216, 2, 3], {0}),
        ([1, None, None, 12], set()),
        ([1, None, None, 13], {3}),
        ([1, None, 2], {2}),
        ([None, None, 3], set()),
        ([None, None, 2], {2}),
        ([1, 9, 9, 4, 5], {1, 2}),
    ],
)
def test_a_flag_counts_steps(flags: list[int | None], wrong: set[int]) -> None:
    assert out_of_step(places(flags), from_start=True) == wrong


def test_lost_packets_leave_room_for_the_steps_of_as_many_sends() -> None:
    assert not out_of_step(places([1, 7], {1: 1}), from_start=True)
    assert out_of_step(places([1, 8], {1: 1}), from_start=True) == {1}


def test_amid_a_connection_the_first_flag_is_believed_unless_the_others_contradict_it() -> None:
    assert not out_of_step(places([77, 78, None, 83]), from_start=False)
    assert out_of_step(places([9, 78, None, 83]), from_start=False) == {0}


def test_one_of_several_queue_pairs_takes_any_of_the_steps() -> None:
    assert not out_of_step(places([1, 5, 9]), from_start=True, queue_pairs=4)
    assert out_of_step(places([1, 5, 5]), from_start=True, queue_pairs=4) == {2}


def granted(
    address: int, rkey: int, capacity: int, layout: CtsLayout = CtsLayout.V2_20
) -> ClearToSend:
    return ClearToSend(
        address=address,
        capacity_bytes=capacity,
        rkeys=(rkey,),
        tag=0,
        index=0,
        receives=1,
        layout=layout,
    )


def test_other_grants_tell_whose_buffer_an_address_is_in() -> None:
    buffers = GrantedBuffers([granted(0x10000, 1, 65_536), granted(0x500000, 2, 1_048_576)])
    assert buffers.protocol_at(0x10000, 1) is Protocol.LL
    assert buffers.protocol_at(0x20000, 1) is Protocol.LL
    assert buffers.protocol_at(0x600000, 2) is Protocol.SIMPLE
    assert buffers.protocol_at(0x600000, 3) is None
    assert buffers.protocol_at(None, 1) is None


@pytest.mark.parametrize("layout", [CtsLayout.V2_10, CtsLayout.V2_20])
def test_one_key_for_all_buffers_tells_none_apart(layout: CtsLayout) -> None:
    entries = [granted(0x10000, 1, 65_536, layout), granted(0x500000, 2, 1_048_576, layout)]
    if layout is CtsLayout.V2_20:
        entries.append(granted(0x700000, 1, 1_048_576, layout))
    buffers = GrantedBuffers(entries)
    assert buffers.protocol_at(0x20000, 1) is None
    assert buffers.protocol_at(0x10000, 1) is Protocol.LL
