"""Models with parameters of one number, as CLIP's logit_scale is, among others of odd sizes.
Arguments: digests, which model, which way DistributedDataParallel goes about gradients; a hook may
be named behind it."""

import math
import sys

import torch
import torch.distributed as dist
from account import account, noise
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

STEPS = 12


def number(value: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(value))


class Temperature(nn.Module):
    """CLIP's: how far apart pairs are."""

    def __init__(self) -> None:
        super().__init__()
        self.logit_scale = number(math.log(1 / 0.07))


class Pairs(nn.Module):
    """Two towers; the temperature stands between them."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Sequential(nn.Embedding(97, 31), nn.LayerNorm(31), nn.Linear(31, 19))
        self.temperature = Temperature()
        self.pictures = nn.Sequential(nn.Linear(53, 47), nn.GELU(), nn.Linear(47, 19, bias=False))

    def forward(self, x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        one = functional.normalize(self.words(words), dim=-1)
        two = functional.normalize(self.pictures(x), dim=-1)
        logits = self.temperature.logit_scale.exp() * one @ two.T
        return functional.cross_entropy(logits, torch.arange(len(x)))


class Block(nn.Module):
    """A residual layer with a scale of its own before and behind what it adds."""

    def __init__(self, wide: int, inner: int) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(wide), nn.Linear(wide, inner)
        self.inside = nn.ParameterDict({"scale": number(1.0), "shift": number(0.0)})
        self.down = nn.Linear(inner, wide, bias=False)
        self.behind = nn.ParameterDict({"scale": number(0.1)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own = torch.tanh(self.up(self.norm(x)) * self.inside["scale"] + self.inside["shift"])
        return x + self.behind["scale"] * self.down(own)


class Deep(nn.Module):
    """A scalar first, three in each layer, and the last parameters of all; one number that has a
    dimension, and a matrix of one column."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = number(2.0)
        self.first = nn.Linear(1, 29)
        self.blocks = nn.Sequential(Block(29, 41), nn.PReLU(), Block(29, 23))
        self.head = nn.Linear(29, 7)
        self.last = nn.ParameterDict({"scale": number(0.5), "shift": number(0.25)})

    def forward(self, x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        x = self.head(self.blocks(self.first(self.gain * x[:, :1])))
        return functional.cross_entropy(x * self.last["scale"] + self.last["shift"], words % 7)


def make(model: str) -> nn.Module:
    torch.manual_seed(3)
    return Pairs() if model == "pairs" else Deep()


def train(model: str, way: str, hook: str = "") -> None:
    dist.init_process_group()
    options = {"static": {"static_graph": True}, "unused": {"find_unused_parameters": True}}
    made = make(model)
    cap = 0.01 if way != "whole" else 25
    wrapped = DistributedDataParallel(made, bucket_cap_mb=cap, **options.get(way, {}))
    if hook:
        compress = getattr(default_hooks, f"{hook}_compress_hook")
        wrapped.register_comm_hook(None, lambda group, bucket: compress(group, bucket))  # noqa: PLW0108
    optimizer = torch.optim.AdamW(made.parameters(), lr=0.003)
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        noise(step, dist.get_rank())
        wrapped(torch.randn(8, 53), torch.randint(97, (8,))).backward()
        optimizer.step()
        account(step, made.parameters(), optimizer)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    train(*(word for word in sys.argv[2:] if "=" not in word))
