"""The step that a replica is making."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flowcheck.errors import StateError
from flowcheck.findings.catalog.replica_state_errors import STEP_IS_OVER
from flowcheck.replica.optimizer_step.step_executor import StepInProgress


class PendingStep:
    """The next step of a replica, from `Replica.begin` on. Nobody sees anything of it before
    `commit`; one that is abandoned, or left by a kill, costs nothing but its own work."""

    def __init__(
        self, begin: Callable[[], StepInProgress], publish: Callable[[list[bytes]], None]
    ) -> None:
        """begin: called when first something is applied; publish: with every tensor's digest."""
        self._begin, self._publish = begin, publish
        self._in_progress: StepInProgress | None = None
        self._open = True

    @property
    def open(self) -> bool:
        """Neither committed nor given up, by whoever."""
        return self._open

    def apply(self, parameters: Sequence[int]) -> None:
        """Steps these, by their number, whose gradients are there and stay as they are. Raises
        StateError once it is over."""
        self._now().apply(parameters)

    def commit(self, certain: Callable[[], bool] = lambda: True) -> bool:
        """Steps what is left and makes this the replica's step. certain: asked last of all, whether
        the gradient may be believed; else the step is given up. Whether it was made. Raises
        StateError once it is over."""
        digests = self._now().finish()
        self._open = False
        if not certain():
            return False
        self._publish(digests)
        return True

    def abandon(self) -> None:
        """It will not be committed: the replica stays at its step."""
        self._open = False

    def _now(self) -> StepInProgress:
        if not self._open:
            raise StateError(STEP_IS_OVER())
        if self._in_progress is None:
            self._in_progress = self._begin()
        return self._in_progress
