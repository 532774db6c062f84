"""Several optimizers in a trainer's file as one: which of them is which of the job's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from itertools import permutations
from typing import Any

from flowcheck.errors import StateError
from flowcheck.findings.catalog import trainer_checkpoints as findings
from flowcheck.replica.optimizer.optimizer_builder import ParameterNumber
from flowcheck.vault.trainer_checkpoint.param_numbering import OptimizerNumber, listed

MOST = 5
"""Optimizers whose order is looked for: 5! = 120 orders. A choice that bounds time."""


class States(MutableMapping[OptimizerNumber, Any]):
    """The states of several by (which of them, its number), in place."""

    def __init__(self, parts: Sequence[dict[str, Any]]) -> None:
        self._parts = [part["state"] for part in parts]

    def __getitem__(self, key: OptimizerNumber) -> Any:
        which, number = _split(key)
        return self._parts[which][number]

    def __setitem__(self, key: OptimizerNumber, value: Any) -> None:
        which, number = _split(key)
        self._parts[which][number] = value

    def __delitem__(self, key: OptimizerNumber) -> None:
        which, number = _split(key)
        del self._parts[which][number]

    def __iter__(self) -> Iterator[OptimizerNumber]:
        return ((which, n) for which, part in enumerate(self._parts) for n in part)

    def __len__(self) -> int:
        return sum(map(len, self._parts))


def _split(key: OptimizerNumber) -> tuple[int, int]:
    if not isinstance(key, tuple):
        raise KeyError(key)
    return key


def joined(
    parts: Sequence[dict[str, Any]],
    order: Sequence[ParameterNumber] | None,
    fits: Callable[[dict[str, Any]], object],
    what: str,
) -> dict[str, Any]:
    """Their state_dict()s as one of all, in the job's order, whose states are those of the file.

    order: as Built.places; fits: raises StateError for one that is not of these parameters. Raises
    StateError where the file has others than the job, or several orders fit.
    """
    wanted = Counter(place[0] for place in order or () if isinstance(place, tuple))
    if not wanted:
        raise StateError(findings.SEVERAL_OPTIMIZERS(file=what, optimizers=len(parts)))
    if len(parts) != len(wanted):
        counts = {"optimizers": len(parts), "stated": len(wanted)}
        raise StateError(findings.OTHER_OPTIMIZER_COUNT(file=what, **counts))
    if len(parts) > MOST:
        raise StateError(findings.TOO_MANY_OPTIMIZERS(file=what, optimizers=len(parts), limit=MOST))
    found: list[dict[str, Any]] = []
    unfit = findings.OPTIMIZERS_DO_NOT_FIT(what)
    for turn in permutations(parts):
        if any(len(listed(part)) != wanted[which] for which, part in enumerate(turn)):
            continue
        one = {
            "state": States(turn),
            "param_groups": [group for part in turn for group in part["param_groups"]],
            "parts": turn,
        }
        try:
            fits(one)
        except StateError as error:
            unfit = findings.OPTIMIZERS_DO_NOT_FIT_AS(file=what, why=error)
            continue
        found.append(one)
    if not found:
        raise StateError(unfit)
    if len(found) > 1:
        raise StateError(findings.OPTIMIZERS_ALIKE(file=what, optimizers=len(parts)))
    return found[0]
