"""What an operator states, where the wire does not tell it."""

from __future__ import annotations

import msgspec

from flowcheck.wire.job import Parameter
from flowcheck.wire.logged import RingOrder


class Stated(msgspec.Struct, frozen=True, kw_only=True):
    """What gradients are of, and in which order rings pass through ranks."""

    parameters: tuple[Parameter, ...] = ()
    """Those that take gradients, in registration order; (): they are not stated."""
    order: tuple[int, ...] = ()
    """Parameters in the order of their gradients, one by one or in flat buffers; (): it is not
    stated."""
    linear: bool | None = None
    """LL128 is that of an NCCL before 2.10, by the release that is stated; None: none is."""
    rings: tuple[RingOrder, ...] = ()
    """As NCCL's log tells them."""
