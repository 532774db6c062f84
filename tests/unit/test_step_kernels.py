"""The pass's square roots and digests against torch, IEEE 754 and FIPS 197, on every twin."""

import itertools

import numpy as np
import pytest
import torch
from support import aes
from support.onestep import HERE, TWINS

from flowcheck._core import ffi, lib
from flowcheck.replica.optimizer_step import c_kernel_args
from flowcheck.replica.state_digest import block_digest


@pytest.fixture(params=TWINS)
def twin(request):
    if request.param not in HERE:
        pytest.skip(f"this CPU has no {request.param}: nothing is tried of its kernels")
    assert lib.fc_step_choose(request.param.encode()) == 0
    yield request.param
    assert lib.fc_step_choose(ffi.NULL) == 0


def test_a_square_root_is_torchs_for_every_denormal_and_near_every_edge(twin):
    bits = np.concatenate(
        [
            np.arange(0, 1 << 23, 7),
            np.arange(0x7F7F0000, 0x7F800001),
            np.arange(1 << 23, 1 << 24, 9),
        ]
    ).astype(np.uint32)
    values = bits.view(np.float32)
    own = torch.from_numpy(values).sqrt().numpy()
    found = c_kernel_args.c_square_roots(values, c_kernel_args.square_root_kind())
    np.testing.assert_array_equal(found.view(np.uint32), own.view(np.uint32))


@pytest.mark.nightly
def test_a_square_root_is_torchs_for_every_float32_that_is_not_negative():
    part = 1 << 24
    for begin in range(0, 0x80000000, part):
        values = np.arange(begin, begin + part, dtype=np.uint32).view(np.float32)
        own = torch.from_numpy(values).sqrt().numpy()
        found = c_kernel_args.c_square_roots(values, c_kernel_args.square_root_kind())
        number = ~np.isnan(values)
        np.testing.assert_array_equal(
            found.view(np.uint32)[number], own.view(np.uint32)[number], f"from {begin:#x} on"
        )
        assert np.isnan(found[~number]).all()


@pytest.mark.parametrize("kind", c_kernel_args.SQUARE_ROOT_NAMES.values())
def test_every_kind_of_square_root_is_the_same_on_every_twin(kind, twin):
    """Those that torch has not here too: of what is common, tiny, zero, negative and no number."""
    number = {name: number for number, name in c_kernel_args.SQUARE_ROOT_NAMES.items()}[kind]
    if not lib.fc_step_root_runs(number):
        pytest.skip(f"this CPU has no estimate of the kind {kind}")
    bits = np.random.default_rng(4).integers(0, 1 << 32, 200_003).astype(np.uint32)
    bits[::7] = np.random.default_rng(5).integers(0, 0x0E000000, bits[::7].size)
    values = bits.view(np.float32)
    found = c_kernel_args.c_square_roots(values, number)
    assert lib.fc_step_choose(b"plain") == 0
    np.testing.assert_array_equal(found, c_kernel_args.c_square_roots(values, number))
    with np.errstate(invalid="ignore"):
        exact = np.sqrt(values.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(found, exact, rtol=2**-22)


def test_an_exact_square_root_is_ieees(twin):
    values = np.random.default_rng(8).integers(0, 0x7F800000, 100_003).astype(np.uint32)
    values = values.view(np.float32)
    expected = np.sqrt(values.astype(np.float64)).astype(np.float32)
    found = c_kernel_args.c_square_roots(values, lib.FC_STEP_ROOT_EXACT)
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize(
    ("plain", "key", "cipher"),
    [  # FIPS 197, appendices B and C.1
        (
            "3243f6a8885a308d313198a2e0370734",
            "2b7e151628aed2a6abf7158809cf4f3c",
            "3925841d02dc09fbdc118597196a0b32",
        ),
        (
            "00112233445566778899aabbccddeeff",
            "000102030405060708090a0b0c0d0e0f",
            "69c4e0d86a7b0430d8cdb78070b4c55a",
        ),
    ],
)
def test_the_round_that_digests_are_held_against_is_that_of_the_standard(plain, key, cipher):
    assert aes.encrypted(bytes.fromhex(plain), bytes.fromhex(key)).hex() == cipher


@pytest.mark.parametrize("size", [0, 1, 4, 15, 16, 17, 31, 32, 33, 64, 100, 1023, 1024, 1025, 5001])
def test_a_digest_is_of_the_standards_rounds(size, twin):
    data = np.random.default_rng(size).integers(0, 256, size + 3, dtype=np.uint8)
    for start in (0, 1, 3):
        block = data[start : start + size].tobytes()
        assert block_digest(data[start : start + size].data) == aes.digest(block)


def changed(data):
    """Every bit turned, and every piece of 4, 16, 32 and 64 bytes changed for every other."""
    for bit in range(8 * len(data)):
        other = data.copy()
        other[bit // 8] ^= 1 << bit % 8
        yield other
    for size in (4, 16, 32, 64):
        pieces = data[: len(data) // size * size].reshape(-1, size)
        for a, b in itertools.combinations(range(len(pieces)), 2):
            if not np.array_equal(pieces[a], pieces[b]):
                other = data.copy()
                moved = other[: pieces.size].reshape(-1, size)
                moved[[a, b]] = moved[[b, a]]
                yield other


@pytest.mark.parametrize("size", [4, 36, 260])
def test_no_turned_bit_and_no_moved_piece_leaves_a_digest_as_it_was(size, twin):
    like_weights = np.random.default_rng(size).standard_normal(size // 4).astype(np.float32)
    signs = np.where(np.arange(size // 4) % 3, 1, -1).astype(np.float32)
    for data in (np.zeros(size, np.uint8), like_weights.view(np.uint8), signs.view(np.uint8)):
        own = block_digest(data.data)
        others = [each.tobytes() for each in changed(data)]
        found = {block_digest(each) for each in others}
        assert own not in found
        assert len(found) == len(set(others))
        ends = [block_digest(bytes(n) + data.tobytes() + bytes(m)) for n, m in ((0, 4), (4, 0))]
        assert own not in ends
