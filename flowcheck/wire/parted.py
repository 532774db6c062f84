"""Training whose optimizer state is parted over the ranks, as an operator states it.

The parameters lie in units, each cut into one part a rank. Every step sums the gradients, and once
each rank has stepped its parts gathers every unit once, in the type of the model.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Style(StrEnum):
    """Whose collectives they are."""

    FSDP = "fsdp"
    """torch's: the wire tells them."""
    ZERO = "zero"
    """DeepSpeed's first two stages: gradients are all-reduced."""
    MEGATRON = "megatron"
    """Megatron-LM's distributed optimizer: each bucket is reduce-scattered, then gathered."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank holds of one unit."""

    gathered_bytes: int
    scattered_bytes: int
    """Of its gradient's sum; 0: that is no reduce-scatter's."""
    dtype: str
    """As it is gathered, torch's name without the prefix."""
    gradient_bytes: int = 4
    """Of an element of the gradient."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a parameter lies."""

    nbytes: int
    unit: int | None = None
    """None: it takes no gradients, and lies in none."""
    start_byte: int = 0
    """In the unit."""


class Parted(msgspec.Struct, frozen=True, kw_only=True):
    """What crosses the wire in every step."""

    style: Style
    ranks: int
    parts: tuple[Part, ...]
    """In the order that gradients are scattered in."""
    places: tuple[Place, ...] = ()
    """Of all parameters in registration order, as the trainer may send each before it begins."""
    summed_bytes: int = 0
    """Of all gradients, where they are all-reduced."""
    sums: int = 1
    """Times that they are, in a step."""
    backward: bool | None = None
    """Units are gathered from the last one on; None: it is not stated."""
