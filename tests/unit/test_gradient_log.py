"""The gradient log: bounded, in two parts, whole records only; and hostile files."""

from __future__ import annotations

import struct
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.refused_as import refused_as

from flowcheck.findings.catalog.replica_state_errors import LOG_CHANGED, LOG_OUT_OF_ORDER, OTHER_LOG
from flowcheck.replica.state_file.gradient_log import (
    DATA_OFFSET,
    RECORD_ALIGN,
    GradientLog,
    LogFileSpace,
)

BYTES = 5000
STRIDE = 2 * RECORD_ALIGN
"""A record of 5,000 bytes and its header."""


def gradient(iteration: int) -> np.ndarray:
    return np.random.default_rng(iteration).integers(0, 256, BYTES, np.uint8)


def rooms(folder: Path, *records: int) -> list[LogFileSpace]:
    return [
        LogFileSpace(folder / f"part-{n}", DATA_OFFSET + count * STRIDE)
        for n, count in enumerate(records)
    ]


def test_fills_memory_then_the_file_then_is_closed_for_good(tmp_path: Path) -> None:
    log = GradientLog(rooms(tmp_path, 2, 3), BYTES)
    assert [log.append(n, gradient(n)) for n in range(10, 17)] == [True] * 5 + [False] * 2
    log.close()
    again = GradientLog(rooms(tmp_path, 2, 3), BYTES)
    assert again.iterations == (10, 11, 12, 13, 14)
    assert again.closed
    for index, iteration in enumerate(again.iterations):
        assert np.array_equal(again.read(index), gradient(iteration))
    again.remove()
    assert not any(tmp_path.iterdir())
    assert again.append(3, gradient(3))
    again.close()


def test_nothing_is_reserved_before_the_first_record(tmp_path: Path) -> None:
    log = GradientLog(rooms(tmp_path, 2, 3), BYTES)
    assert not any(tmp_path.iterdir())
    log.append(1, gradient(1))
    assert [path.name for path in tmp_path.iterdir()] == ["part-0"]
    assert (tmp_path / "part-0").stat().st_blocks * 512 >= DATA_OFFSET + 2 * STRIDE


@given(st.integers(0, BYTES + 40), st.integers(1, 255))
def test_any_changed_byte_of_a_record_is_found(
    tmp_path_factory: pytest.TempPathFactory, at: int, change: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    log = GradientLog(rooms(folder, 3), BYTES)
    for iteration in (1, 2):
        log.append(iteration, gradient(iteration))
    log.close()
    with (folder / "part-0").open("r+b") as file:
        file.seek(DATA_OFFSET + STRIDE + at)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ change]))
    torn = GradientLog(rooms(folder, 3), BYTES)
    inside = at >= 40 and at < 40 + BYTES
    if inside:
        assert torn.iterations == (1, 2)
        with refused_as(LOG_CHANGED):
            torn.read(1)
    elif at < 40:
        assert torn.iterations == (1,)
    assert np.array_equal(torn.read(0), gradient(1))
    torn.close()


LACKS = ((0, 8), (1200, 4096), (4992, 5000))


def test_what_a_gradient_lacks_is_kept_beside_it(tmp_path: Path) -> None:
    log = GradientLog(rooms(tmp_path, 2, 3), BYTES)
    for iteration in range(1, 6):
        assert log.append(iteration, gradient(iteration), LACKS if iteration in (2, 4) else ())
    log.close()
    again = GradientLog(rooms(tmp_path, 2, 3), BYTES, writes=False)
    assert [again.lacks(index) for index in range(5)] == [(), LACKS, (), LACKS, ()]
    assert all(np.array_equal(again.read(n), gradient(n + 1)) for n in range(5))
    again.remove()
    assert not any(tmp_path.iterdir())


def test_a_gradient_whose_lacking_bytes_are_not_known_is_refused(tmp_path: Path) -> None:
    log = GradientLog(rooms(tmp_path, 3), BYTES)
    log.append(1, gradient(1), LACKS)
    log.append(2, gradient(2))
    [beside] = set(tmp_path.iterdir()) - {tmp_path / "part-0"}
    whole = beside.read_bytes()
    for changed in (whole[:-1], whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:], b"", b"x"):
        beside.write_bytes(changed)
        with refused_as(LOG_CHANGED):
            log.read(0)
    beside.unlink()
    with refused_as(LOG_CHANGED):
        log.read(0)
    assert np.array_equal(log.read(1), gradient(2)) and log.lacks(1) == ()
    log.close()


def test_a_kill_before_the_record_leaves_no_lacking_bytes_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = GradientLog(rooms(tmp_path, 3), BYTES)
    log.append(1, gradient(1), LACKS)
    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
        killed.setattr(struct, "pack", Mock(side_effect=KeyboardInterrupt))
        log.append(2, gradient(2), LACKS)
    log.close()
    again = GradientLog(rooms(tmp_path, 3), BYTES)
    assert again.iterations == (1,)
    assert again.append(2, gradient(2)) and again.append(3, gradient(3), LACKS[1:])
    assert [again.lacks(index) for index in range(3)] == [LACKS, (), LACKS[1:]]
    assert all(np.array_equal(again.read(n), gradient(n + 1)) for n in range(3))
    again.close()


def test_a_file_of_other_gradients_is_refused(tmp_path: Path) -> None:
    log = GradientLog(rooms(tmp_path, 2), BYTES)
    log.append(1, gradient(1))
    log.close()
    with refused_as(OTHER_LOG):
        GradientLog(rooms(tmp_path, 2), BYTES + 4)
    (tmp_path / "foreign").write_bytes(b"not ours" * 1000)
    with refused_as(OTHER_LOG):
        GradientLog([LogFileSpace(tmp_path / "foreign", 1 << 20)], BYTES)


def test_iterations_only_ascend(tmp_path: Path) -> None:
    log = GradientLog(rooms(tmp_path, 3), BYTES)
    log.append(5, gradient(5))
    with refused_as(LOG_OUT_OF_ORDER, last=5, iteration=5):
        log.append(5, gradient(5))
    log.close()


@pytest.mark.parametrize("before", [BYTES, BYTES + 300])
@given(there=st.lists(st.booleans(), min_size=20, max_size=20))
def test_a_kill_amid_the_header_of_a_file_costs_no_later_start(
    tmp_path_factory: pytest.TempPathFactory, before: int, there: list[bool]
) -> None:
    """before: bytes of the gradients that the killed one was to keep; there: which bytes of the
    header were stored, in whatever order."""
    folder = tmp_path_factory.mktemp("log")
    log = GradientLog(rooms(folder, 2), before)
    log.append(1, np.zeros(before, np.uint8))
    log.close()
    file = folder / "part-0"
    whole = file.read_bytes()
    header = bytes(byte * stored for byte, stored in zip(whole[:20], there, strict=True))
    file.write_bytes(header + bytes(len(whole) - 20))
    for again in (GradientLog(rooms(folder, 2), BYTES), GradientLog(rooms(folder, 2), BYTES)):
        assert (again.iterations, again.closed) == ((), False)
        again.close()
    again = GradientLog(rooms(folder, 2), BYTES)
    assert again.append(3, gradient(3))
    again.close()
    kept = GradientLog(rooms(folder, 2), BYTES)
    assert kept.iterations == (3,) and np.array_equal(kept.read(0), gradient(3))
    kept.close()


def test_a_file_that_only_begins_as_a_log_is_refused(tmp_path: Path) -> None:
    for first in (bytes(8) + b"\x07", bytes(DATA_OFFSET) + b"someone's"):
        (tmp_path / "foreign").write_bytes(first + bytes(1 << 14))
        with refused_as(OTHER_LOG):
            GradientLog([LogFileSpace(tmp_path / "foreign", 1 << 20)], BYTES)


@pytest.mark.parametrize("left", [0, 2, 3, 5])
def test_later_records_that_are_forgotten_stay_forgotten(tmp_path: Path, left: int) -> None:
    log = GradientLog(rooms(tmp_path, 2, 3), BYTES)
    for iteration in range(1, 6):
        log.append(iteration, gradient(iteration))
    log.forget_after(left)
    assert log.iterations == tuple(range(1, left + 1))
    log.close()
    again = GradientLog(rooms(tmp_path, 2, 3), BYTES)
    assert again.iterations == tuple(range(1, left + 1))
    assert again.append(9, gradient(9)) == (left < 5)
    again.close()
