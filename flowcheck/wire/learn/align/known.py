"""What a ring is told by beside the messages of its connections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowcheck.wire.collectives.nccl_debug_log import RingOrder
from flowcheck.wire.collectives.nccl_parameters import NcclEra
from flowcheck.wire.learn.cuts.purse import Purse


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known beside the messages, and how they are laid out."""

    rules: tuple[NcclEra, ...]
    logged: Sequence[RingOrder] = ()
    """Rings as NCCL's log has them."""
    purse: Purse | None = None
    """Counts what is laid."""
    goes_on: bool = False
    """More of the stream comes and is read then."""
