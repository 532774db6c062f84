"""Trains small jobs with NCCL on one GPU and keeps what NCCL sent, with the truth beside it.

Every rank is a process of its own on the same GPU; NCCL_HOSTID makes each a host of its own, so
that NCCL talks over the network plugin (`recorder.c`). For each job two files: what a mirror of
rank 0's port could see (NAME.wire.xz), and the trainer's digests of gradients, weights, optimizer
state after every step with the collectives as NCCL's log names them (NAME.json).

    python train.py LIBRECORDER OUT [JOB ...]
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import fixture
import torch
import torch.distributed as dist
from jobs import JOBS, Job
from torch import nn

FIRST_PORT = int(os.environ.get("FIRST_PORT", "29500"))
LIMIT_S = int(os.environ.get("JOB_LIMIT_S", "60"))
NCCL = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,TUNING,ENV,NET,COLL",
}


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """sha256 of their bytes, one after the other."""
    seen = hashlib.sha256()
    for tensor in tensors:
        seen.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return seen.hexdigest()


def local(tensors: Iterable[Any]) -> list[torch.Tensor]:
    """This rank's part of each."""
    return [t.to_local() if hasattr(t, "to_local") else t for t in tensors]


def wrapped(model: nn.Module, job: Job) -> nn.Module:
    if job.kind in ("ddp", "zero"):
        wide = nn.parallel.DistributedDataParallel(model, device_ids=[0], **job.ddp)
        if job.hook:
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

            wide.register_comm_hook(None, default_hooks.bf16_compress_hook)
        return wide
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    ranks = dist.get_world_size()
    hybrid = job.kind == "hsdp"
    shape = (2, ranks // 2) if hybrid else (ranks,)
    names = ("replicate", "shard") if hybrid else ("shard",)
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=names)
    for layer in model.middle:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def optimizer_of(parameters: list[nn.Parameter], job: Job) -> torch.optim.Optimizer:
    if job.kind == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, lr=1e-2)
    return job.optimizer(parameters)


class Neighbours:
    """What ranks pass one another beside gradients."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank = job, rank
        self.second = dist.new_group() if job.second_group else None
        pairs = ((0, 1), (2, 3)) if job.stages else ()
        self.pairs = [dist.new_group(list(pair)) for pair in pairs]

    def activations(self, x: torch.Tensor) -> None:
        if not self.pairs:
            return
        pair = self.pairs[self.rank // 2]
        if self.rank % 2 == 0:
            dist.send(x, self.rank + 1, group=pair)
        else:
            dist.recv(torch.empty_like(x), self.rank - 1, group=pair)

    def numbers(self, step: int) -> None:
        if self.job.metric and step % 2 == 0:
            dist.all_reduce(torch.tensor([float(step), 2.0], device="cuda"))
        if self.second is not None:
            dist.all_reduce(torch.full((3,), float(self.rank), device="cuda"), group=self.second)


def backward(wide: nn.Module, job: Job, data: torch.Generator, others: Neighbours) -> None:
    """All backward passes of a step; gradients are reduced in the last."""
    for part in range(job.accumulate):
        x = torch.randn(9, 13, generator=data).to("cuda", job.dtype)
        others.activations(x)
        waits = part < job.accumulate - 1
        with wide.no_sync() if waits else nullcontext():  # type: ignore[operator]
            (wide(x).float().square().mean() / job.accumulate).backward()


def step_of(
    job: Job, parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """Clips and applies a step: its digests."""
    gradients = local(p.grad for p in parameters)
    own: dict[str, Any] = {"gradient": digest(gradients)}
    if job.clip:
        norm: Any = nn.utils.clip_grad_norm_(parameters, job.clip)
        own["norm"] = float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
        own["clipped"] = digest(gradients)
    optimizer.step()
    own["parameters"] = digest(local(parameters))
    if job.kind != "zero":
        states = [optimizer.state[p] for p in parameters]
        for key, value in states[0].items():
            if key != "step" and torch.is_tensor(value):
                own[key] = digest(local(state[key] for state in states))
    return own


def train(job: Job, rank: int, folder: Path) -> None:
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    torch.manual_seed(7 if job.kind in ("fsdp2", "hsdp") else 7 + rank)
    model = job.model().to("cuda", job.dtype)
    wide = wrapped(model, job)
    parameters = list(model.parameters())
    optimizer = optimizer_of(parameters, job)
    others = Neighbours(job, rank)
    truth: dict[str, Any] = {
        "torch": torch.__version__,
        "nccl": list(torch.cuda.nccl.version()),
        "env": {key: str(value) for key, value in job.env.items()},
        "optimizer": repr(optimizer),
        "clip": job.clip,
        "names": [name for name, _ in model.named_parameters()],
        "shapes": [list(p.shape) for p in parameters],
        "buffers": [[n, list(b.shape), str(b.dtype)] for n, b in model.named_buffers()],
        "initial": digest(local(parameters)),
        "steps": [],
    }
    data = torch.Generator().manual_seed(100 + rank)
    for step in range(1, job.steps + 1):
        optimizer.zero_grad()
        backward(wide, job, data, others)
        truth["steps"].append(step_of(job, parameters, optimizer))
        others.numbers(step)
    torch.cuda.synchronize()
    (folder / f"truth{rank}.json").write_text(json.dumps(truth))
    dist.barrier()
    dist.destroy_process_group()


def child(name: str, rank: int, library: str, folder: Path, port: int) -> None:
    """One rank; never returns."""
    job = JOBS[name]
    own = {
        "RANK": rank,
        "WORLD_SIZE": job.ranks,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "NCCL_HOSTID": f"host{rank}",
        "NCCL_NET_PLUGIN": library,
        "NCCL_DEBUG_FILE": folder / f"nccl{rank}.log",
        "FLOWCHECK_RECORD": folder / f"record{rank}",
    }
    os.environ.update({key: str(value) for key, value in {**NCCL, **own, **job.env}.items()})
    signal.alarm(LIMIT_S)
    log = os.open(folder / f"out{rank}.log", os.O_CREAT | os.O_WRONLY, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = 0
    try:
        train(job, rank, folder)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(name: str, library: str, out: Path, port: int) -> bool:
    """Trains a job and packs it; False: a rank failed."""
    ranks, began, children = JOBS[name].ranks, time.monotonic(), []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for rank in range(ranks):
            pid = os.fork()
            if pid == 0:
                child(name, rank, library, folder, port)
            children.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        print(f"{name}: exits {codes} after {time.monotonic() - began:.1f} s", flush=True)
        if any(codes):
            print((folder / "out0.log").read_text()[-1500:], flush=True)
            return False
        asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "--id=0"]
        gpu = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=30).stdout
        fixture.write(out, name, folder, ranks, gpu.strip())
    return True


def main() -> int:
    library, out, names = sys.argv[1], Path(sys.argv[2]), sys.argv[3:] or list(JOBS)
    good = [run(name, library, out, FIRST_PORT + at) for at, name in enumerate(names)]
    return 0 if all(good) else 1


if __name__ == "__main__":
    raise SystemExit(main())
