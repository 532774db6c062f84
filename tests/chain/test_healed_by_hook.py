"""Frames lost at the mirror, and a hook in the trainer: the elements come back, bit for bit, for
less than ten times the bytes that were lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from support.chain import LIMIT_S, Command, flowcheck, wait_until
from support.cut import gradient_of
from support.free import free_port
from support.hooked import TOKEN
from support.netib import Truth, generate
from support.pcap_records import FILE_HEADER_BYTES, records_of
from test_tainted_steps import LEARNING_RATE, LOST_AT, job, same_outside

import flowcheck as package
from flowcheck.ops.watch.state.state_reader import StateReader
from flowcheck.stages.job_state.heal_log import read_heal_records
from flowcheck.stages.run_directory.run_dir import RunDir

TRAINER = """
import sys, time
from pathlib import Path
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

folder, rate = Path(sys.argv[1]), float(sys.argv[2])
dist.init_process_group("gloo")
made = torch.load(folder / "truth.pt")

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        for n, value in enumerate(made["weights"]):
            self.register_parameter(f"p{n}", nn.Parameter(value))

model = DistributedDataParallel(Model())
own = list(model.parameters())
optimizer = torch.optim.AdamW(own, lr=rate)
def step(gradients):
    for p, g in zip(own, gradients):
        p.grad = g
    optimizer.step()
for gradients in made["gradients"][:-1]:
    step(gradients)
kept = [p.detach().clone() for p in own], optimizer.state_dict()
kept = kept[0], torch.load(torch.save(kept[1], folder / "kept.pt") or folder / "kept.pt")
while not (folder / "stop").exists():  # the last step again and again
    for p, value in zip(own, kept[0]):
        p.data.copy_(value)
    optimizer.load_state_dict(torch.load(folder / "kept.pt"))
    step(made["gradients"][-1])
    time.sleep(0.05)
dist.destroy_process_group()
"""


@contextmanager
def hooked_trainer(folder: Path, truth: Truth, port: int) -> Iterator[None]:
    """A process that makes the truth's steps, with the hook."""
    shapes = truth.options.shapes
    sizes = [int(np.prod(shape)) for shape in shapes]

    def split(raw: bytes) -> list[torch.Tensor]:
        parts = torch.frombuffer(bytearray(raw), dtype=torch.float32).split(sizes)
        return [part.reshape(shape).clone() for part, shape in zip(parts, shapes, strict=True)]

    gradients = [split(gradient_of(truth, step)) for step in range(truth.options.steps)]
    torch.save({"weights": split(truth.weights), "gradients": gradients}, folder / "truth.pt")
    (folder / "trainer.py").write_text(TRAINER)
    (folder / "token").write_bytes(TOKEN)
    env = os.environ | {
        "FLOWCHECK_HOOK": f"127.0.0.1:{port}", "FLOWCHECK_HOOK_TOKEN_FILE": str(folder / "token"),
        "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    words = [sys.executable, folder / "trainer.py", folder, str(LEARNING_RATE)]
    with (folder / "trainer.log").open("wb") as log:
        process = subprocess.Popen(words, env=env, stdout=log, stderr=log)
        try:
            yield
            (folder / "stop").touch()
            assert process.wait(60) == 0, (folder / "trainer.log").read_text()
        finally:
            process.kill()
            process.wait(60)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_hook_heals_what_the_mirror_lost(tmp_path: Path) -> None:
    made = generate(job("LL128"), tmp_path)
    capture = made.files[0].read_bytes()
    records = records_of(capture)
    first = int(LOST_AT * len(records))
    gone = {first, first + 40}
    kept = (record for number, record in enumerate(records) if number not in gone)
    made.files[0].write_bytes(capture[:FILE_HEADER_BYTES] + b"".join(kept))
    lost_bytes = sum(len(records[n]) for n in gone)
    port, where = free_port(), RunDir(tmp_path / "run")
    (tmp_path / "job.toml").write_text(
        f'[[source]]\nfile = "{made.files[0]}"\n'
        f'[optimizer]\nname = "adamw"\nlearning_rate = {LEARNING_RATE}\n'
        f'[hook]\naddress = "127.0.0.1:{port}"\ntoken_file = "{tmp_path}/token"\npause_s = 0.2\n'
    )
    (tmp_path / "token").write_bytes(b"another token than the trainer's")
    try:
        with Command("up", tmp_path / "job.toml", "--run", where.root):
            wait_until(lambda: where.steps.exists() and b'"step":8' in where.steps.read_bytes(),
                       LIMIT_S, "all steps")  # fmt: skip
            (state,) = StateReader(where.root).state().jobs
            tainted = state.tainted_elements
            assert tainted > 0
            with hooked_trainer(tmp_path, made.truth, port):
                wait_until(lambda: bool(read_heal_records(where)), LIMIT_S, "the healing")
                wait_until(lambda: not StateReader(where.root).state().jobs[0].tainted, LIMIT_S,
                           "no taint")  # fmt: skip
            (state,) = StateReader(where.root).state().jobs
            assert (state.tainted_elements, state.healed_elements) == (0, tainted)
            assert 0 < state.asked_bytes < 10 * lost_bytes
            told = flowcheck("status", "--run", where.root)[1]
            assert "hook at 127.0.0.1" in told
            assert "hook.unreachable" in where.events.read_text()
            events = [json.loads(line) for line in where.events.read_text().splitlines()]
            (heal,) = [e for e in events if e["kind"] == "heal" and e.get("what") == "elements"]
            assert (heal["count"], heal["bytes"]) == (tainted, state.asked_bytes)
            loaded = package.load(where.root)
            assert loaded["step"] == 8
            same_outside(loaded, {}, made.truth)
    finally:
        deadline_s = time.monotonic() + 60
        while where.stage_pids() and time.monotonic() < deadline_s:
            time.sleep(0.1)
        where.remove()
