"""Stand-ins for pickled objects whose classes are not installed or not trusted, in a file that is
read to be written again. The objects are kept as they are in the file; none of their code is
run."""

from __future__ import annotations

import pickle
from argparse import Namespace
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from flowcheck.errors import StateError
from flowcheck.findings.catalog import unreadable_checkpoints as findings
from flowcheck.findings.finding import Finding

NUMPY = (
    "numpy.core.multiarray._reconstruct",
    "numpy._core.multiarray._reconstruct",
    "numpy.ndarray",
    "numpy.dtype",
)
"""Names in the pickles of numpy's arrays, old and new. numpy's own functions would trust sizes,
flags and element pointers from a file."""
NUMBERS = np.typecodes["AllInteger"] + np.typecodes["Float"] + "?"
"""Type codes of the dtypes that are restored: whole numbers, floating-point numbers, booleans."""
DEPTH_MAX = 900
"""Most levels of nested dictionaries and lists: Python's recursion limit is 1,000."""


class _InvalidArrayError(ValueError):
    def __init__(self, finding: Finding) -> None:
        super().__init__(finding)
        self.finding = finding


class PickleStandIn:
    """The arguments and the state of a pickled object."""

    def __new__(cls, *made_with: Any) -> PickleStandIn:
        self = super().__new__(cls)
        self.__dict__["made_with"] = made_with
        return self

    def __init__(self, *made_with: Any) -> None:
        """Does nothing: a pickle may call `__new__` only, so that it does everything."""

    def __setstate__(self, state: Any) -> None:
        self.__dict__["state"] = state

    def __reduce__(self) -> tuple[Any, ...]:
        state = self.__dict__.get("state")
        return (type(self), self.__dict__["made_with"], *(() if state is None else (state,)))


def stand_in(name: str) -> tuple[type[PickleStandIn], str]:
    """A class that stands for the one with this name in a pickle, in the form that torch's
    safe_globals takes."""
    module, _, own = name.rpartition(".")
    kind = type(own, (PickleStandIn,), {"__module__": module, "__qualname__": own})
    return kind, name


def restore_numpy_arrays(tree: Any, where: str) -> Any:
    """The tree with numpy's arrays of numbers in place of their stand-ins. where: the file's name
    in errors. Raises StateError for any other array."""
    return _Reviving(where).of(tree)


class _Reviving:
    """Restores the arrays in a tree; a part that is met again is restored once."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._made: dict[int, tuple[Any, Any]] = {}

    def of(self, node: Any, depth: int = 0) -> Any:
        if depth > DEPTH_MAX:
            raise StateError(findings.NESTED_DEEPER_THAN(file=self._where, levels=DEPTH_MAX))
        if id(node) not in self._made:
            self._made[id(node)] = (node, node)  # what holds itself is met again
            self._made[id(node)] = (node, self._of(node, depth + 1))
        return self._made[id(node)][1]

    def _of(self, node: Any, depth: int) -> Any:
        if isinstance(node, dict):
            for key in node:
                node[key] = self.of(node[key], depth)
        elif isinstance(node, list):
            node[:] = [self.of(value, depth) for value in node]
        elif type(node) is tuple:
            return tuple([self.of(value, depth) for value in node])
        elif isinstance(node, PickleStandIn) and _name(type(node)) in NUMPY:
            try:
                return _dtype(node) if _name(type(node)) == "numpy.dtype" else _array(node)
            except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
                invalid = findings.INVALID_ARRAY(file=self._where, error=error)
                raise StateError(invalid) from error
        elif isinstance(node, PickleStandIn | Namespace):
            for key, value in list(vars(node).items()):
                vars(node)[key] = self.of(value, depth)
        return node


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _array(node: PickleStandIn) -> np.ndarray:
    """An array from its stand-in. numpy's `ndarray.__reduce__` gives an empty array and the state
    (1, shape, dtype, whether in Fortran order, bytes)."""
    made_of, shape, _ = node.__dict__["made_with"]
    if _name(made_of) != "numpy.ndarray" or shape != (0,):
        kind, size = f"{made_of!r:.60}", f"{shape!r:.60}"
        raise _InvalidArrayError(findings.ARRAY_MADE_OF(kind=kind, shape=size))
    _, sizes, dtype, fortran, raw = node.__dict__["state"]
    if not isinstance(raw, bytes):
        raise _InvalidArrayError(findings.ARRAY_ELEMENTS(type(raw).__name__))
    flat = np.frombuffer(raw, _dtype(dtype))
    return flat.reshape(tuple(sizes), order="F" if fortran is True else "C").copy()


def _dtype(node: Any) -> np.dtype[Any]:
    """A dtype from its stand-in. numpy's `dtype.__reduce__` gives the type code and the state
    (version, byte order, ...)."""
    if not isinstance(node, PickleStandIn) or _name(type(node)) != "numpy.dtype":
        raise _InvalidArrayError(findings.NOT_A_DTYPE(type(node).__name__))
    code, state = node.__dict__["made_with"][0], node.__dict__.get("state")
    found = np.dtype(code) if isinstance(code, str) and len(code) <= 3 else None
    if found is None or found.char not in NUMBERS:
        raise _InvalidArrayError(findings.NOT_OF_NUMBERS(f"{code!r:.60}"))
    return found.newbyteorder(">") if state is not None and state[1] == ">" else found


class _Naming(pickle._Pickler):
    """A pickler that writes a stand-in under the name of the class it stands for. This class need
    not be installed, and nothing is imported by a name from a file.

    It is derived from the pickler written in Python: the one in C looks up every class.
    """

    def save_global(self, obj: Any, name: str | None = None) -> None:
        if not (isinstance(obj, type) and issubclass(obj, PickleStandIn)):
            super().save_global(obj, name)  # type: ignore[misc]
            return
        self.write(b"c" + f"{obj.__module__}\n{obj.__qualname__}\n".encode())  # type: ignore[attr-defined]
        self.memoize(obj)  # type: ignore[attr-defined]


PICKLING: Any = SimpleNamespace(Pickler=_Naming, __name__="pickle", dumps=pickle.dumps)
"""torch.save's pickle_module for trees with stand-ins."""


def stand_ins_for(names: Sequence[str]) -> list[tuple[type[PickleStandIn], str]]:
    """Stand-ins for these names and for numpy's, in the form that torch's safe_globals takes."""
    return [stand_in(name) for name in dict.fromkeys((*names, *NUMPY))]
