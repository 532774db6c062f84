"""The model of the recordings beside-*: a batch norm, tied weights, and two scalars where asked."""

from __future__ import annotations

import torch


class Odd(torch.nn.Module):
    def __init__(self, scalars: bool) -> None:
        super().__init__()
        own = ((), ()) if scalars else ((5,), (3,))
        self.conv = torch.nn.Conv1d(3, 11, 3, padding=1)
        self.bn = torch.nn.BatchNorm1d(11)
        self.t = torch.nn.Parameter(torch.zeros(own[0]))
        self.enc = torch.nn.Linear(11, 19, bias=False)
        self.u = torch.nn.Parameter(torch.zeros(own[1]))
        self.mid = torch.nn.Linear(19, 19)
        self.dec = torch.nn.Linear(19, 19)
        self.dec.weight = self.mid.weight
        self.out = torch.nn.Linear(19, 5)


def with_scalars() -> Odd:
    return Odd(scalars=True)


def without() -> Odd:
    return Odd(scalars=False)
