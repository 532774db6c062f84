"""The form of a row: everything FlowCheck knows about one class of torch.optim.

The default of each field is right for an unknown class: it assumes nothing, and torch itself
computes the steps. This module imports neither torch nor numpy, since reading a job file needs
neither.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from flowcheck.findings.finding import Finding


class OptimizerSettings(Protocol):
    """The settings of [optimizer] that a row reads. None means torch's default."""

    @property
    def kernels(self) -> str:
        """The implementation that the trainer runs: loop, foreach or fused."""

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
        """Arguments of torch's class for which [optimizer] has no key."""

    @property
    def groups(self) -> Sequence[object]:
        """Parameter groups with settings of their own."""


class StatePresence(StrEnum):
    """How a replica's state file shows which parameters have an optimizer state.

    This decides which sections the file has, so the value of a row must never change once replicas
    were created with it.
    """

    COUNTED = "counted"
    """The class counts the steps of each parameter. A parameter has a state if its counter is above
    0."""
    FROM_FIRST_STEP = "from first step"
    """Every parameter has a state from the first step on. If steps may leave out parameters,
    RECORDED applies instead."""
    RECORDED = "recorded"
    """The section `stepped` records it for each parameter."""


class CKernel(StrEnum):
    """The kernels in C (c_kernel_rules.py)."""

    SGD = "sgd"
    ADAM = "adam"


WrongSetting = tuple[str, object, Finding]
"""(key, its value, what would be right)."""


def nothing_wrong(settings: OptimizerSettings) -> WrongSetting | None:
    """Default of `wrong_setting`: the row knows no wrong settings."""
    return None


def reproducible(settings: OptimizerSettings, element_sizes: Collection[int]) -> Finding | None:
    """Default of `unreproducible`: steps give the same bits each time."""
    return None


def zeros_unknown(settings: OptimizerSettings) -> tuple[str, ...] | None:
    """Default of `zeros_before_first_step`: it is unknown whether zeros equal no state."""
    return None


def keeps_state(group: Mapping[str, Any]) -> bool:
    """Default of `stateless_group`: no group is known to have no state."""
    return False


def may_write(settings: OptimizerSettings) -> bool:
    """Default of `writes_gradient`: the step may change the gradient."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerRule:
    """A row of the table. The defaults are for a class that is not listed."""

    name: str
    """Name in a job file: the name of torch's class in lower case."""
    torch_class: str = ""
    """Name of the class in torch.optim."""
    computes_steps: bool = True
    """False: FlowCheck takes the parameters from the packets and computes no steps."""
    refused: Finding | None = None
    """Why no replica can follow the optimizer; None: a replica can follow it."""

    keys: tuple[str, ...] | None = None
    """The optional keys of [optimizer] that the class takes. None: unknown, so that torch is asked,
    which takes seconds to load."""
    wrong_setting: Callable[[OptimizerSettings], WrongSetting | None] = nothing_wrong
    """Finds settings that torch would refuse, beyond keys and ranges."""
    unreproducible: Callable[[OptimizerSettings, Collection[int]], Finding | None] = reproducible
    """Why steps of parameters with elements of these sizes (bytes) differ from run to run."""

    state_presence: StatePresence = StatePresence.RECORDED
    """Applies where nothing skips a step."""
    made_as_zeros: bool = False
    """True: torch creates a parameter's states before its first step, all as zeros. FlowCheck then
    gives torch the states in the replica's memory, which saves a copy."""
    zeros_before_first_step: Callable[[OptimizerSettings], tuple[str, ...] | None] = zeros_unknown
    """The states (torch's names) that lead to the same first step as zeros as without a state. ():
    the optimizer has no state. None: zeros lead to another step, or it is unknown."""
    stateless_group: Callable[[Mapping[str, Any]], bool] = keeps_state
    """Whether a group in a trainer's file (param_groups) is of this class and has no state after
    any step."""

    per_element: bool = False
    """True: each element is stepped by itself. Its bits then do not depend on the number of torch's
    threads, if elements have 4 bytes or more."""
    square_roots: bool = True
    """True: the step takes square roots, whose rounding in torch depends on the CPU's maker."""
    writes_gradient: Callable[[OptimizerSettings], bool] = may_write
    """Whether the step changes the gradient that it is given. Only valid without groups, and
    without arguments other than `known_arguments`."""
    known_arguments: frozenset[str] = frozenset()
    """Arguments without a key in [optimizer] with which `writes_gradient` is valid."""

    c_kernel: CKernel | None = None
    """The C kernel that computes the steps in one pass; None: torch computes them."""

    @property
    def known_without_torch(self) -> bool:
        """Whether settings can be checked by this row, without torch."""
        return self.keys is not None or not self.computes_steps

    def may_write_gradient(self, settings: OptimizerSettings) -> bool:
        """Whether the step may change the gradient that it is given, so that a copy is needed."""
        unknown = settings.arguments.keys() - self.known_arguments
        return bool(settings.groups) or bool(unknown) or self.writes_gradient(settings)
