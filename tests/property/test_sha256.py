"""Two sums at a time against hashlib, however the bytes come."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcheck.replica.files import sha256
from flowcheck.replica.files.sha256 import Sum, add, of_joined, of_spans, walked

SIZES = st.one_of(st.sampled_from([0, 1, 55, 56, 63, 64, 65, 119, 120, 128]), st.integers(0, 700))


@given(parts=st.lists(st.tuples(SIZES, st.integers(0, 2)), max_size=8), seed=st.integers(0, 99))
def test_streams_of_any_cut_have_the_sums_of_hashlib(
    parts: list[tuple[int, int]], seed: int
) -> None:
    one, other = Sum(), Sum()
    right_one, right_other = hashlib.sha256(), hashlib.sha256()
    for number, (size, how) in enumerate(parts):
        data = hashlib.shake_128(bytes([seed, number])).digest(size)
        beside = hashlib.shake_128(bytes([seed, number, 1])).digest(size)
        right_one.update(data)
        if how == 0:
            add(one, data)
            continue
        add(one, data, other, None if how == 1 else beside)
        right_other.update(data if how == 1 else beside)
        assert one.hexdigest() == right_one.hexdigest()
    assert one.hexdigest() == right_one.hexdigest()
    assert other.hexdigest() == right_other.hexdigest()


@pytest.mark.parametrize("together", [True, False])
def test_parts_of_a_file_have_the_sums_of_hashlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    monkeypatch.setattr(sha256, "TOGETHER", together and sha256.TOGETHER)
    path, content = tmp_path / "file", os.urandom(3 * sha256.READ_BYTES + 77)
    path.write_bytes(content)
    spans = [(5, 100), (105, 0), (200, sha256.READ_BYTES + 3), (len(content) - 9, 9)]
    right = [hashlib.sha256(content[first : first + n]).hexdigest() for first, n in spans]
    with path.open("rb") as file:
        number = file.fileno()
        whole = hashlib.sha256(content).hexdigest()
        assert walked(number, len(content), spans) == (whole, right)
        assert of_spans(number, [*spans[::-1], (len(content) - 9, 99)]) == [*right[::-1], right[-1]]
        joined = b"".join(content[first : first + n] for first, n in spans)
        assert of_joined(number, spans) == hashlib.sha256(joined).hexdigest()
