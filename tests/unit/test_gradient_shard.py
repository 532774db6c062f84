"""The gradient in shared memory: states, coverage as ranges, and files that are not ours."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from support.refused_as import Wanted, like, refused_as

from flowcheck._core import ffi, lib
from flowcheck.errors import RingError
from flowcheck.findings.catalog.shared_file_reasons import (
    NOT_A_SHARD,
    OTHER_LAYOUT_VERSION,
    SHARD_ELEMENT_REFUSED,
    SHARD_GRADIENT_REFUSED,
    SIZES_CONTRADICT,
)
from flowcheck.findings.catalog.shared_memory_files import DAMAGED, OTHER_LAYOUT
from flowcheck.findings.finding import Entry
from flowcheck.plane.shared_memory.gradient_double_buffer import GenerationState, GradientShard


def set_units(shard: GradientShard, generation: int, units: list[int]) -> None:
    """Marks elements as there, as the extractor would."""
    words = lib.fc_shard_coverage(shard.handle, generation)
    for unit in units:
        words[unit // 64] |= 1 << unit % 64
    shard.handle.header.generations[generation].covered_units = len(units)


def test_fresh_shard_is_empty_and_a_begun_generation_misses_everything(shm: Path) -> None:
    with GradientShard.create(shm / "shard", gradient_bytes=1000) as shard:
        assert [shard.generation_state(g) for g in range(2)] == [GenerationState.EMPTY] * 2
        shard.begin(0, 1)
        assert shard.generation_state(0) == GenerationState.OPEN
        assert shard.generation_of(1) == 0
        assert shard.missing(0) == ((0, 1000),)
        assert not shard.finish(0)


@pytest.mark.parametrize("unit_bytes", [2, 4, 8])
def test_missing_ranges_are_the_elements_nobody_placed(shm: Path, unit_bytes: int) -> None:
    units = 300
    there = sorted(np.random.default_rng(1).choice(units, 200, replace=False).tolist())
    with GradientShard.create(
        shm / "shard", gradient_bytes=units * unit_bytes, unit_bytes=unit_bytes
    ) as shard:
        shard.begin(1, 5)
        set_units(shard, 1, there)
        missing = [
            byte for start, stop in shard.missing(1) for byte in range(start, stop, unit_bytes)
        ]
        assert missing == [u * unit_bytes for u in range(units) if u not in set(there)]
        assert shard.covered_bytes(1) == 200 * unit_bytes


def test_generation_is_complete_only_when_every_element_is_there(shm: Path) -> None:
    with GradientShard.create(shm / "shard", gradient_bytes=400) as shard:
        shard.begin(0, 1)
        set_units(shard, 0, list(range(99)))
        assert not shard.finish(0)
        set_units(shard, 0, list(range(100)))
        assert shard.finish(0)
        assert shard.generation_state(0) == GenerationState.COMPLETE
        assert shard.missing(0) == ()
        with GradientShard.open(shm / "shard") as other:
            other.apply(1)
            assert other.generation_of(1) == 0
        assert shard.applied_iteration == 1
        shard.begin(0, 3)
        assert shard.missing(0) == ((0, 400),)


def test_lost_generation_stays_lost(shm: Path) -> None:
    with GradientShard.create(shm / "shard", gradient_bytes=8) as shard:
        shard.begin(0, 1)
        shard.mark_lost(0)
        set_units(shard, 0, [0, 1])
        assert not shard.finish(0)
        assert shard.generation_state(0) == GenerationState.LOST


@pytest.mark.parametrize(("gradient_bytes", "unit_bytes"), [(0, 4), (10, 4), (12, 3), (2**60, 4)])
def test_impossible_sizes_are_refused(shm: Path, gradient_bytes: int, unit_bytes: int) -> None:
    with pytest.raises(RingError):
        GradientShard.create(shm / "shard", gradient_bytes=gradient_bytes, unit_bytes=unit_bytes)


def damaged(entry: Entry) -> Wanted:
    """entry: what C says of it."""
    return like(DAMAGED, error=like(entry))


@pytest.mark.parametrize(
    ("field", "wanted"),
    [
        ("magic", damaged(NOT_A_SHARD)),
        ("layout_version", like(OTHER_LAYOUT, error=like(OTHER_LAYOUT_VERSION))),
        ("unit_bytes", damaged(SHARD_ELEMENT_REFUSED)),
        ("gradient_bytes", damaged(SHARD_GRADIENT_REFUSED)),
        ("data_offset", damaged(SIZES_CONTRADICT)),
    ],
)
def test_foreign_or_damaged_file_is_refused_with_a_sentence(
    shm: Path, field: str, wanted: Wanted
) -> None:
    path = shm / "shard"
    GradientShard.create(path, gradient_bytes=1 << 20).close()
    with path.open("r+b") as file:
        file.seek(ffi.offsetof("struct fc_shard_header", field))
        file.write(struct.pack("<I", 0x7FFFFFF1))
    with refused_as(wanted, kind=RingError):
        GradientShard.open(path)
