"""Optimizers that no replica can follow, or not with these settings."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

EVALUATES_AGAIN = Entry(
    "optimizer.evaluates_again",
    "evaluates the model again within a step: of those gradients the wire does not tell",
    remedy="Train with an optimizer that takes one gradient a step.",
)
SPARSE_GRADIENTS = Entry(
    "optimizer.sparse_gradients",
    "takes sparse gradients, which are not reduced as the model's parameters lie",
    remedy="Train with an optimizer of dense gradients.",
)
FUSED_MOMENTUM = Entry(
    "optimizer.fused_momentum",
    "torch's fused {optimizer} on a CPU reads the momentum of parameters of 2 bytes an element as "
    "numbers of 4, and past its end: it does not give the same bits twice, as they depend "
    "on memory that is not the optimizer's; train with foreach=True and state "
    'implementation = "foreach"',
    remedy='Train with foreach=True and state `implementation = "foreach"`.',
)
