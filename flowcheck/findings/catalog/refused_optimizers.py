"""Optimizers that no replica can follow, or not with these settings."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

EVALUATES_AGAIN = Entry(
    "optimizer.evaluates_again",
    "cannot be followed: it evaluates the model again within a step, and those gradients are not "
    "sent",
    remedy="Train with an optimizer that takes one gradient a step.",
)
SPARSE_GRADIENTS = Entry(
    "optimizer.sparse_gradients",
    "cannot be followed: it takes sparse gradients, which are not reduced in the layout of the "
    "model's parameters",
    remedy="Train with an optimizer of dense gradients.",
)
NESTEROV_NEEDS_MOMENTUM = Entry(
    "optimizer.nesterov_needs_momentum", "needs a momentum above 0 and no dampening"
)
FUSED_MOMENTUM = Entry(
    "optimizer.fused_momentum",
    "torch's fused {optimizer} on a CPU reads the momentum of 2-byte parameters as 4-byte numbers, "
    "past the end of its buffer: its steps depend on foreign memory and differ from run to run; "
    'train with foreach=True and state implementation = "foreach"',
    remedy='Train with `foreach=True` and state `implementation = "foreach"`.',
)
