"""What is said of parameters of one number, whose places DDP's start-up does not tell."""

from __future__ import annotations

from flowcheck.wire.learn.trainer.habits import Habits

OPEN = (
    "where {} of the parameters, of one number each, stand among the others: {} ways give every "
    "bucket its size, and {} is taken ([model] factory states it)"
)
LIKELIEST, FIRST = "the likeliest by {}", "the first of them"
TOLD = "{} parameters of one number stand where {} leave one place for them"
BY_SIZES = "the sizes of buckets"


def places_open(habits: Habits) -> str:
    """Why their places are only assumed; empty: they are told, or there are none."""
    if not habits.scalars_open:
        return ""
    by = habits.placed.by if habits.placed is not None else ""
    taken = LIKELIEST.format(by) if by else FIRST
    return OPEN.format(habits.shapes[0].scalars, habits.scalars_open, taken)


def places_told(habits: Habits) -> str:
    """By what their places are told; empty: they are not, or there are none."""
    placed = habits.placed
    if placed is None or placed.ways != 1 or not habits.shapes[0].scalars:
        return ""
    return TOLD.format(habits.shapes[0].scalars, placed.by or BY_SIZES)
