"""A training script that the hook is tried with, and its run on two ranks over loopback."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from support.free import free_port

SCRIPT = """
import os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from torch import nn

folder, kind = Path(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo")
torch.manual_seed(7)

class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.conv = nn.Conv2d(3, 5, 3, padding=1).to(memory_format=torch.channels_last)
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.tall = nn.Parameter(torch.randn(11, 7).t())
        self.head = nn.Linear(5, 3)
    def forward(self, x):
        y = self.conv(x).mean((2, 3)) * self.scale
        return self.head(y).sum(1) + self.tall.square().sum()

model = nn.parallel.DistributedDataParallel(Odd())
own = [p for p in model.parameters() if p.requires_grad]
if kind == "two":
    optimizers = [torch.optim.SGD(own[2:], lr=0.01, momentum=0.9)]
    optimizers += [torch.optim.AdamW(own[:2], lr=1e-2)]
elif kind == "sgd":
    optimizers = [torch.optim.SGD(own, lr=0.01)]
else:
    optimizers = [torch.optim.AdamW(own, lr=1e-2, weight_decay=0.1)]
each = 3 if kind == "accumulated" else 1
step = 0
generator = torch.Generator().manual_seed(dist.get_rank())
while not (folder / "stop").exists() and step < 4000:
    for _ in range(each):
        model(torch.randn(4, 3, 6, 6, generator=generator)).pow(2).mean().backward()
    for optimizer in optimizers:
        optimizer.step()
    for optimizer in optimizers:
        optimizer.zero_grad()
    step += 1
    if dist.get_rank() == 0:
        named = [(n, p) for n, p in model.module.named_parameters() if p.requires_grad]
        held = [{k: v for o in optimizers for k, v in o.state.get(p, {}).items()} for _, p in named]
        kept = {"parameters": [(n, p.detach()) for n, p in named], "states": held}
        torch.save(kept, folder / f"{step}.part")
        os.rename(folder / f"{step}.part", folder / f"{step}.pt")
    flag = torch.tensor(float((folder / "stop").exists()))
    dist.all_reduce(flag)
    if flag:
        break
    time.sleep(float(os.environ.get("PACE", "0.01")))
if dist.get_rank() == 0:
    (folder / "done").write_text(str(step))
dist.destroy_process_group()
"""
LIMIT_S = 180
"""Seconds: on a busy machine three processes take half a minute each to load torch."""
TOKEN = b"0123456789abcdef0123"


@contextmanager
def trained(folder: Path, kind: str, *, by: str) -> Iterator[int]:
    """The script on two ranks. Yields the hook's port. by: "module", "variable", or "nothing": then
    the port is 0."""
    (folder / "train.py").write_text(SCRIPT)
    (folder / "token").write_bytes(TOKEN + b"\n")
    env = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    words = ["train.py", str(folder), kind]
    if by == "module":
        words = ["-m", "flowcheck.hook", "--listen", "127.0.0.1:0", "--token-file", "token", *words]
    if by == "variable":
        env |= {"FLOWCHECK_HOOK": "127.0.0.1:0", "FLOWCHECK_HOOK_TOKEN_FILE": str(folder / "token")}
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    run += ["--master-port", str(free_port()), *words]
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        run, cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True
    )
    try:
        yield listening(folder) if by != "nothing" else 0
        (folder / "stop").touch()
        assert process.wait(LIMIT_S) == 0, (folder / "log").read_text()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the launcher, and the ranks it started
        process.wait(60)
        log.close()


def listening(folder: Path) -> int:
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        if found := re.search(r"it listens at 127.0.0.1:(\d+)", (folder / "log").read_text()):
            return int(found[1])
        time.sleep(0.05)
    raise AssertionError((folder / "log").read_text())


def saved(folder: Path, step: int) -> Any:
    """What the script itself saved behind a step."""
    import torch

    file, deadline_s = folder / f"{step}.pt", time.monotonic() + LIMIT_S
    while not file.exists() and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return torch.load(file, weights_only=True)
