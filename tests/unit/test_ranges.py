"""The Range header, held against a plain reading of RFC 9110, byte by byte."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flowcheck.vault.http_support.http_ranges import (
    RANGES_MAX,
    if_none_match,
    if_range_matches,
    requested_ranges,
)

ONE = st.one_of(
    st.tuples(st.integers(0, 60), st.none() | st.integers(0, 60)),
    st.tuples(st.none(), st.integers(0, 60)),
)


def bytes_of(one: tuple[int | None, int | None], size: int) -> set[int]:
    """Positions that a range names, as section 14.1.2 says it in words."""
    first, last = one
    if first is None:
        assert last is not None
        return {at for at in range(size) if at >= size - last}
    return {at for at in range(size) if first <= at and (last is None or at <= last)}


@given(st.lists(ONE, min_size=1, max_size=RANGES_MAX), st.integers(0, 50), st.booleans())
def test_what_is_asked_for_is_what_is_given(
    asked: list[tuple[int | None, int | None]], size: int, spaced: bool
) -> None:
    words = [f"{'' if a is None else a}-{'' if b is None else b}" for a, b in asked]
    found = requested_ranges(
        ("BYTES=" if spaced else "bytes=") + (" ,\t" if spaced else ",").join(words), size
    )
    if any(a is not None and b is not None and b < a for a, b in asked):
        assert found is None, "one that is not well formed: the header is ignored"
        return
    wanted = [bytes_of(one, size) for one in asked]
    assert found is not None
    assert [set(range(*span)) for span in found] == [one for one in wanted if one]


@given(st.text(max_size=40), st.integers(0, 1 << 70))
def test_nothing_that_a_client_may_send_does_harm(header: str, size: int) -> None:
    for own in (header, "bytes=" + header):
        for begin, end in requested_ranges(own, size) or []:
            assert 0 <= begin < end <= size


def test_what_is_not_understood_is_ignored_and_what_is_beyond_is_nothing() -> None:
    for header in ("", "bytes", "bytes=", "bytes=-", "bytes=a-b", "lines=0-1", "bytes=1-0",
                   "bytes=0-1,x", "bytes=²-", "bytes=0-1;2-3", "bytes=" + "0-0," * 17):  # fmt: skip
        assert requested_ranges(header, 10) is None, header
    assert requested_ranges("bytes=10-", 10) == [] == requested_ranges("bytes=-0", 10)
    assert requested_ranges("bytes=0-0,20-30", 10) == [(0, 1)]


def test_tags_are_compared_whole() -> None:
    assert if_range_matches('"abc"', "abc")
    assert not if_range_matches('W/"abc"', "abc") and not if_range_matches(
        "Sun, 06 Nov 1994 08:49:37 GMT", "abc"
    )
    assert if_none_match('"x", W/"abc"', "abc") and if_none_match("*", "abc")
    assert not if_none_match('"ab"', "abc") and not if_none_match("", "abc")
