"""The steps of a replica's state file that are whole, read in place."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flowcheck.errors import StateError
from flowcheck.findings.catalog.replica_state_errors import CLOSED
from flowcheck.replica.optimizer import state_section_names
from flowcheck.replica.optimizer.state_sections import StoredState, has_state_mask, stored_states
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.state_file.file_header import Commit, Description
from flowcheck.replica.state_file.state_file import StateFile
from flowcheck.step_numbers import Step


class CommittedReplica:
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
        return self.sections()[state_section_names.PARAMETERS]

    def sections(self) -> dict[str, np.ndarray]:
        """Every flat array of the committed copy by name, read-only and in place."""
        return self.sections_of(self._open.commit)

    def sections_of(self, commit: Commit) -> dict[str, np.ndarray]:
        """Likewise of one of the whole steps."""
        arrays = self._open.sections(commit.copy)
        for array in arrays.values():
            array.flags.writeable = False
        return arrays

    @property
    def newest_exact(self) -> Commit | None:
        """The newest whole step without tainted elements; None: each has some."""
        exact = [commit for commit in self._open.versions if not commit.tainted]
        return exact[-1] if exact else None

    def states(self) -> list[dict[str, StoredState]]:
        """[parameter] what torch keeps of each by torch's names, in place; {} where nothing. Not to
        be written."""
        own = stored_states(self.description, self._open.sections(self._open.commit.copy))
        return [each if has else {} for each, has in zip(own, self.have_state(), strict=True)]

    def have_state(self) -> np.ndarray:
        """[parameters] bool: those that were ever stepped; torch has no state of the others."""
        sections = self._open.sections(self._open.commit.copy)
        return has_state_mask(self.description, sections, stepped=self.has_optimizer_state)

    @property
    def versions(self) -> tuple[Step, ...]:
        """Steps that are whole, ascending; the last is `step`."""
        return tuple(commit.step for commit in self._open.versions)

    @property
    def kept_commits(self) -> tuple[Commit, ...]:
        """Of `versions`."""
        return tuple(self._open.versions)

    def _held(self, step: Step) -> Commit | None:
        """The whole version of a step; None: it holds none any more."""
        return next((one for one in reversed(self._open.versions) if one.step == step), None)

    @property
    def _open(self) -> StateFile:
        if self._state is None:
            raise StateError(CLOSED())
        return self._state
