"""What stands behind the weights in their last LL line: padding, or a value nobody announced.

A line holds 8 bytes, and a frozen parameter of one element may fill what is left of it: then the
weights are one element further on than they seem. NCCL leaves what it pads with undefined; one
sender's plan and its weights are padded alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from flowcheck.wire.collectives.nccl_parameters import LL_LINE_DATA_BYTES, Protocol
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.cuts.place import unpacked
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.trainer.grammar import ORDER, SIZES, WEIGHTS, Habits


def hidden(communicator: Communicator) -> tuple[int, bool]:
    """(bytes behind the weights that may be a parameter's, whether they look like no padding)."""
    ring, cuts = communicator.ring, communicator.cuts.found
    sent = [cut for cut in cuts if cut.op.meaning == WEIGHTS]
    own = {pad for cut in _last(communicator.habits, sent) for pad in _pads(cut, ring) if any(pad)}
    plan = {pad for cut in cuts if cut.op.meaning in (ORDER, SIZES) for pad in _pads(cut, ring)}
    usual = {byte for pad in plan for byte in pad}
    if not own or all(set(pad) == usual for pad in own):
        return 0, False
    return max(map(len, own)), len(usual) == 1


def _last(habits: Habits, sent: Sequence[Cut]) -> list[Cut]:
    """The broadcasts with which weights end, those of each dtype."""
    if habits.types is not None:
        return list(sent[: len(habits.pieces)])
    ends = accumulate(cut.op.work_bytes for cut in sent)
    return [cut for cut, end in zip(sent, ends, strict=True) if end == habits.state_bytes][:1]


def _pads(cut: Cut, ring: Ring) -> Iterator[bytes]:
    """What every send that carries the end of the tensor has behind it, in its last line."""
    if cut.op.protocol is not Protocol.LL:
        return
    for stream, number, send in cut.sends(ring):
        seen = stream.sends.get(number)
        rest = -send.data_bytes % LL_LINE_DATA_BYTES
        last = send.data_bytes and send.start_byte + send.data_bytes == cut.op.work_bytes
        if seen is not None and last and rest:
            data, mask = unpacked(seen, Protocol.LL, send.data_bytes + rest)
            if mask[-rest:].all():
                yield data[-rest:].tobytes()
