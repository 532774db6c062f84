"""What an operator states, where the wire does not tell it."""

from __future__ import annotations

import msgspec

from flowcheck.wire.job import Parameter
from flowcheck.wire.logged import RingOrder


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter or a buffer by its name."""

    name: str
    wire: Parameter
    """Sizes and strides in elements, the type, bytes of an element."""
    trains: bool = True
    """False: frozen, or a buffer; it has no gradient."""
    buffer: bool = False


class Stated(msgspec.Struct, frozen=True, kw_only=True):
    """What gradients are of, and in which order rings pass through ranks."""

    parameters: tuple[Parameter, ...] = ()
    """Those that take gradients, in registration order; (): they are not stated."""
    everything: tuple[Tensor, ...] = ()
    """All that DistributedDataParallel's start-up broadcasts hold of the module, in their order:
    parameters, frozen ones in their places, then buffers; (): it is not stated."""
    order: tuple[int, ...] = ()
    """Parameters in the order of their gradients, one by one or in flat buffers; (): it is not
    stated."""
    linear: bool | None = None
    """LL128 is that of an NCCL before 2.10, by the release that is stated; None: none is."""
    rings: tuple[RingOrder, ...] = ()
    """As NCCL's log tells them."""
