"""Objects of classes that are not installed here, in a file that is read to be written again: kept
as they lie there, never looked into, and no code of theirs is run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np


class Opaque:
    """What a pickle says of an object: what it was made with, and its state."""

    def __new__(cls, *made_with: Any) -> Opaque:
        self = super().__new__(cls)
        self.__dict__["made_with"] = made_with
        return self

    def __init__(self, *made_with: Any) -> None:
        """All is done in `__new__`, which a pickle may call alone."""

    def __setstate__(self, state: Any) -> None:
        self.__dict__["state"] = state

    def __reduce__(self) -> tuple[Any, ...]:
        state = self.__dict__.get("state")
        return (type(self), self.__dict__["made_with"], *(() if state is None else (state,)))


def stand_in(name: str) -> tuple[type[Opaque], str]:
    """A class in place of the one that a pickle calls `name`, as torch's safe_globals takes it."""
    module, _, own = name.rpartition(".")
    kind = type(own, (Opaque,), {"__module__": module, "__qualname__": own})
    return kind, name


def arrays() -> list[Any]:
    """What numpy's arrays of numbers are pickled with, under the names old and new."""
    make = np.zeros(0).__reduce__()[0]
    names = ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct")
    kinds = {type(np.dtype(code)) for code in np.typecodes["AllInteger"] + np.typecodes["Float"]}
    return [*((make, name) for name in names), np.ndarray, np.dtype, *sorted(kinds, key=str)]


@contextmanager
def importable(kinds: Sequence[type[Opaque]]) -> Iterator[None]:
    """While it runs pickle finds each class under its name, and writes that name."""
    made: list[str] = []
    put: list[tuple[ModuleType, str]] = []
    try:
        for kind in kinds:
            parts = kind.__module__.split(".")
            for end in range(1, len(parts) + 1):
                name = ".".join(parts[:end])
                if name not in sys.modules:
                    sys.modules[name] = ModuleType(name)
                    made.append(name)
            module = sys.modules[kind.__module__]
            if not hasattr(module, kind.__name__):
                setattr(module, kind.__name__, kind)
                put.append((module, kind.__name__))
        yield
    finally:
        for module, own in put:
            delattr(module, own)
        for name in made:
            del sys.modules[name]
