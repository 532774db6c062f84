"""When a change of a replica was made, for whoever must load neither the replica nor torch."""

from __future__ import annotations

import msgspec

ID_BYTES = 16
"""Drawn numbers, of a chain's life and of a run directory, which nobody draws twice."""


class Epoch(msgspec.Struct, frozen=True, order=True):
    """When a change was made, in an order that no clock decides: later epochs take the place of
    earlier ones."""

    stated: int = 0
    """`[copies] epoch` of the chain's job file."""
    run: int = 0
    """How often a chain began in the run directory."""
    incarnation: int = 1
    """Of the training job: one more with each restart that was followed."""

    def __str__(self) -> str:
        return f"{self.stated}.{self.run}.{self.incarnation}"
