"""The form of a row: everything the package knows of one class of torch.optim.

Whatever a row does not say is as for a class that nobody has read: nothing is taken for granted,
and torch itself applies the steps. No torch here, nor numpy: reading a job file needs neither.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from flowcheck.findings.finding import Finding


class OptimizerSettings(Protocol):
    """What a row looks at of [optimizer]; None is as torch has it by default."""

    @property
    def kernels(self) -> str:
        """Which of torch's arithmetics the trainer runs: loop, foreach or fused."""

    @property
    def momentum(self) -> float | None: ...
    @property
    def dampening(self) -> float | None: ...
    @property
    def nesterov(self) -> bool | None: ...
    @property
    def weight_decay(self) -> float | None: ...
    @property
    def amsgrad(self) -> bool | None: ...
    @property
    def maximize(self) -> bool | None: ...
    @property
    def arguments(self) -> Mapping[str, Any]:
        """Of torch's class, what has no key of its own."""

    @property
    def groups(self) -> Sequence[object]:
        """Parameter groups with settings of their own."""


class StatePresence(StrEnum):
    """What in a replica's file tells which parameters the optimizer keeps a state of.

    It decides which sections that file has: a row's is never changed once replicas were made by it.
    """

    COUNTED = "counted"
    """The class counts the steps of each parameter: one has a state if its counter is above 0."""
    FROM_FIRST_STEP = "from first step"
    """Every parameter, from the first step on; where steps may leave parameters out: RECORDED."""
    RECORDED = "recorded"
    """The section `stepped` says it of each parameter."""


class CKernel(StrEnum):
    """A rule of the C kernel's (c_kernel_rules.py)."""

    SGD = "sgd"
    ADAM = "adam"


WrongSetting = tuple[str, object, Finding]
"""Key, its value, what would be right."""


def nothing_wrong(settings: OptimizerSettings) -> WrongSetting | None:
    """Torch is asked."""
    return None


def reproducible(settings: OptimizerSettings, element_sizes: Collection[int]) -> Finding | None:
    """The same bits each time."""
    return None


def zeros_unknown(settings: OptimizerSettings) -> tuple[str, ...] | None:
    """Nobody has looked."""
    return None


def keeps_state(group: Mapping[str, Any]) -> bool:
    """No group is known to do without a state."""
    return False


def may_write(settings: OptimizerSettings) -> bool:
    """Nobody has looked."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerRule:
    """One row. Its defaults are the row of a class that is not listed."""

    name: str
    """As a job file states it: the class's in lower case."""
    torch_class: str = ""
    """Of torch.optim."""
    computes_steps: bool = True
    """False: parameters are followed as they are sent."""
    refused: Finding | None = None
    """Why no replica can follow it; None: it can be followed."""

    keys: tuple[str, ...] | None = None
    """Which of the keys of [optimizer] that not every class has this one takes; None: torch is
    asked, which takes seconds to load."""
    wrong_setting: Callable[[OptimizerSettings], WrongSetting | None] = nothing_wrong
    """What torch would refuse, beyond keys and ranges."""
    unreproducible: Callable[[OptimizerSettings, Collection[int]], Finding | None] = reproducible
    """Why its steps of parameters with elements of these sizes (bytes) differ from run to run."""

    state_presence: StatePresence = StatePresence.RECORDED
    """Where nothing skips a step."""
    made_as_zeros: bool = False
    """Before a parameter's first step torch makes its states, and all of them are zeros: they are
    given to torch in the replica's memory instead of being made anew and copied."""
    zeros_before_first_step: Callable[[OptimizerSettings], tuple[str, ...] | None] = zeros_unknown
    """States (torch's names) that, given as zeros, lead to the same first step as none; (): it
    keeps no state; None: no zeros do."""
    stateless_group: Callable[[Mapping[str, Any]], bool] = keeps_state
    """Whether a group of a trainer's file (its param_groups) is of this class and without a
    state after any step."""

    per_element: bool = False
    """Each element is stepped by itself, so that bits do not depend on the number of torch's
    threads, where elements have 4 bytes or more."""
    square_roots: bool = True
    """It takes square roots, which torch rounds as the CPU's maker has it."""
    writes_gradient: Callable[[OptimizerSettings], bool] = may_write
    """Whether its step changes the gradient it was given; asked where neither groups nor other
    arguments than `known_arguments` are stated."""
    known_arguments: frozenset[str] = frozenset()
    """Arguments of the class, without a key of their own in [optimizer], under which
    `writes_gradient` is right."""

    c_kernel: CKernel | None = None
    """How C applies its steps in one pass; None: torch applies them."""

    @property
    def known_without_torch(self) -> bool:
        """Settings are checked by this row alone."""
        return self.keys is not None or not self.computes_steps

    def may_write_gradient(self, settings: OptimizerSettings) -> bool:
        """Whether its step may change the gradient it was given, so that it needs a copy."""
        unknown = settings.arguments.keys() - self.known_arguments
        return bool(settings.groups) or bool(unknown) or self.writes_gradient(settings)
