"""What a replica holds, read in place."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flowcheck.errors import StateError
from flowcheck.replica.elements import Flat, elements_of
from flowcheck.replica.kept.header import Commit, Description
from flowcheck.replica.kept.sections import Stored, have_state, stored
from flowcheck.replica.kept.state import StateFile
from flowcheck.replica.layout import Layout
from flowcheck.replica.rules import optimizers
from flowcheck.step_numbers import Step


class Held:
    """The committed step of a state file, and the whole ones before it."""

    def __init__(self, state: StateFile) -> None:
        self._state: StateFile | None = state
        self.layout: Layout = state.description.layout

    @property
    def path(self) -> Path:
        """Of the state file."""
        return self._open.path

    @property
    def commit(self) -> Commit:
        """The last committed step."""
        return self._open.commit

    @property
    def description(self) -> Description:
        """What the sections are."""
        return self._open.description

    @property
    def step(self) -> Step:
        """The last committed step; 0 before the first."""
        return self._open.commit.step

    @property
    def digest(self) -> str:
        """Hex digest of parameters and optimizer state at `step`."""
        return self._open.commit.digest.hex()

    @property
    def has_optimizer_state(self) -> bool:
        """False until the first step."""
        return self._open.commit.has_optimizer_state

    def parameters(self) -> np.ndarray:
        """The committed parameters, flat, [layout.elements], read-only and in place.

        Good until the `apply` that overwrites the oldest version: if none is kept, the one after
        the next.
        """
        return self.sections()[optimizers.PARAMETERS]

    def sections(self) -> dict[str, np.ndarray]:
        """Every flat array of the committed copy by name, read-only and in place."""
        arrays = self._open.sections(self._open.commit.copy)
        for array in arrays.values():
            array.flags.writeable = False
        return arrays

    def states(self) -> list[dict[str, Stored]]:
        """[parameter] what torch keeps of each by torch's names, in place; {} where nothing. Not to
        be written."""
        own = stored(self.description, self._open.sections(self._open.commit.copy))
        return [each if has else {} for each, has in zip(own, self.have_state(), strict=True)]

    def have_state(self) -> np.ndarray:
        """[parameters] bool: those that were ever stepped; torch has no state of the others."""
        sections = self._open.sections(self._open.commit.copy)
        return have_state(self.description, sections, stepped=self.has_optimizer_state)

    @property
    def versions(self) -> tuple[Step, ...]:
        """Steps that are whole, ascending; the last is `step`."""
        return tuple(commit.step for commit in self._open.versions)

    def step_of_weights(self, weights: Flat) -> Step | None:
        """The newest whole step whose parameters have these bytes; None if there is none.

        weights: [layout.elements], registration order, memory order.
        """
        values = elements_of(weights, self.layout, "weights").view(np.uint8)
        for commit in reversed(self._open.versions):
            held = self._open.sections(commit.copy)[optimizers.PARAMETERS].view(np.uint8)
            if np.array_equal(values, held):
                return commit.step
        return None

    @property
    def _open(self) -> StateFile:
        if self._state is None:
            raise StateError("the replica is closed")
        return self._state
