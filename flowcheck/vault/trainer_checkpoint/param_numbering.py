"""Which number in a trainer's optimizer state belongs to which parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from flowcheck.errors import StateError
from flowcheck.findings.catalog import trainer_checkpoints as findings
from flowcheck.replica.optimizer.optimizer_builder import ParameterNumber
from flowcheck.replica.param_layout import Layout

OptimizerNumber = int | str | tuple[int, int]
"""The key of a parameter in an optimizer's state: torch's number; a name in
torch.distributed.checkpoint; (optimizer, number) with several optimizers."""


def group_numbers(optimizer: dict[str, Any]) -> list[OptimizerNumber]:
    """The keys of an optimizer's parameters, group by group. If several optimizers were joined
    (optimizer_matching.py): one optimizer after the other."""
    parts = optimizer.get("parts")
    if parts is None:
        return [number for group in optimizer["param_groups"] for number in group["params"]]
    return [(which, number) for which, part in enumerate(parts) for number in group_numbers(part)]  # type: ignore[misc]


def numbers_of_parameters(
    optimizer: dict[str, Any],
    layout: Layout,
    names: Sequence[str],
    what: str,
    order: Sequence[ParameterNumber] | None,
) -> tuple[OptimizerNumber, ...]:
    """[parameter] its key in the optimizer's state, in registration order; -1: the optimizer does
    not have the parameter.

    An optimizer numbers its parameters in the order in which it was given them, group by group.
    torch.distributed.checkpoint uses names in place of numbers. names: the trainer's parameter
    names. what: the file's name in errors. order: [parameter] the stated number, needed with
    several groups. Raises StateError if the file does not fit.
    """
    every = group_numbers(optimizer)
    own: Sequence[ParameterNumber] = range(len(layout.parameters)) if order is None else order
    if order is None and len(optimizer["param_groups"]) == 1 and len(every) > len(own):
        # It was given frozen parameters as well: it has a state of those alone that are stepped.
        with_state = [number for number in every if number in optimizer["state"]]
        every = with_state if len(with_state) == len(own) else every
    if len(every) != sum(place != -1 for place in own):
        counts = {"parameters": len(every), "own": len(layout.parameters)}
        raise StateError(findings.OTHER_PARAMETER_COUNT(file=what, **counts))
    numbers: list[OptimizerNumber]
    if every and all(isinstance(number, str) for number in every):
        by_name = {str(number).removeprefix("module."): number for number in every}
        plain = [name.removeprefix("module.") for name in names]
        lost = [n for n, at in zip(plain, own, strict=True) if at != -1 and n not in by_name]
        if lost:
            raise StateError(findings.NO_OPTIMIZER_PARAMETER(file=what, parameter=lost[0]))
        numbers = [by_name.get(name, -1) for name in plain]
    else:
        _check_groups(len(optimizer["param_groups"]), order, what)
        several = "parts" in optimizer
        if several != any(isinstance(place, tuple) for place in own):
            other = findings.ONE_OPTIMIZER_STATED if several else findings.ONE_OPTIMIZER
            raise StateError(other(what))
        numbers = [
            place if isinstance(place, tuple) else every[place] if place >= 0 else -1
            for place in own
        ]
    for number, parameter in zip(numbers, layout.parameters, strict=True):
        for name, value in optimizer["state"].get(number, {}).items():
            shape = tuple(value.shape) if isinstance(value, torch.Tensor) else ()
            if len(shape) == len(parameter.shape) and any(
                size not in (1, whole) for size, whole in zip(shape, parameter.shape, strict=True)
            ):  # Adafactor keeps rows and columns
                raise StateError(
                    findings.OTHER_ORDER(
                        file=what,
                        state=str(name),
                        number=str(number),
                        shape=shape,
                        parameter=parameter.name,
                        own_shape=parameter.shape,
                    )
                )
    return tuple(numbers)


def _check_groups(groups: int, order: Sequence[ParameterNumber] | None, what: str) -> None:
    if groups > 1 and order is None:
        raise StateError(findings.SEVERAL_GROUPS(file=what, groups=groups))
