"""Parameters of several dtypes: float32 and those named ("float64", "float16,bfloat16"), or these
alone ("float16,bfloat16,alone"); behind them "unused", "static", "fp16", "bf16": DDP's options."""

import sys

import torch
import torch.distributed as dist
from account import account, noise
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel


class Mixed(nn.Module):
    def __init__(self, kinds: list[torch.dtype]) -> None:
        super().__init__()
        sizes = [30, 50, 41, 31][: len(kinds)]
        self.layers = nn.ModuleList(
            nn.Linear(a, b).to(kind)
            for a, b, kind in zip(sizes[:-1], sizes[1:], kinds[:-1], strict=True)
        )
        self.branch = nn.Linear(sizes[-1], sizes[-1]).to(kinds[-2])
        self.last = nn.Linear(sizes[-1], 21).to(kinds[-1])

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x.to(layer.weight.dtype)))
        x = x + self.branch(x) if both else x
        return self.last(x.to(self.last.weight.dtype))


def make(others: str) -> nn.Module:
    named = others.split(",")
    kinds = [getattr(torch, name) for name in named if name != "alone"]
    return Mixed(kinds if "alone" in named else [torch.float32, *kinds])


def train(others: str, *ways: str) -> None:
    dist.init_process_group()
    torch.manual_seed(3)
    model = make(others)
    caps = {"bucket_cap_mb": 0.004} if ways else {}
    options = {"find_unused_parameters": "unused" in ways, "static_graph": "static" in ways}
    wrapped = DistributedDataParallel(model, **caps, **options)
    hooks = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
    for way in hooks.keys() & ways:
        # torch refuses its bf16 hook, by its own name, where there is no NCCL.
        wrapped.register_comm_hook(None, lambda group, bucket, own=hooks[way]: own(group, bucket))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(1, 7):
        noise(step, dist.get_rank())
        optimizer.zero_grad()
        both = "unused" not in ways or step in (1, 2, 5)
        wrapped(torch.randn(8, 30), both).square().mean().backward()
        optimizer.step()
        account(step, model.parameters(), optimizer)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    train(*(word for word in sys.argv[2:] if "=" not in word))
