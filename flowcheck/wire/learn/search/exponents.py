"""Does a number look like the others of its tensor? What fills an LL line up mostly does not.

Numbers of one tensor have exponents near each other; what stands behind its end may be anything.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.cuts.place import unpacked
from flowcheck.wire.learn.flows.rings import Ring

ANY_EXPONENT = 96
"""Numbers whose upper bytes differ by more are no exponents, or tell nothing."""
LEAST_OTHERS = 32
"""Numbers in the same send that the last one is held against."""


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


def odd_end(cut: Cut, ring: Ring) -> bool:
    """What stands at the end of its last line is none of its numbers."""
    return any(
        not is_one_of(words[-1], words[:-1])
        for data, seen in last_sends(cut, ring)
        if not len(data) % 4 and seen.all() and len(data) > 4 * LEAST_OTHERS
        for words in (data.reshape(-1, 4),)
    )
