"""Training as Megatron-LM's plain wrapper does it: weights in bfloat16 that nobody broadcasts, as
all ranks have one seed; gradients in float32 in one buffer from the last parameter to the first,
scaled before they are summed, cut into buckets between parameters; float32 masters are stepped.

Argument: the account's name; .masters behind it names a file with the masters' sha256 at the end.
"""

import hashlib
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from account import account, noise
from torch import nn

SEED, BUCKET_ELEMENTS = 5, 400


def make() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(12, 20), nn.LayerNorm(20), nn.GELU()),
        *(nn.Linear(20, 15), nn.ReLU(), nn.Linear(15, 7)),
    ).bfloat16()


def summed(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    """Their means over the ranks, in the same order."""
    found: list[torch.Tensor] = []
    bucket: list[torch.Tensor] = []
    for gradient in gradients:
        bucket.append(gradient)
        if sum(g.numel() for g in bucket) >= BUCKET_ELEMENTS or gradient is gradients[-1]:
            buffer = torch.cat([g.reshape(-1) for g in bucket]) / dist.get_world_size()
            dist.all_reduce(buffer)
            parts = buffer.split([g.numel() for g in bucket])
            found += [part.view_as(g) for g, part in zip(bucket, parts, strict=True)]
            bucket = []
    return found


class Told:
    """The masters' optimizer as `account` reads it, by the model's parameters."""

    def __init__(self, optimizer: torch.optim.Optimizer, of: dict) -> None:
        self.state = {of[p]: kept for p, kept in optimizer.state.items()}


def main() -> None:
    dist.init_process_group()
    torch.manual_seed(SEED)
    model = make()
    own = list(model.parameters())
    masters = [nn.Parameter(p.detach().float()) for p in own]
    optimizer = torch.optim.SGD(masters, lr=0.05, momentum=0.9)
    for step in range(1, 5):
        sums = [torch.zeros(p.shape) for p in own]
        for turn in range(2):  # gradients add up in float32
            noise(step, turn, dist.get_rank())
            output = model(torch.randn(8, 12).bfloat16()).float()
            nn.functional.cross_entropy(output, torch.randint(7, (8,))).backward()
            for total, parameter in zip(sums, own, strict=True):
                total.add_(parameter.grad)
                parameter.grad = None
        for master, gradient in zip(masters, summed(sums[::-1])[::-1], strict=True):
            master.grad = gradient
        optimizer.step()
        with torch.no_grad():
            for parameter, master in zip(own, masters, strict=True):
                parameter.copy_(master)
        account(step, own, Told(optimizer, dict(zip(masters, own, strict=True))))
    whole = b"".join(master.detach().numpy().tobytes() for master in masters)
    if not dist.get_rank():
        Path(f"{sys.argv[1]}.masters").write_text(hashlib.sha256(whole).hexdigest() + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
