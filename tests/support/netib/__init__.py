"""Captures of NCCL's net_ib traffic under DDP with known truth, written from the wire facts alone.

Nothing here comes from `flowcheck`: the decoder and this judge of it must not share an error.
"""

from __future__ import annotations

from support.netib.capture import Generated, generate
from support.netib.options import Collective, Options, Truth

__all__ = ["Collective", "Generated", "Options", "Truth", "generate"]
