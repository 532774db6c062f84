"""What is said of parameters of one number, whose places DDP's start-up does not tell."""

from __future__ import annotations

from flowcheck.findings.catalog.job_learning import (
    BUCKET_SIZES,
    SCALARS_FIRST,
    SCALARS_LIKELIEST,
    SCALARS_OPEN,
    SCALARS_PLACED,
)
from flowcheck.findings.finding import Finding
from flowcheck.wire.learn.trainer.habits import Habits


def places_open(habits: Habits) -> Finding | None:
    """Why their places are only assumed; None: they are told, or there are no such parameters."""
    if not habits.scalars_open or habits.scalars_unsure:
        return places_unsure(habits)
    by = habits.placed.by if habits.placed is not None else None
    if by is None:
        return SCALARS_FIRST(scalars=habits.shapes[0].scalars, ways=habits.scalars_open)
    return SCALARS_LIKELIEST(scalars=habits.shapes[0].scalars, ways=habits.scalars_open, basis=by)


def places_unsure(habits: Habits) -> Finding | None:
    """Why no replica may start from a guess of their places; None: no place is guessed, or enough
    speaks for it."""
    if not habits.scalars_unsure:
        return None
    return SCALARS_OPEN(scalars=habits.shapes[0].scalars, ways=habits.scalars_open)


def places_told(habits: Habits) -> Finding | None:
    """By what their places are told; None: they are not, or there are no such parameters."""
    placed = habits.placed
    if placed is None or placed.ways != 1 or not habits.shapes[0].scalars:
        return None
    return SCALARS_PLACED(scalars=habits.shapes[0].scalars, basis=placed.by or BUCKET_SIZES())
