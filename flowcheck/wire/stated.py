"""A model as an operator states it, where no trainer tells it on the wire."""

from __future__ import annotations

import msgspec

from flowcheck.wire.job import Parameter


class Stated(msgspec.Struct, frozen=True, kw_only=True):
    """What gradients are of."""

    parameters: tuple[Parameter, ...]
    """Those that take gradients, in registration order."""
    order: tuple[int, ...] = ()
    """Parameters in the order of their gradients, one by one or in flat buffers; (): it is not
    stated."""
