"""Content as evidence: where every rank adds the same, a result is a multiple of one part."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ENOUGH_WORDS = 8
"""Words, not zero, that must agree before chance is ruled out."""


def is_multiple(
    part: NDArray[np.uint8], result: NDArray[np.uint8], seen: NDArray[np.bool_], ranks: int
) -> bool | None:
    """Is `result` `ranks` times `part` in every word of which both were seen? None where too
    little was seen, or what was seen is zero: then nothing is told."""
    whole = len(part) // 4 * 4
    mask = seen[:whole].reshape(-1, 4).all(axis=1)
    one, many = part[:whole].view("<u4")[mask], result[:whole].view("<u4")[mask]
    if np.count_nonzero(one) < ENOUGH_WORDS and np.count_nonzero(many) < ENOUGH_WORDS:
        return None
    if bool((one * np.uint32(ranks) == many).all()):
        return True
    with np.errstate(all="ignore"):
        for kind in ("<f4", "<f2"):
            times = (one.view(kind) * np.dtype(kind).type(ranks)).astype(kind)
            if bool((times.view(one.dtype) == many).all()):
                return True
    # bfloat16 is the upper half of a float32.
    halves = one.view("<u2").astype("<u4") << np.uint32(16)
    with np.errstate(all="ignore"):
        times = (halves.view("<f4") * np.float32(ranks)).view("<u4") >> np.uint32(16)
    return bool((times.astype("<u2") == many.view("<u2")).all())
