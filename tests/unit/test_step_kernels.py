"""The pass's square roots and digests against torch, IEEE 754 and xxhash, on every twin."""

import numpy as np
import pytest
import torch
import xxhash
from support.onestep import HERE, TWINS

from flowcheck._core import ffi, lib
from flowcheck.replica.rules import onepass


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
    found = onepass.roots(values, onepass.root_kind())
    np.testing.assert_array_equal(found.view(np.uint32), own.view(np.uint32))


def test_an_exact_square_root_is_ieees(twin):
    values = np.random.default_rng(8).integers(0, 0x7F800000, 100_003).astype(np.uint32)
    values = values.view(np.float32)
    expected = np.sqrt(values.astype(np.float64)).astype(np.float32)
    found = onepass.roots(values, lib.FC_STEP_ROOT_EXACT)
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("size", [241, 242, 255, 256, 1023, 1024, 1025, 1087, 1088, 1089, 5000])
def test_a_digest_is_that_of_pythons_xxhash(size, twin):
    data = np.random.default_rng(size).integers(0, 256, 4 * size, dtype=np.uint8)
    for count in (size, 2 * size, 4 * size):
        found = np.zeros(16, np.uint8)
        to = ffi.cast("uint8_t *", found.ctypes.data)
        lib.fc_step_digest(ffi.cast("uint8_t *", data.ctypes.data), count, to)
        assert found.tobytes() == xxhash.xxh3_128_digest(data[:count])
