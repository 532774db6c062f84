"""How large a shard for gradients is; apart, as stages that take packets load no numpy."""

from __future__ import annotations

from typing import NamedTuple


class ShardSize(NamedTuple):
    """What a shard has room for."""

    gradient_bytes: int
    module_buffer_bytes: int
    """Behind each gradient."""
    unit_bytes: int
    """Of one element."""
