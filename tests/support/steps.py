"""Steps as a trainer of plain torch makes them, for what writes and reads files."""

from __future__ import annotations

import torch

from flowcheck.config import OptimizerConfig
from flowcheck.replica.checkpoint.trainer_state import TrainerState
from flowcheck.replica.param_layout import Layout

ADAMW = OptimizerConfig(name="adamw", learning_rate=1e-2)


class Net(torch.nn.Module):
    """Mixed shapes, a bfloat16 one among them if asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(6, 5)
        self.norm = torch.nn.LayerNorm(5)
        self.outer = torch.nn.Linear(5, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.norm(torch.tanh(self.inner(x))))


def made(seed: int = 3) -> tuple[Net, torch.optim.AdamW]:
    torch.manual_seed(seed)
    net = Net()
    return net, torch.optim.AdamW(net.parameters(), lr=1e-2, foreach=False)


def trained(net: Net, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    """Takes steps `first` to `last`; each is the same for whoever takes it."""
    for step in range(first, last + 1):
        torch.manual_seed(1000 + step)
        optimizer.zero_grad()
        net(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()


def layout_of(net: torch.nn.Module) -> Layout:
    named = dict(net.named_parameters())
    return Layout.of([(tuple(p.shape), p.stride()) for p in named.values()], names=list(named))


def given_of(net: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> TrainerState:
    """What a perfect replica gives at `step`."""
    model = {name: p.detach().clone() for name, p in net.named_parameters()}
    return TrainerState(step, "d" * 32, ADAMW, model, optimizer.state_dict())
