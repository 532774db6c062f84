"""What a script sends on a communicator of its own: sums of whatever it likes, one by one, as of
metrics or of a layer that ranks share. Nothing says how many, or how large they are."""

from __future__ import annotations

from dataclasses import replace

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.programs.expectation import EXTRA, Expect, Program

BROADCAST = Expect(kind=CollectiveKind.BROADCAST, meaning="")


def sums() -> Program:
    """All-reduces, without an end."""
    while True:
        yield (EXTRA,)


def repeated() -> Program:
    """What a script sends that was met amid its run: sums, and broadcasts between, which come again
    each iteration. A sum that came before is likelier than another that fits as well, and a
    broadcast the least likely: one of any size explains any send."""
    known: dict[Expect, None] = {}
    while True:
        came = yield (*known, EXTRA, BROADCAST)
        if came.expect.kind is CollectiveKind.ALL_REDUCE:
            known[replace(EXTRA, work_bytes=came.work_bytes)] = None
