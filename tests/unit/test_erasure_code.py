"""The code k + m, against arithmetic in GF(2^8) written from its definition."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refused_as import refused_as

from flowcheck.errors import StateError
from flowcheck.findings.catalog.striped_saves import NEEDS_ISAL
from flowcheck.vault.erasure import isal_code
from flowcheck.vault.erasure.isal_code import ErasureCode, aligned_blocks
from flowcheck.vault.erasure.stripe_layout import StripeLayout


def times(a: int, b: int) -> int:
    """Of polynomials over GF(2), modulo x^8 + x^4 + x^3 + x^2 + 1."""
    product = 0
    for bit in range(8):
        if b >> bit & 1:
            product ^= a << bit
    for bit in range(14, 7, -1):
        if product >> bit & 1:
            product ^= 0x11D << bit - 8
    return product


def inverse(a: int) -> int:
    return next(one for one in range(1, 256) if times(a, one) == 1)


def parities(data: list[list[int]], m: int) -> list[list[int]]:
    """Of a Cauchy matrix 1 / (i + j), i from k on; of ones where there is one parity."""
    k, made = len(data), []
    for i in range(k, k + m):
        row = [1 if m == 1 else inverse(i ^ j) for j in range(k)]
        out = [0] * len(data[0])
        for factor, block in zip(row, data, strict=True):
            out = [one ^ times(factor, byte) for one, byte in zip(out, block, strict=True)]
        made.append(out)
    return made


def blocks(rows: list[list[int]]) -> np.ndarray:
    made = aligned_blocks(len(rows), len(rows[0]))
    made[:] = rows
    return made


@pytest.mark.parametrize(("k", "m"), [(1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (4, 2), (3, 3)])
def test_parities_and_every_loss_are_as_the_definition_has_them(k: int, m: int) -> None:
    code, random = ErasureCode(k, m), np.random.default_rng(k * 10 + m)
    data = blocks(random.integers(0, 256, (k, 64)).tolist())
    parity = aligned_blocks(m, 64)
    code.encode(data, parity)
    assert parity.tolist() == parities(data.tolist(), m)
    whole = dict(enumerate([*data, *parity]))
    for lost in range(1, m + 1):
        for gone in itertools.combinations(range(k + m), lost):
            there = {number: one for number, one in whole.items() if number not in gone}
            made = dict(zip(gone, aligned_blocks(len(gone), 64), strict=True))
            code.rebuild(there, made)
            assert all((made[one] == whole[one]).all() for one in gone)
    with pytest.raises(ValueError, match="blocks of"):
        code.rebuild({0: whole[0]} if k > 1 else {}, {1: made[gone[0]]})


def test_the_widest_code_gives_back_what_is_lost() -> None:
    code, random = ErasureCode(24, 8), np.random.default_rng(1)
    data, parity = aligned_blocks(24, 192), aligned_blocks(8, 192)
    data[:] = random.integers(0, 256, data.shape)
    code.encode(data, parity)
    whole = [*data, *parity]
    for _ in range(20):
        gone = random.choice(32, 8, replace=False).tolist()
        made = dict(zip(gone, aligned_blocks(8, 192), strict=True))
        code.rebuild({n: one for n, one in enumerate(whole) if n not in gone}, made)
        assert all((made[one] == whole[one]).all() for one in gone)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 31), st.integers(1, 31), st.integers(0, 100_000), st.integers(1, 40))
def test_each_byte_has_one_place_and_each_store_its_share(
    k: int, m: int, total: int, unit: int
) -> None:
    m = min(m, 32 - k)
    layout = StripeLayout(k, m, unit * 64, total)
    sizes = [layout.block_size(stripe) for stripe in range(layout.stripes)]
    assert sum(sizes) == layout.shard_bytes and sum(sizes) * k >= total
    assert sum(sizes) * k - total < k * 64 + 64 * k
    assert all(size % 64 == 0 and 0 < size <= unit * 64 for size in sizes)
    assert sizes[:-1] == [unit * 64] * (len(sizes) - 1)
    parity_of = [0] * (k + m)
    for stripe in range(min(layout.stripes, k + m)):
        assert sorted(layout.shard_of(stripe, role) for role in range(k + m)) == [*range(k + m)]
        for role in range(k, k + m):
            shard = layout.shard_of(stripe, role)
            parity_of[shard] += 1
            assert layout.role_of(stripe, shard) == role
    if layout.stripes >= k + m:
        assert parity_of == [m] * (k + m)


def test_without_isa_l_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flowcheck._isal", None)
    isal_code._isal.cache_clear()
    try:
        with refused_as(NEEDS_ISAL, kind=StateError):
            ErasureCode(2, 1)
    finally:
        isal_code._isal.cache_clear()
