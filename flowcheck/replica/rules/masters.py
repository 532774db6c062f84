"""Copies of the parameters in a wider type, which the optimizer steps in their place."""

from __future__ import annotations

from flowcheck.config import OptimizerConfig
from flowcheck.replica.layout import Layout


def stepped_layout(config: OptimizerConfig, layout: Layout) -> Layout:
    """Of what the optimizer steps: the layout itself, or its parameters in the masters' type."""
    if config.master_dtype is None or {layout.dtype} == {config.master_dtype}:
        return layout
    return layout.relaid(config.master_dtype)
