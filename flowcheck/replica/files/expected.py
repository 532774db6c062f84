"""Sums that tensors in memory are to have: each is checked where it is written, so that no byte is
read for that alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from flowcheck.errors import StateError

Address = tuple[int, int]
"""First byte's, bytes."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a checkpoint's manifest says of the tensors that were mapped from it."""

    sums: Mapping[Address, tuple[str, str]] = field(default_factory=dict)
    """A contiguous tensor's label and its sum, by where it lies."""
    where: str = ""
    """The checkpoint, to the user."""
    rest: Callable[[set[str]], None] = lambda met: None
    """Checks what was not met. Raises StateError."""
    met: set[str] = field(default_factory=set)

    def meet(self, address: Address, own: str) -> None:
        """Raises StateError where the tensor that lies there is to have another sum."""
        label, wanted = self.sums.get(address, ("", own))
        if wanted != own:
            raise StateError(
                f"{self.where}: {label}: is not what was written: not the checkpoint that was "
                "written"
            )
        if label:
            self.met.add(label)

    def end(self) -> None:
        """Checks what was written nowhere. Raises StateError."""
        self.rest(self.met)


NOTHING = Expected()
