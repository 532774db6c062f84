"""Digest: the same for the same bytes, another for any other."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import xxhash
from support import aes

from flowcheck.replica import state_digest as digests
from flowcheck.replica.state_digest import sha256, sha256_file, state_digest, tensor_digests


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(digests, "BLOCK_BYTES", 64)


def whole(named):
    return state_digest(named, tensor_digests(array for _, array in named))


def test_digest_is_what_its_docstring_says():
    array = np.arange(100, dtype=np.uint8)
    blocks = [
        aes.digest(array[:64].tobytes()),
        aes.digest(array[64:].tobytes()),
    ]
    tensor = xxhash.xxh3_128_digest(b"".join(blocks))
    assert tensor_digests([array, array[:64]]) == [tensor, blocks[0]]
    table = b"w\0" + (100).to_bytes(8, "little") + tensor
    assert whole([("w", array)]) == xxhash.xxh3_128_digest(table)


def test_threads_change_the_time_and_not_the_digests():
    arrays = [np.arange(1000, dtype=np.float32), np.ones(3), np.ones(0)]
    with ThreadPoolExecutor(2) as pool:
        assert tensor_digests(arrays, pool) == tensor_digests(arrays)


def test_any_changed_bit_name_or_cut_changes_the_digest():
    array = np.zeros(200, np.uint8)
    seen = {whole([("a", array)]), whole([("b", array)])}
    seen.add(whole([("a", array[:100]), ("a", array[100:])]))
    for at in range(200):
        changed = array.copy()
        changed[at] = 1
        seen.add(whole([("a", changed)]))
    assert len(seen) == 203


def test_sha256_is_of_the_bytes_as_they_lie(tmp_path):
    array = np.arange(33, dtype=np.float32)
    expected = hashlib.sha256(array.tobytes()).hexdigest()
    (tmp_path / "f").write_bytes(array.tobytes())
    assert sha256(array) == sha256(array.tobytes()) == sha256_file(tmp_path / "f") == expected
