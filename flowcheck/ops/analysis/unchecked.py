"""Captures of which no frame has a right check sum: headers that a mirror wrote anew."""

from __future__ import annotations

from dataclasses import replace

from flowcheck.plane.tape import Tape
from flowcheck.wire.learn import Reading

CHECKED = ("write", "orphan", "stale", "doubtful", "ack", "nak", "send", "read", "cnp")
"""Verdicts of frames whose check sum was right."""
REWRITTEN_FRAMES = 16
"""With fewer, all of them may be damaged."""
REWRITTEN = (
    "not one frame has a right check sum (ICRC): headers were written anew on the way, or never "
    "had one; the frames were read unchecked"
)
UNCHECKED = "its bytes: no frame has a right check sum"


def is_rewritten(tape: Tape) -> bool:
    """Not one check sum of RoCE is right: not frames that were damaged, but a mirror that writes
    headers anew, or a program that wrote the capture without them."""
    right = sum(tape.frames.get(verdict, 0) for verdict in CHECKED)
    return not right and tape.frames.get("icrc_bad", 0) >= REWRITTEN_FRAMES


def told(reading: Reading) -> Reading:
    """The same, and that nothing vouches for its bytes."""
    collectives = tuple(replace(c, assumed=(*c.assumed, UNCHECKED)) for c in reading.collectives)
    weights = reading.weights
    if weights is not None:
        weights = replace(weights, assumed=(*weights.assumed, UNCHECKED))
    return replace(reading, collectives=collectives, weights=weights)
