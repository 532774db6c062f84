"""A model whose first layer and one in the middle are frozen, with a tied head, BatchNorm if named,
and an optimizer over all parameters. Arguments: digests, a folder for a file of every step, the
first step, the last one; then a file to go on from, or "-"; then "norm"."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from account import account, noise
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.first = nn.Linear(16, 24).requires_grad_(False)
        self.embedding = nn.Embedding(40, 24)
        self.norm = nn.BatchNorm1d(24) if norm else nn.LayerNorm(24)
        self.widen = nn.Linear(24, 60)
        self.middle = nn.Linear(60, 60).requires_grad_(False)
        self.scale = nn.Parameter(torch.randn(()))
        self.narrow = nn.Linear(60, 24)
        self.head = nn.Linear(24, 40, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.rand(24) > 0.5)

    def forward(self, x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(x) + self.embedding(words)) * self.mask
        return self.head(self.narrow(torch.tanh(self.middle(self.widen(x)) * self.scale)))


def make(norm: bool = False) -> nn.Module:
    return Net(norm)


def train(out: str, first: str, last: str, kept: str = "-", norm: str = "") -> None:
    dist.init_process_group()
    torch.manual_seed(3)
    model = make(norm == "norm")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    if kept != "-":
        tree = torch.load(kept, weights_only=True)
        model.load_state_dict(tree["model"], strict=True)
        optimizer.load_state_dict(tree["optimizer"])
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.01)
    for step in range(int(first), int(last) + 1):
        optimizer.zero_grad()
        noise(step, dist.get_rank())
        wrapped(torch.randn(8, 16), torch.randint(40, (8,))).square().mean().backward()
        optimizer.step()
        account(step, model.parameters(), optimizer)
        if not dist.get_rank():
            tree = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            path = Path(out) / f"step-{step}.pt"
            torch.save(tree, path.with_suffix(".tmp"))
            path.with_suffix(".tmp").rename(path)
    with torch.no_grad():  # a validation behind the last step
        wrapped.eval()(torch.randn(8, 16), torch.randint(40, (8,)))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    train(*(word for word in sys.argv[2:] if "=" not in word))
