"""What all parts of a state have in common."""

from __future__ import annotations

import msgspec


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all parts of a state."""
