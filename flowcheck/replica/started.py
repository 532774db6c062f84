"""A step that is being made beside the committed one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flowcheck.errors import StateError
from flowcheck.replica.taking import Making


class Started:
    """The next step of a replica, from `Replica.begin` on. Nobody sees anything of it before
    `commit`; one that is abandoned, or left by a kill, costs nothing but its own work."""

    def __init__(
        self, making: Callable[[], Making], publish: Callable[[list[bytes]], None]
    ) -> None:
        """making: called when first something is taken; publish: with every tensor's digest."""
        self._make, self._publish = making, publish
        self._making: Making | None = None
        self._open = True

    @property
    def open(self) -> bool:
        """Neither committed nor given up, by whoever."""
        return self._open

    def take(self, parameters: Sequence[int]) -> None:
        """Steps these, by their number, whose gradients are there and stay as they are. Raises
        StateError once it is over."""
        self._now().take(parameters)

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

    def _now(self) -> Making:
        if not self._open:
            raise StateError("this step was committed or given up; begin it again")
        if self._making is None:
            self._making = self._make()
        return self._making
