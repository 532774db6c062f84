"""The model of tests/lab/scripts/own_loop.py."""

from torch import nn


def make() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(12, 20), nn.LayerNorm(20), nn.GELU()),
        *(nn.Linear(20, 15), nn.ReLU(), nn.Linear(15, 7)),
    )
