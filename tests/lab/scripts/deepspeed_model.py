"""The model of deepspeed_job.py, as a job file names it: without DeepSpeed."""

import torch
from torch import nn


def make() -> nn.Module:
    """Of odd sizes, with two parameters of one size next to each other, and one of one number."""
    return nn.Sequential(
        nn.Linear(64, 97), nn.ReLU(), nn.Linear(97, 97), nn.ReLU(), nn.Linear(97, 97),
        nn.LayerNorm(97), nn.Linear(97, 9), nn.PReLU(),
    )  # fmt: skip


def bfloat16() -> nn.Module:
    return make().bfloat16()


def float16() -> nn.Module:
    return make().half()


def groups() -> tuple[nn.Module, list[list[nn.Parameter]]]:
    model = bfloat16()
    return model, parameter_groups(model, True)


def loss(model: nn.Module, device: str = "meta") -> torch.Tensor:
    kind = next(model.parameters()).dtype
    return model(torch.randn(8, 64, device=device).to(kind)).float().square().mean()


def parameter_groups(model: nn.Module, several: bool) -> list[list[nn.Parameter]]:
    """As an optimizer has them: all, or weights, and what has one dimension."""
    if not several:
        return [list(model.parameters())]
    return [[p for p in model.parameters() if (p.dim() > 1) is many] for many in (True, False)]
