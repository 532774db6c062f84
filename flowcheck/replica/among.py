"""The states of several optimizers over one model, as one and as a script's file has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Among:
    """How a script keeps what belongs to each of its optimizers."""

    groups: tuple[int, ...]
    """[optimizer] how many parameter groups it has."""
    keys: tuple[str, ...] = ()
    """[optimizer] of its state in a dictionary; (): a list."""

    def parted(self, optimizer: dict[str, Any]) -> Any:
        """[optimizer] the state_dict() of each, in a list or by its key. optimizer: of all, whose
        numbers count on from one to the next, and whose groups follow each other."""
        found, group, first = [], 0, 0
        for count in self.groups:
            own = optimizer["param_groups"][group : group + count]
            size = sum(len(each["params"]) for each in own)
            groups = [{**each, "params": [n - first for n in each["params"]]} for each in own]
            state = {
                n - first: kept
                for n, kept in optimizer["state"].items()
                if first <= n < first + size
            }
            found.append({"state": state, "param_groups": groups})
            group, first = group + count, first + size
        return self.shaped(found)

    def shaped(self, parts: Sequence[Any]) -> Any:
        """[optimizer] of any kind, likewise."""
        return dict(zip(self.keys, parts, strict=True)) if self.keys else list(parts)
