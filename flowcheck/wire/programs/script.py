"""What a script sends on a communicator of its own: sums of whatever it likes, one by one, as of
metrics or of a layer that ranks share. Nothing says how many, or how large they are."""

from __future__ import annotations

from flowcheck.wire.programs.expectation import EXTRA, Program


def sums() -> Program:
    """All-reduces, without an end."""
    while True:
        yield (EXTRA,)
