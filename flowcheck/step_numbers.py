"""The two ways in which steps are counted, as types that mypy tells apart; steps in words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NewType

Step = NewType("Step", int)
"""An optimizer step of the trainer, from 1; 0 is the state before the first one."""

START = Step(0)
"""Before any step was applied."""

Iteration = NewType("Iteration", int)
"""An all-reduced backward pass, from 1, counted by the shard over all incarnations of a job: with
accumulation whose backward passes are all reduced, several make one step."""


def step_ranges(steps: Iterable[int]) -> list[str]:
    """Steps in words, in ascending order: "3", "5 to 9"."""
    runs: list[tuple[int, int]] = []
    for step in sorted(set(steps)):
        if runs and step == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], step
        else:
            runs.append((step, step))
    return [f"{first}" if first == last else f"{first} to {last}" for first, last in runs]
