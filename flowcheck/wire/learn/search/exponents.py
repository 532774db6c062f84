"""Does a number look like the others of its tensor? What fills an LL line up mostly does not.

Numbers of one tensor have exponents near each other; what stands behind its end may be anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.cuts.place import unpacked
from flowcheck.wire.learn.flows.rings import Ring

ANY_EXPONENT = 96
"""Numbers whose upper bytes differ by more are no exponents, or tell nothing."""
LEAST_OTHERS = 32
"""Numbers in the same send that the last one is held against."""
LEAST_TOLD = 4
"""Sends that must tell of one bucket."""
MOST_BUCKETS = 8
AGREE = 0.75
"""Share of them that must tell the same: what fills a line up may look like a number."""


def is_one_of(word: NDArray[np.uint8], words: NDArray[np.uint8]) -> bool:
    """Its exponent is one that the others have: of four bytes the last one, and of two numbers the
    second one too, leaving signs aside."""
    others = words[words.any(axis=1)]
    for place in (1, 3):
        exponents = others[:, place] & 0x7F
        if not len(exponents):
            return False
        least, most = int(exponents.min()), int(exponents.max())
        if most - least < ANY_EXPONENT and not least <= word[place] & 0x7F <= most:
            return False
    return True


def last_sends(cut: Cut, ring: Ring) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.bool_]]]:
    """(data, seen) of every send that carries the end of the tensor."""
    for stream, number, send in cut.sends(ring):
        seen = stream.sends.get(number)
        last = send.data_bytes and send.start_byte + send.data_bytes == cut.op.work_bytes
        if last and seen is not None:
            yield unpacked(seen, cut.op.protocol, send.data_bytes)


def odd_ends(alike: Sequence[Cut], ring: Ring) -> list[int]:
    """[cut] bytes at the end of tensors of as many whole lines that are none of their numbers, of 4
    or, where both halves of their words have exponents, of 2 bytes. Buckets of several sizes may
    fill as many lines: those that come every so many times are held to be one. 0 as well where
    too few tell."""
    told = [_of_cut(cut, ring) for cut in alike]
    for period in range(1, MOST_BUCKETS + 1):
        rows = [[n for of in told[i::period] for n in of] for i in range(period)]
        if not all(len(row) >= LEAST_TOLD for row in rows):
            break
        usual = [sorted(row)[len(row) // 2] for row in rows]
        if all(row.count(n) >= AGREE * len(row) for row, n in zip(rows, usual, strict=True)):
            return [usual[i % period] for i in range(len(alike))]
    return [0] * len(alike)


def odd_end(cut: Cut, ring: Ring) -> bool:
    """What stands at the end of its last line is none of its numbers."""
    return any(_of_cut(cut, ring))


def _of_cut(cut: Cut, ring: Ring) -> list[int]:
    return [
        _odd_bytes(data.reshape(-1, 4))
        for data, seen in last_sends(cut, ring)
        if not len(data) % 4 and seen.all() and len(data) > 4 * LEAST_OTHERS
    ]


def _odd_bytes(words: NDArray[np.uint8]) -> int:
    if is_one_of(words[-1], words[:-1]):
        return 0
    others = words[:-2][words[:-2].any(axis=1)]
    exponents = others[:, (1, 3)] & 0x7F
    spans = np.ptp(exponents, axis=0) if len(exponents) else np.array([ANY_EXPONENT] * 2)
    if (spans >= ANY_EXPONENT).any():
        return 4
    odd = 0
    for half in words.reshape(-1, 2)[:-4:-1]:
        if exponents.min() <= half[1] & 0x7F <= exponents.max():
            break
        odd += 2
    return odd
