"""Clear-to-send entries, slots, immediates and line layouts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from flowcheck.wire.collectives.nccl_parameters import NcclEra, Protocol
from flowcheck.wire.collectives.nccl_wire_format import (
    ClearToSends,
    CtsLayout,
    eras_of,
    immediate_orders,
    ll_flags,
    protocol_of_addresses,
    protocol_of_capacity,
    recognise_cts,
    unpack,
)

OFFSETS = {
    CtsLayout.V2_12: (32, {"address": 0, "size": 8, "rkey": 12, "n": 16, "tag": 20, "idx": 24}),
    CtsLayout.V2_20: (64, {"address": 0, "size": 8, "rkey": 12, "n": 20, "tag": 24, "idx": 32}),
    CtsLayout.V2_24: (64, {"address": 0, "size": 8, "rkey": 16, "n": 32, "tag": 36, "idx": 40}),
    CtsLayout.V2_30: (64, {"address": 0, "size": 8, "rkey": 16, "n": 48, "tag": 52, "idx": 56}),
}
"""Entry size and field offsets, as the format's description tables them."""
EIGHT_BYTES = ("address", "idx")


def recognised(
    payloads: Sequence[bytes], addresses: Sequence[int] | None = None
) -> ClearToSends | None:
    return recognise_cts([np.frombuffer(one, np.uint8) for one in payloads], addresses)


def entry(layout: CtsLayout, **fields: int) -> bytes:
    size, offsets = OFFSETS[layout]
    raw = bytearray(size)
    for name, value in fields.items():
        at, width = offsets[name], 8 if name in EIGHT_BYTES else 4
        raw[at : at + width] = value.to_bytes(width, "little")
    return bytes(raw)


def grant(layout: CtsLayout, number: int, tag: int = 3) -> bytes:
    slot = 0x7F00_0020_0000 + number % 8 * 0x10000
    return entry(layout, address=slot, size=65_536, rkey=0x2001EF, n=1, tag=tag, idx=number + 1)


@pytest.mark.parametrize("layout", list(OFFSETS))
def test_one_entry_tells_its_layout_and_fields(layout: CtsLayout) -> None:
    cts = recognised([grant(layout, 41)])
    assert cts is not None
    assert (cts.layout, *cts.indices, *cts.tags, *cts.receives) == (layout, 41, 3, 1)
    assert (*cts.addresses, *cts.capacities_bytes) == (0x7F00_0021_0000, 65_536)
    assert cts.rkeys[0][0] == 0x2001EF


def test_the_oldest_layout_counts_from_zero() -> None:
    raw = b"".join(
        value.to_bytes(width, "little")
        for value, width in (
            (0x7F0000000000, 8),
            (65_536, 4),
            (7, 4),
            (0x2001EF, 4),
            (1, 4),
            (0, 8),
        )
    )
    cts = recognised([raw])
    assert cts is not None
    assert (cts.layout, *cts.indices, cts.rkeys.tolist()) == (CtsLayout.V2_10, 7, [[0x2001EF]])


@pytest.mark.parametrize("layout", list(OFFSETS))
def test_a_flow_of_grants_is_recognised_with_gaps_and_fifo_wrap(layout: CtsLayout) -> None:
    numbers = [0, 1, 2, 5, 6, 62, 63, 64, 65, 250, 600]
    stride = OFFSETS[layout][0] * 8
    payloads = [grant(layout, number) for number in numbers]
    for slots in (64, 256):
        addresses = [0x5000 + number % slots * stride for number in numbers]
        found = recognised(payloads, addresses)
        assert found is not None and found.indices.tolist() == numbers
        addresses[3] += stride
        assert recognised(payloads, addresses) is None
    found = recognised(payloads)
    assert found is not None and found.layout == layout


def test_writes_of_the_same_size_that_are_no_grants_are_refused() -> None:
    noise = random.Random(4)
    for size in (32, 64):
        assert recognised([noise.randbytes(size) for _ in range(4)]) is None
        assert recognised([bytes(size)]) is None
    assert recognised([b""]) is None
    assert recognised([bytes(48)]) is None


def test_a_repeated_index_or_a_wrong_fifo_stride_is_no_sequence() -> None:
    first, second = grant(CtsLayout.V2_12, 0), grant(CtsLayout.V2_12, 1)
    assert recognised([first, first]) is None
    assert recognised([first, second], [0x1000, 0x1040]) is None
    found = recognised([first, second], [0x1000, 0x1100])
    assert found is not None and len(found.indices) == 2


def test_a_grouped_receive_has_as_many_entries_as_it_says() -> None:
    entries = [
        entry(CtsLayout.V2_24, address=0x1000, size=131_072, rkey=5, n=2, tag=t, idx=9)
        for t in (0, 1)
    ]
    cts = recognised([b"".join(entries)])
    assert cts is not None
    assert cts.receives.tolist() == [2]
    assert recognised([entries[0]]) is None


def test_a_layout_names_the_rules_it_leaves() -> None:
    assert eras_of(CtsLayout.V2_12) == (NcclEra.V2_19,)
    assert eras_of(CtsLayout.V2_30) == (NcclEra.V2_29,)


def test_capacity_names_the_protocol() -> None:
    found = [protocol_of_capacity(size) for size in (65_536, 614_400, 1_048_576, 524_288, 131_072)]
    assert found == [Protocol.LL, Protocol.LL128, *[Protocol.SIMPLE] * 3]
    assert protocol_of_capacity(40_000) is None


@pytest.mark.parametrize(
    ("protocol", "stride"),
    [
        (Protocol.LL, 0x10000),
        (Protocol.LL128, 0x96000),
        (Protocol.SIMPLE, 0x80000),
        (Protocol.SIMPLE, 0x100000),
    ],
)
def test_slots_name_the_protocol_through_the_wrap(protocol: Protocol, stride: int) -> None:
    buffer = {Protocol.LL: 524_288, Protocol.LL128: 4_915_200, Protocol.SIMPLE: 4_194_304}[protocol]
    addresses = [0x7F0000530000 + number * stride % buffer for number in range(11)]
    assert protocol_of_addresses(addresses) is protocol
    assert protocol_of_addresses([*addresses, addresses[-1] + 24]) is None
    assert protocol_of_addresses(addresses[:1]) is None


def test_the_immediate_tells_its_byte_order_unless_both_fit() -> None:
    assert immediate_orders(0x00400000, 16_384) == ("little",)
    assert immediate_orders(0x0007B000, 503_808) == ("big",)
    assert immediate_orders(0, 0) == ("little", "big")
    assert immediate_orders(5, 16_384) == ()


def test_ll_lines_lose_their_flags_and_a_wrong_flag_shows() -> None:
    data = np.arange(5000, dtype="<u4")
    lines = np.empty((2500, 4), "<u4")
    lines[:, 0::2] = data.reshape(-1, 2)
    lines[:, 1::2] = 7
    lines[11, 3] = 6
    payload = lines.view(np.uint8).reshape(-1)
    assert unpack(Protocol.LL, payload, 19_996).tobytes() == data.tobytes()[:19_996]
    assert np.argwhere(ll_flags(payload) != 7).tolist() == [[11, 1]]


def pack_ll128(data: bytes, flag: int) -> bytes:
    """Line by line from the table of one group: which data bytes each line holds."""
    wire = bytearray()
    for start in range(0, len(data), 1920):
        group = data[start : start + 1920].ljust(1920, b"\xee")
        lines: list[bytes] = []
        for half in (0, 960):
            plain = [half + 128 * k for k in range(4)]
            late = [half + 512 + 112 * k for k in range(4)]
            lines += [group[at : at + 120] for at in plain]
            lines += [
                group[at : at + 112] + group[other + 120 : other + 128]
                for at, other in zip(late, plain, strict=True)
            ]
        wire += b"".join(line + flag.to_bytes(8, "little") for line in lines)
    return bytes(wire)


@pytest.mark.parametrize("size", [0, 1, 120, 1919, 1920, 1921, 9000])
def test_ll128_groups_come_out_in_tensor_order(size: int) -> None:
    data = random.Random(size).randbytes(size)
    payload = np.frombuffer(pack_ll128(data, 0x1_0000_0009), np.uint8)
    assert unpack(Protocol.LL128, payload, size).tobytes() == data


@pytest.mark.parametrize("protocol", list(Protocol))
def test_more_data_than_a_payload_holds_is_refused(protocol: Protocol) -> None:
    with pytest.raises(ValueError, match="cannot hold"):
        unpack(protocol, np.zeros(2048, np.uint8), 2049)


def captured_grants(capture: Path) -> list[bytes]:
    from scapy.all import UDP, PcapNgReader

    with PcapNgReader(str(capture)) as reader:
        frames = [bytes(packet[UDP].payload) for packet in reader if UDP in packet]
    return [frame[28:-4] for frame in frames if frame[0] == 0x0A]


def test_captured_grants_are_of_2_12_to_2_19_and_name_the_other_rank(captures: Path) -> None:
    grants = recognised(captured_grants(captures / "iter_40000_p2p_iter2.pcapng"))
    assert grants is not None
    assert grants.indices.tolist() == [0, 1, 2, 3, 4]
    assert grants.layout == CtsLayout.V2_12
    granted = zip(grants.capacities_bytes.tolist(), grants.tags.tolist(), strict=True)
    assert set(granted) == {(65_536, 1)}
