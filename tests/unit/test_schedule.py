"""Schedule: who sends which chunk when, how many bytes it takes, and the way back from sizes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from flowcheck.wire.collectives.nccl_parameters import NcclEra, Protocol, data_bytes_of, wire_bytes
from flowcheck.wire.collectives.ring_schedule import (
    all_gather,
    all_reduce,
    broadcast,
    chunk_of,
    reduce_scatter,
)
from flowcheck.wire.collectives.tensor_size_fit import (
    CollectiveSetting,
    EdgeSizes,
    orders,
    totals_fitting,
)

LAB = {"ranks": 2, "protocol": Protocol.LL, "era": NcclEra.V2_19}


def sizes(schedule: object) -> list[list[int]]:
    return [[send.wire_bytes for send in sends] for sends in schedule]  # type: ignore[attr-defined]


def test_ring_index_1_of_4_sends_the_chunks_of_the_step_table() -> None:
    chunks = [chunk_of(hop, sender=1, ranks=4) for hop in range(6)]
    assert chunks == [(0, False), (3, False), (2, False), (1, True), (0, True), (3, True)]


@pytest.mark.parametrize(
    ("protocol", "data", "wire"),
    [
        (Protocol.LL, 0, 0),
        (Protocol.LL, 1, 16),
        (Protocol.LL, 8, 16),
        (Protocol.LL, 32_768, 65_536),
        (Protocol.LL128, 0, 0),
        (Protocol.LL128, 1, 2048),
        (Protocol.LL128, 576_000, 614_400),
        (Protocol.LL128, 396_800, 423_936),
        (Protocol.SIMPLE, 7, 7),
    ],
)
def test_wire_bytes_of_every_protocol(protocol: Protocol, data: int, wire: int) -> None:
    assert wire_bytes(protocol, data) == wire
    assert data_bytes_of(protocol, wire) >= data


def test_captured_all_reduce_over_two_channels() -> None:
    rank0 = all_reduce(20_000, sender=0, channels=2, **LAB)
    assert sizes(rank0) == [[7232, 16_384], [0, 16_384]]
    assert sizes(all_reduce(20_000, sender=1, channels=2, **LAB)) == [[16_384, 7232], [16_384, 0]]
    assert [(s.start_byte, s.final) for s in rank0[0]] == [(16_384, False), (0, True)]


def test_captured_patched_trainer_forwards_the_other_result() -> None:
    rank0 = all_reduce(20_000, sender=0, channels=2, extra_sends=1, **LAB)
    assert sizes(rank0) == [[7232, 16_384, 7232], [0, 16_384, 0]]
    whole = sorted((s.start_byte, s.data_bytes) for c in rank0 for s in c if s.final)
    assert [piece for piece in whole if piece[1]] == [(0, 8192), (8192, 8192), (16_384, 3616)]


@pytest.mark.parametrize(
    ("elements", "due"), [(5000, [15_424, 24_576]), (10_000, [39_040, 40_960])]
)
def test_captured_all_reduce_over_one_channel(elements: int, due: list[int]) -> None:
    assert sizes(all_reduce(elements * 4, sender=0, channels=1, **LAB)) == [due]


def test_worked_simple_example_has_its_slices_steps_and_sides() -> None:
    ring = {"ranks": 2, "channels": 2, "protocol": Protocol.SIMPLE, "era": NcclEra.V2_29}
    schedule = all_reduce(4_000_012, sender=1, **ring)
    assert sizes(schedule)[0] == [503_808] * 4
    assert sizes(schedule)[1][2:] == [496_192, 496_188]
    assert [send.fifo_step for send in schedule[0]] == [0, 2, 4, 6]
    assert [send.chunk for send in schedule[0]] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("protocol", "due"),
    [
        (Protocol.SIMPLE, [8, 0, 16, 0, 16, 0, 0, 0, 8, 0, 16, 0]),
        (Protocol.LL, [16, 32, 32, 0, 16, 32]),
        (Protocol.LL128, [2048, 2048, 2048, 0, 2048, 2048]),
    ],
)
def test_ten_elements_make_short_and_empty_messages(protocol: Protocol, due: list[int]) -> None:
    ring = {"ranks": 4, "channels": 1, "protocol": protocol, "era": NcclEra.V2_29}
    assert sizes(all_reduce(40, sender=3, **ring)) == [due]


def test_uneven_simple_slices_of_a_large_chunk() -> None:
    ring = {"ranks": 4, "channels": 1, "protocol": Protocol.SIMPLE, "era": NcclEra.V2_29}
    (sends,) = all_reduce(1_000_003 * 4, sender=0, **ring)
    assert [s.wire_bytes for s in sends[:2]] == [125_008 * 4, 124_983 * 4]
    assert [s.wire_bytes for s in sends[2:4]] == [500_032, 499_984]


def test_broadcast_ends_before_the_root_and_gather_starts_with_the_own_block() -> None:
    ring = {"ranks": 4, "channels": 1, "protocol": Protocol.LL, "era": NcclEra.V2_29}
    assert broadcast(100, sender=1, root=2, **ring) == ((),)
    assert sizes(broadcast(100, sender=2, root=2, **ring)) == [[208]]
    (gather,) = all_gather(8, sender=2, order=[0, 2, 1, 3], **ring)
    assert [(s.chunk, s.start_byte, s.wire_bytes) for s in gather] == [
        (2, 8, 16),
        (1, 16, 16),
        (0, 0, 16),
    ]
    (scatter,) = reduce_scatter(8, sender=2, **ring)
    assert [s.chunk for s in scatter] == [1, 0, 3]
    assert not any(s.final for s in scatter)


def test_a_sender_outside_the_ring_is_refused() -> None:
    with pytest.raises(ValueError, match="ring index 2"):
        all_reduce(40, sender=2, channels=1, **LAB)


SETTING = CollectiveSetting(ranks=2, channels=2, protocol=Protocol.LL)


def test_sizes_of_both_directions_give_total_rule_and_channels() -> None:
    (fit,) = totals_fitting(
        [
            EdgeSizes(sender=0, flows=((0, 16_384), (7232, 16_384))),
            EdgeSizes(sender=1, flows=((16_384, 7232), (16_384, 0))),
        ],
        SETTING,
    )
    assert (fit.total_bytes, fit.eras) == (20_000, (NcclEra.V2_19,))
    assert fit.choices == (((1,), (0,)), ((0,), (1,)))
    assert fit.has_channel_order


def test_a_lost_size_leaves_several_totals_that_the_other_direction_settles() -> None:
    lossy = EdgeSizes(sender=0, flows=((7232, 16_384), (None, 16_384)))
    other = EdgeSizes(sender=1, flows=((16_384, 7232), (16_384, 0)))
    alone = {fit.total_bytes for fit in totals_fitting([lossy], SETTING)}
    assert 20_000 in alone and len(alone) > 1
    assert {fit.total_bytes for fit in totals_fitting([lossy, other], SETTING)} == {20_000}


def test_a_known_element_size_leaves_the_half_filled_last_line_open() -> None:
    setting = CollectiveSetting(ranks=2, channels=1, protocol=Protocol.LL, element_bytes=4)
    fits = totals_fitting([EdgeSizes(sender=0, flows=((15_424, 24_576),))], setting)
    assert [fit.total_bytes for fit in fits] == [19_996, 20_000]


def test_equal_channels_are_reported_as_not_told() -> None:
    sends = sizes(all_reduce(1 << 16, sender=0, channels=2, **LAB))
    flows = tuple(tuple(flow) for flow in sends)
    fits = totals_fitting([EdgeSizes(sender=0, flows=flows)], SETTING, totals=[1 << 16])
    assert any(fit.eras[0] is NcclEra.V2_19 for fit in fits)
    assert not any(fit.has_channel_order for fit in fits)
    assert list(orders(fits[0].choices)) == [((0, 1),), ((1, 0),)]


def test_sizes_no_ring_makes_fit_nothing() -> None:
    assert totals_fitting([EdgeSizes(sender=0, flows=((16, 64), (16, 48)))], SETTING) == ()


def test_too_much_lost_is_said_instead_of_guessed() -> None:
    lost = EdgeSizes(sender=0, flows=((None,) * 200, (None,) * 200))
    with pytest.raises(ValueError, match="too many sizes are unknown"):
        totals_fitting([lost], SETTING)


def test_every_captured_send_is_where_the_schedule_says(truth: Path) -> None:
    compared = 0
    for job in (json.loads(path.read_text()) for path in sorted(truth.glob("*.json"))):
        for reduced in job["all_reduces"]:
            for piece in reduced["pieces"]:
                if not (where := re.match(r"rank(\d)->rank\d flow", piece["source"])):
                    continue
                sends = all_reduce(
                    reduced["count"] * 4,
                    sender=int(where[1]),
                    channels=job["ring"]["nchannels"],
                    extra_sends=1,
                    **LAB,
                )[piece["channel"]]
                due = [(s.chunk, s.start_byte, s.data_bytes, s.final) for s in sends]
                start, size = piece["offset"] * 4, piece["count"] * 4
                assert (piece["chunk"], start, size, piece["kind"] != "partial") in due
                compared += 1
    assert compared > 40
