"""Who is told of a replica's changes (step_journal)."""

from __future__ import annotations

from typing import Protocol

from flowcheck.replica.element_patch import ElementPatch
from flowcheck.replica.element_ranges import Ranges
from flowcheck.replica.state_digest import StateId
from flowcheck.step_numbers import Step


class ChangeObserver(Protocol):
    """Is told of each change of a replica's newest state right before anybody can see it; a kill
    between the two leaves a change that is told and was not made. It may raise nothing."""

    def change_committed(self) -> None:
        """What was told last is made: it is the newest state."""
        ...

    def step_made(self, before: StateId, behind: StateId, missing: Ranges) -> None:
        """missing: elements that lacked a byte."""
        ...

    def values_replaced(
        self, before: StateId, behind: StateId, patch: ElementPatch, *, exact: bool
    ) -> None:
        """Tainted elements take values. exact: they are tainted no more."""
        ...

    def tainted_late(self, newest: StateId, since: Step, elements: Ranges) -> None:
        """These elements turned out to be tainted since an earlier step; the state's values stay as
        they are."""
        ...

    def state_replaced(self, before: StateId, behind: StateId, *, gives_up: bool) -> None:
        """The state of another past takes the place of the newest one. gives_up: what the replica
        had of its step is not that, or is not held any more."""
        ...
