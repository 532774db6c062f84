"""Partition: the worked numbers of the format's description, and what the captures show."""

from __future__ import annotations

import pytest

from flowcheck.wire.collectives.chunk_partition import Launch, channels_and_threads, split
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, NcclEra, Protocol, Tuning


def launch(elements: int, **changes: object) -> Launch:
    setting: dict[str, object] = {
        "kind": CollectiveKind.ALL_REDUCE,
        "work_bytes": elements * 4,
        "element_bytes": 4,
        "ranks": 4,
        "channels": 2,
        "protocol": Protocol.SIMPLE,
        "era": NcclEra.V2_29,
    }
    return Launch(**(setting | changes))  # type: ignore[arg-type]


def parts(elements: int, **changes: object) -> list[int]:
    """Elements of each channel."""
    return [
        sum(size for loop in loops for _, size in loop) // 4
        for loops in split(launch(elements, **changes))
    ]


@pytest.mark.parametrize(
    ("elements", "channels", "chunk"), [(5000, 2, 2048), (5000, 1, 3072), (10000, 1, 5120)]
)
def test_chunks_of_the_captured_2_19_jobs(elements: int, channels: int, chunk: int) -> None:
    loops = split(
        launch(elements, ranks=2, channels=channels, protocol=Protocol.LL, era=NcclEra.V2_19)
    )
    for channel in range(channels):
        ((first, second),) = loops[channel]
        assert first == (channel * chunk * 4, chunk * 4)
        start = (channels + channel) * chunk
        assert second == (start * 4, 4 * max(0, min(chunk, elements - start)))


def test_2_19_simple_interleaves_channels_loop_by_loop() -> None:
    first, second = split(launch(6_553_600, era=NcclEra.V2_19))
    assert [start // 4 for start, _ in first[0]] == [0, 524_288, 1_048_576, 1_572_864]
    assert second[0][0] == (2_097_152 * 4, 524_288 * 4)
    assert first[1][0] == (4_194_304 * 4, 294_912 * 4)
    assert second[1][0] == (5_373_952 * 4, 294_912 * 4)


@pytest.mark.parametrize(
    ("rule", "due"),
    [
        (NcclEra.V2_29, [65_536] * 15 + [16_963]),
        (NcclEra.V2_26, [63_488] * 15 + [47_683]),
        (NcclEra.V2_23, [63_488] * 15 + [47_683]),
        (NcclEra.V2_22, [62_500] + [62_504] * 14 + [62_447]),
    ],
)
def test_cells_of_a_million_elements_over_16_channels(rule: NcclEra, due: list[int]) -> None:
    assert parts(1_000_003, channels=16, era=rule) == due


def test_simple_loops_of_25_mib_over_two_channels() -> None:
    for loops in split(launch(6_553_600)):
        assert [[size // 4 for _, size in loop] for loop in loops] == [
            [524_288] * 4,
            [294_912] * 4,
        ]


def test_ll128_loops_of_25_mib_over_two_channels() -> None:
    for loops in split(launch(6_553_600, protocol=Protocol.LL128)):
        assert [loop[0][1] // 4 for loop in loops] == [144_000] * 5 + [99_200]


def test_worked_example_of_two_ranks_and_two_channels() -> None:
    first, second = split(launch(1_000_003, ranks=2))
    assert first == (((0, 251_904 * 4), (251_904 * 4, 251_904 * 4)),)
    assert [size // 4 for _, size in second[0]] == [248_100, 248_095]
    assert second[0][0][0] == 503_808 * 4


def test_ten_elements_leave_an_empty_chunk_on_one_channel() -> None:
    first, second = split(launch(10))
    assert [size // 4 for _, size in first[0]] == [4, 4, 2, 0]
    assert second == ()


@pytest.mark.parametrize(
    ("total_bytes", "protocol", "ranks", "due"),
    [
        (20_000, Protocol.LL, 2, (2, 512)),
        (8192, Protocol.LL, 2, (1, 512)),
        (8188, Protocol.LL, 2, (1, 256)),
        (20_000, Protocol.LL, 8, (1, 256)),
        (8, Protocol.LL, 2, (1, 96)),
        (8, Protocol.SIMPLE, 2, (1, 96)),
        (100_000, Protocol.SIMPLE, 2, (3, 544)),
        (4_000, Protocol.LL128, 2, (1, 320)),
        (1 << 20, Protocol.LL128, 2, (8, 640)),
    ],
)
def test_little_work_takes_few_channels_then_few_threads(
    total_bytes: int, protocol: Protocol, ranks: int, due: tuple[int, int]
) -> None:
    assert (
        channels_and_threads(
            launch(total_bytes // 4, ranks=ranks, channels=8, protocol=protocol, era=NcclEra.V2_19)
        )
        == due
    )


def test_fewer_threads_by_setting_make_smaller_ll_chunks() -> None:
    changes = {"ranks": 2, "channels": 1, "protocol": Protocol.LL, "era": NcclEra.V2_19}
    ((default,),) = split(launch(5000, **changes))
    ((small,),) = split(launch(5000, tuning=Tuning(threads=128), **changes))
    assert default[0][1] == 3072 * 4
    assert small[0][1] == 2560 * 4


def test_broadcast_of_the_captured_weights_is_one_or_two_ll_sends() -> None:
    for elements, due in ((5000, [20_000]), (10_000, [32_768, 7_232])):
        (loops,) = split(
            launch(
                elements,
                kind=CollectiveKind.BROADCAST,
                element_bytes=1,
                ranks=2,
                channels=1,
                protocol=Protocol.LL,
                era=NcclEra.V2_19,
            )
        )
        assert [size for ((_, size),) in loops] == due


def test_2_19_ll128_rounds_chunks_to_what_the_threads_read_at_once() -> None:
    changes = {"ranks": 2, "protocol": Protocol.LL128, "era": NcclEra.V2_19}
    ((loop,),) = split(launch(5000, channels=1, **changes))
    assert [size for _, size in loop] == [19_200, 800]
    changes |= {"kind": CollectiveKind.BROADCAST, "element_bytes": 1}
    both = split(launch(15_000, **changes))
    assert [[span for (span,) in loops] for loops in both] == [[(0, 38_400)], [(38_400, 21_600)]]


def test_2_20_aligns_parts_to_what_a_block_reads() -> None:
    for protocol, align in (
        (Protocol.SIMPLE, 4096),
        (Protocol.LL, 4096),
        (Protocol.LL128, 480 * 20),
    ):
        ring = {"ranks": 2, "protocol": protocol, "era": NcclEra.V2_20}
        first, second = parts(120_001, **ring)
        assert first * 4 == -(-240_002 // align) * align
        assert first + second == 120_001


def test_2_22_gives_the_cell_that_is_left_to_the_last_channel() -> None:
    ring = {"ranks": 2, "protocol": Protocol.LL, "era": NcclEra.V2_22}
    assert parts(4101, **ring) == [2048, 2053]
    assert parts(4093, **ring) == [4092, 1], "rounded down, even where one channel is due"


def test_ll_traffic_counts_four_times_since_2_26() -> None:
    ring = {"ranks": 2, "channels": 8, "protocol": Protocol.LL}
    assert parts(5000, era=NcclEra.V2_23, **ring)[0] == 4096
    assert parts(5000, era=NcclEra.V2_26, **ring)[0] == 2560
    assert parts(5000, era=NcclEra.V2_29, **ring)[0] == 3072


def test_an_empty_tensor_has_no_loops() -> None:
    assert split(launch(0)) == ((), ())


@pytest.mark.parametrize(
    "wrong", [{"ranks": 1}, {"channels": 0}, {"element_bytes": 3}, {"work_bytes": 5}]
)
def test_impossible_launches_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"ring|type|elements"):
        launch(10, **wrong)
