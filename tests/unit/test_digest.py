"""Digest: the same for the same bytes, another for any other."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import xxhash

from flowcheck.replica import digest
from flowcheck.replica.digest import sha256, sha256_file, state_digest


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(digest, "BLOCK_BYTES", 64)


def test_digest_is_what_its_docstring_says():
    array = np.arange(100, dtype=np.uint8)
    table = b"w\0" + (100).to_bytes(8, "little") + (2).to_bytes(8, "little")
    blocks = [
        xxhash.xxh3_128_digest(array[:64].tobytes()),
        xxhash.xxh3_128_digest(array[64:].tobytes()),
    ]
    assert state_digest([("w", array)]) == xxhash.xxh3_128_digest(table + b"".join(blocks))


def test_threads_change_the_time_and_not_the_digest():
    sections = [("a", np.arange(1000, dtype=np.float32)), ("b", np.ones(3))]
    with ThreadPoolExecutor(2) as pool:
        assert state_digest(sections, pool) == state_digest(sections)


def test_any_changed_bit_name_or_cut_changes_the_digest():
    array = np.zeros(200, np.uint8)
    seen = {state_digest([("a", array)]), state_digest([("b", array)])}
    seen.add(state_digest([("a", array[:100]), ("a", array[100:])]))
    for at in range(200):
        changed = array.copy()
        changed[at] = 1
        seen.add(state_digest([("a", changed)]))
    assert len(seen) == 203


def test_sha256_is_of_the_bytes_as_they_lie(tmp_path):
    array = np.arange(33, dtype=np.float32)
    expected = hashlib.sha256(array.tobytes()).hexdigest()
    (tmp_path / "f").write_bytes(array.tobytes())
    assert sha256(array) == sha256(array.tobytes()) == sha256_file(tmp_path / "f") == expected
