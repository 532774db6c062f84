"""How far a DDP trainer's start-up has come."""

from __future__ import annotations

from enum import Enum


class Stage(Enum):
    """How far the start-up has come."""

    NOTHING = 0
    """No start-up, or something else than DDP so far."""
    COUNTED = 1
    SHAPED = 2
    STEPPED = 3
    ORDERED = 4
    PLANNED = 5
    UNPLANNED = 6
    """The bucket plan was sent but not seen whole."""
