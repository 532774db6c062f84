"""A model of mixed shapes with frozen parameters, a tied weight, and buffers, for files' tests; its
factory as a job file names it: "tests/support/frozen.py:make"."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

MASK = 7


class Net(nn.Module):
    """The first layer and one in the middle are frozen, embedding and head are one weight."""

    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(23, 12)
        self.first = nn.Linear(12, 9).requires_grad_(False)
        self.norm = nn.BatchNorm1d(9)
        self.scale = nn.Parameter(torch.randn(()))
        self.middle = nn.Linear(9, 5).requires_grad_(False)
        self.bias = nn.Parameter(torch.randn(1, 5))
        self.last = nn.Linear(5, 12)
        self.head = nn.Linear(12, 23, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.rand(MASK) > 0.5)
        self.register_buffer("hidden", torch.rand(3), persistent=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.norm(self.first(self.embedding(words))) * self.scale)
        return self.head(torch.tanh(self.last(self.middle(x) + self.bias)))


def make(seed: int = 3) -> Net:
    torch.manual_seed(seed)
    return Net()


def optimizer_of(net: nn.Module, *, over_all: bool) -> torch.optim.Optimizer:
    """As scripts make it: over all parameters, or those that are trained."""
    chosen = [p for p in net.parameters() if over_all or p.requires_grad]
    return torch.optim.AdamW(chosen, lr=1e-2, foreach=False)


def step(net: Net, optimizer: torch.optim.Optimizer, number: int) -> bytes:
    """One step of the trainer's; the gradients as they are reduced, in registration order."""
    torch.manual_seed(number)
    optimizer.zero_grad()
    net(torch.randint(23, (16,))).square().mean().backward()
    reduced = b"".join(raw(p.grad) for p in net.parameters() if p.grad is not None)
    optimizer.step()
    return reduced


def raw(tensor: torch.Tensor) -> bytes:
    """In index order, as DDP's start-up broadcast has it."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def sent(net: nn.Module) -> tuple[np.ndarray, np.ndarray]:
    """(trained parameters, frozen ones and buffers behind them) as they are broadcast."""
    trained = b"".join(raw(p) for p in net.parameters() if p.requires_grad)
    others = [raw(p) for p in net.parameters() if not p.requires_grad]
    others += [raw(b) for b in net.buffers()]
    return np.frombuffer(trained, np.uint8), np.frombuffer(b"".join(others), np.uint8)
