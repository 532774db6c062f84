"""Joins several optimizers in a trainer's file into one, in the order in which the job states
them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from itertools import permutations
from typing import Any

from flowcheck.errors import StateError
from flowcheck.findings.catalog import trainer_checkpoints as findings
from flowcheck.replica.optimizer.optimizer_builder import ParameterNumber
from flowcheck.vault.trainer_checkpoint.param_numbering import OptimizerNumber, group_numbers

OPTIMIZERS_MAX = 5
"""Most optimizers whose order is searched: 5! = 120 orders. A choice that bounds time."""


class JoinedStates(MutableMapping[OptimizerNumber, Any]):
    """A view of the states of several optimizers: {(optimizer, its number of the parameter):
    state}. Writing changes the optimizers' own states."""

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


def join_optimizers(
    parts: Sequence[dict[str, Any]],
    order: Sequence[ParameterNumber] | None,
    fits: Callable[[dict[str, Any]], object],
    what: str,
) -> dict[str, Any]:
    """Joins optimizers' state_dicts into one in the job's order, as a view of the file's states.

    order: as Built.places. fits: raises StateError for a joined optimizer that does not fit the
    parameters. what: the file's name in errors. Raises StateError if the file has other optimizers
    than the job, or if several orders fit.
    """
    wanted = Counter(place[0] for place in order or () if isinstance(place, tuple))
    if not wanted:
        raise StateError(findings.SEVERAL_OPTIMIZERS(file=what, optimizers=len(parts)))
    if len(parts) != len(wanted):
        counts = {"optimizers": len(parts), "stated": len(wanted)}
        raise StateError(findings.OTHER_OPTIMIZER_COUNT(file=what, **counts))
    if len(parts) > OPTIMIZERS_MAX:
        raise StateError(
            findings.TOO_MANY_OPTIMIZERS(file=what, optimizers=len(parts), limit=OPTIMIZERS_MAX)
        )
    found: list[dict[str, Any]] = []
    unfit = findings.OPTIMIZERS_DO_NOT_FIT(what)
    for turn in permutations(parts):
        if any(len(group_numbers(part)) != wanted[which] for which, part in enumerate(turn)):
            continue
        one = {
            "state": JoinedStates(turn),
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
