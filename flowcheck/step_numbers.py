"""The two ways in which steps are counted, as types that mypy tells apart."""

from __future__ import annotations

from typing import NewType

Step = NewType("Step", int)
"""An optimizer step of the trainer, from 1; 0 is the state before the first one."""

START = Step(0)
"""Before any step was applied."""

Iteration = NewType("Iteration", int)
"""An all-reduced backward pass, from 1, counted by the shard over all incarnations of a job: with
accumulation whose backward passes are all reduced, several make one step."""
