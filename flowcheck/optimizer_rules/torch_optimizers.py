"""The table of optimizers: a row for every known class of torch.optim, and the lookup.

Rows follow torch's source (torch/optim/*.py, the file of the class);
tests/unit/rules/test_optimizer_rows.py compares them with torch itself. To add an optimizer, write
a row here and one in the README.md of this folder.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from flowcheck.findings.catalog.refused_optimizers import (
    EVALUATES_AGAIN,
    FUSED_MOMENTUM,
    NESTEROV_NEEDS_MOMENTUM,
    SPARSE_GRADIENTS,
)
from flowcheck.findings.finding import Finding
from flowcheck.optimizer_rules.optimizer_rule import (
    CKernel,
    OptimizerRule,
    OptimizerSettings,
    StatePresence,
    WrongSetting,
)


def _sgd_wrong_setting(settings: OptimizerSettings) -> WrongSetting | None:
    if settings.nesterov and (not settings.momentum or settings.dampening):
        return "nesterov", True, NESTEROV_NEEDS_MOMENTUM()
    return None


def _sgd_unreproducible(
    settings: OptimizerSettings, element_sizes: Collection[int]
) -> Finding | None:
    """Refuses fused SGD with momentum on two-byte numbers: aten/src/ATen/native/cpu/
    FusedSGDKernel.cpp of torch 2.13 loads vectors of float32 from their momentum buffer, so that it
    reads two numbers as one, and reads past the buffer's end."""
    wrong = 2 in element_sizes and settings.kernels == "fused" and settings.momentum
    return FUSED_MOMENTUM(optimizer="SGD") if wrong else None


def _sgd_zeros(settings: OptimizerSettings) -> tuple[str, ...] | None:
    """Without dampening the first momentum equals the gradient, as it does from zeros."""
    if not settings.momentum:
        return ()
    return None if settings.dampening else ("momentum_buffer",)


def _sgd_stateless(group: Mapping[str, Any]) -> bool:
    """Recognises groups of SGD by a key of torch.optim.SGD.__init__."""
    return "dampening" in group and not group.get("momentum")


def _sgd_writes_gradient(settings: OptimizerSettings) -> bool:
    """foreach adds Nesterov's momentum to the gradients in place (torch/optim/sgd.py,
    _multi_tensor_sgd), unless weight decay or maximize made copies of them."""
    adds = settings.kernels == "foreach" and bool(settings.nesterov)
    return adds and not settings.weight_decay and not settings.maximize


def _adam_zeros(settings: OptimizerSettings) -> tuple[str, ...]:
    """The states that torch/optim/adam.py, _init_group, creates as zeros."""
    return ("step", "exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) * bool(settings.amsgrad)))


def _reads_gradient(settings: OptimizerSettings) -> bool:
    """The class does not change gradients in any of its implementations."""
    return False


def _adam(name: str, torch_class: str) -> OptimizerRule:
    """The row of Adam or AdamW. Both have the same rule; their groups say how weight decay is
    applied."""
    return OptimizerRule(
        name=name,
        torch_class=torch_class,
        keys=("betas", "eps", "amsgrad"),
        state_presence=StatePresence.COUNTED,
        made_as_zeros=True,
        zeros_before_first_step=_adam_zeros,
        per_element=True,
        writes_gradient=_reads_gradient,
        c_kernel=CKernel.ADAM,
    )


RULES = (
    OptimizerRule(
        name="sgd",
        torch_class="SGD",
        keys=("momentum", "dampening", "nesterov"),
        wrong_setting=_sgd_wrong_setting,
        unreproducible=_sgd_unreproducible,
        state_presence=StatePresence.FROM_FIRST_STEP,
        zeros_before_first_step=_sgd_zeros,
        stateless_group=_sgd_stateless,
        per_element=True,
        square_roots=False,
        writes_gradient=_sgd_writes_gradient,
        c_kernel=CKernel.SGD,
    ),
    _adam("adam", "Adam"),
    _adam("adamw", "AdamW"),
    OptimizerRule(
        name="adagrad",
        torch_class="Adagrad",
        keys=("eps",),
        per_element=True,
        writes_gradient=_reads_gradient,
        known_arguments=frozenset(("lr_decay", "initial_accumulator_value")),
    ),
    OptimizerRule(name="adadelta", torch_class="Adadelta", per_element=True),
    OptimizerRule(name="adamax", torch_class="Adamax", per_element=True),
    OptimizerRule(name="nadam", torch_class="NAdam", per_element=True),
    OptimizerRule(name="radam", torch_class="RAdam", per_element=True),
    OptimizerRule(name="rmsprop", torch_class="RMSprop", per_element=True),
    OptimizerRule(
        name="adafactor",
        torch_class="Adafactor",
        writes_gradient=_reads_gradient,
        known_arguments=frozenset(("beta2_decay", "d")),
    ),
    OptimizerRule(name="asgd", torch_class="ASGD", square_roots=False),
    OptimizerRule(name="rprop", torch_class="Rprop", square_roots=False),
    OptimizerRule(
        name="lbfgs",
        torch_class="LBFGS",
        refused=EVALUATES_AGAIN(),
    ),
    OptimizerRule(
        name="sparseadam",
        torch_class="SparseAdam",
        refused=SPARSE_GRADIENTS(),
    ),
)
UNLISTED = OptimizerRule(name="")
"""The row for every other class, and for optimizers that a factory makes."""
NO_OPTIMIZER = OptimizerRule(name="none", computes_steps=False)
"""The row for jobs that send parameters, so that FlowCheck computes no steps."""
KEYS = frozenset(key for rule in RULES for key in rule.keys or ())
"""Keys of [optimizer] that some classes take and others do not."""
PLAN_DEFAULT = "adamw"
"""Optimizer of a plan that states none: most large models are trained with it."""
REPLAY_DEFAULT = "sgd"
"""Optimizer of a replay that states none: it needs no setting but a learning rate."""

_BY_NAME = {rule.name: rule for rule in (*RULES, NO_OPTIMIZER)}


def followed_names() -> tuple[str, ...]:
    """Names of the classes that have a row and are followed, for messages; the installed torch may
    have more."""
    return tuple(sorted(rule.name for rule in RULES if rule.refused is None))


def rule_named(name: str) -> OptimizerRule:
    """The row of an optimizer; UNLISTED if it has none. name: its name in a job file, in lower
    case."""
    return _BY_NAME.get(name, UNLISTED)


def keeps_no_state(group: Mapping[str, Any]) -> bool:
    """Whether a group in a trainer's file belongs to a class that has no state with these
    settings."""
    return any(rule.stateless_group(group) for rule in RULES)
