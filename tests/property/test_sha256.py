"""Two sums at a time against hashlib, however the bytes come."""

from __future__ import annotations

import hashlib
import os
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcheck.replica.checkpoint_files import sha256
from flowcheck.replica.checkpoint_files.sha256 import (
    Crc,
    Sha256,
    copy_and_hash,
    hash_file_and_spans,
    hash_joined_spans,
    hash_spans,
    hash_two,
)

SIZES = st.one_of(st.sampled_from([0, 1, 55, 56, 63, 64, 65, 119, 120, 128]), st.integers(0, 700))


@given(parts=st.lists(st.tuples(SIZES, st.integers(0, 2)), max_size=8), seed=st.integers(0, 99))
def test_streams_of_any_cut_have_the_sums_of_hashlib(
    parts: list[tuple[int, int]], seed: int
) -> None:
    one, other = Sha256(), Sha256()
    right_one, right_other = hashlib.sha256(), hashlib.sha256()
    for number, (size, how) in enumerate(parts):
        data = hashlib.shake_128(bytes([seed, number])).digest(size)
        beside = hashlib.shake_128(bytes([seed, number, 1])).digest(size)
        right_one.update(data)
        if how == 0:
            hash_two(one, data)
            continue
        hash_two(one, data, other, None if how == 1 else beside)
        right_other.update(data if how == 1 else beside)
        assert one.hexdigest() == right_one.hexdigest()
    assert one.hexdigest() == right_one.hexdigest()
    assert other.hexdigest() == right_other.hexdigest()


@given(
    before=st.tuples(SIZES, SIZES),
    parts=st.lists(st.tuples(SIZES | st.integers(700, 5000), st.integers(0, 3)), max_size=4),
    summed=st.booleans(),
    seed=st.integers(0, 99),
)
def test_what_is_written_directly_is_copied_and_has_the_sums_of_hashlib_and_zlib(
    before: tuple[int, int], parts: list[tuple[int, int]], summed: bool, seed: int
) -> None:
    one, other, crc, right_crc = Sha256(), Sha256(), Crc(), 0
    rights = [hashlib.sha256(bytes(count)) for count in before]
    for own, count in zip((one, other), before, strict=True):
        hash_two(own, bytes(count))
    for number, (size, shift) in enumerate(parts):
        data = hashlib.shake_128(bytes([seed, number])).digest(size)
        raw = np.frombuffer(bytes(shift) + data, np.uint8)[shift:]
        to = np.full(size + 9, 0x5A, np.uint8)
        copy_and_hash(raw, to[shift:], one, other, crc if summed else None)
        for right in rights:
            right.update(data)
        right_crc = zlib.crc32(data, right_crc)
        assert to.tobytes() == b"Z" * shift + data + b"Z" * (9 - shift)
    assert one.hexdigest() == rights[0].hexdigest()
    assert other.hexdigest() == rights[1].hexdigest()
    assert crc.value == (right_crc if summed else 0)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        (
            b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
        ),
        (b"a" * 10**6, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),
    ],
    ids=["one block", "two", "many"],
)
def test_the_examples_of_the_standard_have_the_sums_it_prints(text: bytes, right: str) -> None:
    """NIST's examples of SHA-256 (FIPS 180-2, appendix B)."""
    one, other = Sha256(), Sha256()
    hash_two(one, text, other)
    assert one.hexdigest() == other.hexdigest() == right


@pytest.mark.parametrize("together", [True, False])
def test_parts_of_a_file_have_the_sums_of_hashlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    monkeypatch.setattr(sha256, "HAS_PAIRED_SHA", together and sha256.HAS_PAIRED_SHA)
    path, content = tmp_path / "file", os.urandom(3 * sha256.READ_BYTES + 77)
    path.write_bytes(content)
    spans = [(5, 100), (105, 0), (200, sha256.READ_BYTES + 3), (len(content) - 9, 9)]
    right = [hashlib.sha256(content[first : first + n]).hexdigest() for first, n in spans]
    with path.open("rb") as file:
        number = file.fileno()
        whole = hashlib.sha256(content).hexdigest()
        assert hash_file_and_spans(number, len(content), spans) == (whole, right)
        assert hash_spans(number, [*spans[::-1], (len(content) - 9, 99)]) == [
            *right[::-1],
            right[-1],
        ]
        joined = b"".join(content[first : first + n] for first, n in spans)
        assert hash_joined_spans(number, spans) == hashlib.sha256(joined).hexdigest()
