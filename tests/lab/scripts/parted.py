"""Optimizers whose state is parted over the ranks: gradients are summed, each rank steps its part
of the parameters in float32, and all parts are gathered in the type of the model.

Arguments: the file of digests, then words: zero (as DeepSpeed's stages 1 and 2 send: gradients are
all-reduced in buffers of whole parameters, then all parameters are gathered at once) or megatron
(as Megatron-LM's distributed optimizer: buckets from the last parameter on, each reduce-scattered;
then each gathered); bfloat16 (the model's type; megatron's gradients stay float32), buckets
(several), late (megatron gathers its buckets in the next forward, the last one first), norm (a
loss and the norm of all gradients are summed, the latter in a group of its own), groups (zero has
two groups of parameters), micro (zero sums the gradients of each of two backward passes), save
(rank 0 writes a checkpoint after step 3), rings (two models are trained, by every other rank each,
as tensor-parallel ranks have parts of one).
"""

import math
import sys

import torch
import torch.distributed as dist
from account import account, noise
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

STEPS, SAVED, RATE = 6, 3, 0.01
WORDS = tuple(sys.argv[2:])
BESIDE: list[dist.ProcessGroup] = []
MESH: list[DeviceMesh] = []


def make(words: tuple[str, ...] = WORDS) -> nn.Module:
    kind = torch.bfloat16 if "bfloat16" in words else torch.float32
    model = nn.Sequential(
        nn.Linear(64, 97), nn.ReLU(), nn.Linear(97, 97), nn.ReLU(), nn.Linear(97, 97),
        nn.LayerNorm(97), nn.Linear(97, 9),
    )  # fmt: skip
    return model.to(kind)


def bfloat16() -> nn.Module:
    return make(("bfloat16",))


def groups() -> tuple[nn.Module, list[list[nn.Parameter]]]:
    model = make(())
    return model, _groups(model, ("groups",))


def _groups(model: nn.Module, words: tuple[str, ...]) -> list[list[nn.Parameter]]:
    """As an optimizer has them: biases by themselves, where there are two."""
    if "groups" not in words:
        return [list(model.parameters())]
    return [[p for p in model.parameters() if (p.dim() > 1) is many] for many in (True, False)]


def data() -> dist.ProcessGroup | None:
    """The group that data is parallel over; None: all ranks."""
    return MESH[0].get_group("dp") if MESH else None


def ranks_of() -> tuple[int, int]:
    """(this rank, how many there are) in it."""
    return dist.get_rank(data()), dist.get_world_size(data())


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


class Flat:
    """Parameters in one buffer, of which each rank keeps and steps a part in float32."""

    def __init__(self, owned: list[tuple[nn.Parameter, int]], size: int) -> None:
        """owned: (parameter, element of the buffer where it begins)."""
        rank, ranks = ranks_of()
        self.owned, self.data = owned, torch.zeros(size, dtype=owned[0][0].dtype)
        for p, at in owned:
            self.data[at : at + p.numel()] = p.detach().reshape(-1)
            p.data = self.data[at : at + p.numel()].view_as(p)
        self.own = self.data.view(ranks, -1)[rank]
        self.part = nn.Parameter(self.own.detach().clone().float())
        self.optimizer = torch.optim.AdamW([self.part], lr=RATE)

    def gradient(self, kind: torch.dtype) -> torch.Tensor:
        whole = torch.zeros(self.data.numel(), dtype=kind)
        for p, at in self.owned:
            whole[at : at + p.numel()] = p.grad.reshape(-1)
        return whole

    def step(self, gradient: torch.Tensor) -> None:
        self.part.grad = gradient.float()
        self.optimizer.step()
        self.own.copy_(self.part.detach())

    def gather(self) -> None:
        dist.all_gather_into_tensor(self.data, self.own.clone(), group=data())


def zero(model: nn.Module) -> None:
    rank, ranks = ranks_of()
    for p in model.parameters():
        dist.broadcast(p.data, group_src=0, group=data())
    flats = []
    for group in _groups(model, WORDS):
        owned, at = [], 0
        for p in group:
            owned.append((p, at))
            at += p.numel()
        flats.append(Flat(owned, _up(at, 2 * ranks)))
    limit = 12_000 if "buckets" in WORDS else 500_000_000
    for step in range(1, STEPS + 1):
        for turn in range(2 if "micro" in WORDS else 1):
            reduced(model, step, limit, turn)
        scalars(flats)
        for flat in flats:
            flat.step(flat.gradient(flat.data.dtype).view(ranks, -1)[rank])
        for flat in flats:
            flat.gather()
        told(step, model)


def reduced(model: nn.Module, step: int, limit: int, turn: int) -> None:
    """The gradients of a backward pass, summed in buffers and added to those before."""
    before = [p.grad for p in model.parameters()]
    backward(model, step, turn)
    bucket: list[nn.Parameter] = []
    for p in [*reversed(list(model.parameters())), None]:
        if bucket and (p is None or sum(q.numel() for q in bucket) + p.numel() > limit):
            summed = torch.cat([q.grad.reshape(-1) for q in bucket]) / ranks_of()[1]
            dist.all_reduce(summed, group=data())
            for q, part in zip(bucket, summed.split([q.numel() for q in bucket]), strict=True):
                q.grad = part.view_as(q)
            bucket = []
        bucket += [p] if p is not None else []
    for p, old in zip(model.parameters(), before, strict=True):
        p.grad = p.grad if not turn else p.grad + old


def megatron(model: nn.Module) -> None:
    rank, ranks = ranks_of()
    limit = 12_000 if "buckets" in WORDS else math.inf
    flats, owned, at = [], [], 0
    for p in reversed(list(model.parameters())):
        at = _up(at, 64)
        owned.append((p, at))
        at += p.numel()
        if at >= limit:
            flats.append(Flat(owned, _up(at, math.lcm(ranks, 128))))
            owned, at = [], 0
    if owned:
        flats.append(Flat(owned, _up(at, math.lcm(ranks, 128))))
    for step in range(1, STEPS + 1):
        if "late" in WORDS and step > 1:
            for flat in reversed(flats):
                flat.gather()
            told(step - 1, model)
        backward(model, step)
        parts = []
        for flat in flats:
            whole = flat.gradient(torch.float32) / ranks
            parts.append(whole.view(ranks, -1)[rank].clone())
            dist.reduce_scatter_tensor(parts[-1], whole, group=data())
        scalars(flats)
        for flat, part in zip(flats, parts, strict=True):
            flat.step(part)
        if "late" not in WORDS:
            for flat in flats:
                flat.gather()
            told(step, model)


def told(step: int, model: nn.Module) -> None:
    rank, _ = ranks_of()
    ring = MESH[0].get_local_rank("tp") if MESH else None
    account(step, model.parameters(), ring=ring, writes=not rank)
    if step == SAVED and "save" in WORDS and not rank:
        torch.save({"module": model.state_dict(), "global_steps": step}, f"{sys.argv[1]}.pt")


def backward(model: nn.Module, step: int, turn: int = 0) -> None:
    noise(step, dist.get_rank(), turn)
    if MESH:
        dist.all_reduce(torch.ones(64), group=MESH[0].get_group("tp"))
    for p in model.parameters():
        p.grad = None
    x = torch.randn(8, 64).to(next(model.parameters()).dtype)
    loss = model(x).float().square().mean()
    loss.backward()
    if "norm" in WORDS:
        dist.all_reduce(loss.detach().reshape(1), group=data())


def scalars(flats: list[Flat]) -> None:
    if "norm" in WORDS:
        squares = [flat.gradient(torch.float32).square().sum() for flat in flats]
        dist.all_reduce(torch.stack(squares).sum().reshape(1), group=BESIDE[0])


def main() -> None:
    dist.init_process_group()
    BESIDE.append(dist.new_group())
    if "rings" in WORDS:
        shape = dist.get_world_size() // 2, 2
        MESH.append(init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp")))
    torch.manual_seed(3 + (MESH[0].get_local_rank("tp") if MESH else 0))
    model = make()
    (zero if "zero" in WORDS else megatron)(model)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
