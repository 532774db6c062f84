"""What is said of parameters of one number, whose places DDP's start-up does not tell."""

from __future__ import annotations

from flowcheck.wire.learn.trainer.habits import Habits

OPEN = (
    "where {} of the parameters, of one number each, stand among the others: {} ways give every "
    "bucket its size, and the likeliest by {} is taken ([model] factory states it)"
)
UNSURE = (
    "where {} of the parameters, of one number each, stand among the others is not told: {} ways "
    "give every bucket its size, and none is much likelier than the next: state the model, [model] "
    'factory = "file.py:function" in the job file, or analyze --model'
)
TOLD = "{} parameters of one number stand where {} leave one place for them"
BY_SIZES = "the sizes of buckets"


def places_open(habits: Habits) -> str:
    """Why their places are only assumed; empty: they are told, or there are none."""
    if not habits.scalars_open or habits.scalars_unsure:
        return places_unsure(habits)
    by = habits.placed.by if habits.placed is not None else ""
    return OPEN.format(habits.shapes[0].scalars, habits.scalars_open, by)


def places_unsure(habits: Habits) -> str:
    """Why no replica may start from a guess of their places; empty: none is made, or enough speaks
    for it."""
    if not habits.scalars_unsure:
        return ""
    return UNSURE.format(habits.shapes[0].scalars, habits.scalars_open)


def places_told(habits: Habits) -> str:
    """By what their places are told; empty: they are not, or there are none."""
    placed = habits.placed
    if placed is None or placed.ways != 1 or not habits.shapes[0].scalars:
        return ""
    return TOLD.format(habits.shapes[0].scalars, placed.by or BY_SIZES)
