"""LL lines to data, every twin against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcheck._core import ffi, lib

TWINS = {"plain": 0, "avx2": 1, "avx512": 2}
CANNOT = 2**64 - 1
GUARD = 64
PLACES = st.tuples(st.booleans(), st.integers(0, 63))
"""Whether the output is written past the caches, and its distance from a cache line's start."""


def lines_of(data: np.ndarray, flag: int) -> np.ndarray:
    """[lines, 4] words of LL, the data padded to whole lines with ones."""
    words = np.frombuffer(data.tobytes() + b"\xff" * (-len(data) % 8), "<u4")
    lines = np.full((len(words) // 2, 4), flag, "<u4")
    lines[:, 0], lines[:, 2] = words[0::2], words[1::2]
    return lines


def unpack(
    twin: int, place: tuple[bool, int], lines: np.ndarray, size: int, flag: int
) -> tuple[int, np.ndarray]:
    """Lines unpacked, and the output with GUARD bytes of 0xAA behind it."""
    past, distance = place
    room = np.full(GUARD + size + 2 * GUARD, 0xAA, np.uint8)
    start = -room.ctypes.data % GUARD + distance
    out = room[start : start + size + GUARD]
    done = lib.fc_ll_unpack_by(
        twin,
        past,
        ffi.from_buffer("uint8_t[]", out),
        ffi.from_buffer("uint8_t[]", lines.tobytes() or b"\0"),
        size,
        flag,
    )
    if done == CANNOT:
        pytest.skip("this CPU has no such instructions")
    assert (room[:start] == 0xAA).all()
    return int(done), out


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS.keys())
@settings(max_examples=150, deadline=None)
@given(
    place=PLACES,
    size=st.integers(0, 700),
    flag=st.integers(0, 2**32 - 1),
    seed=st.integers(0, 2**32),
)
def test_every_length_comes_out_as_numpy_says_and_not_a_byte_more(
    twin: int, place: tuple[bool, int], size: int, flag: int, seed: int
) -> None:
    data = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    done, out = unpack(twin, place, lines_of(data, flag), size, flag)
    assert done == -(-size // 8)
    assert np.array_equal(out[:size], data)
    assert (out[size:] == 0xAA).all()


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS.keys())
@settings(max_examples=150, deadline=None)
@given(
    place=PLACES,
    size=st.integers(1, 700),
    where=st.integers(0, 10**6),
    column=st.sampled_from([1, 3]),
)
def test_a_wrong_flag_stops_before_its_line(
    twin: int, place: tuple[bool, int], size: int, where: int, column: int
) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    lines = lines_of(data, 7)
    bad = where % len(lines)
    lines[bad, column] = 8
    done, out = unpack(twin, place, lines, size, 7)
    assert done == bad
    assert np.array_equal(out[: bad * 8], data[: bad * 8])
    assert (out[bad * 8 :] == 0xAA).all()


def test_the_twin_in_use_is_one_of_those_tested() -> None:
    assert ffi.string(lib.fc_ll_name()).decode() in TWINS
