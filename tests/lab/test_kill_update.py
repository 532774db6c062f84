"""Kill -9 of the updater, some inside an optimizer step: no step is lost and none taken twice."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.chain import (
    Command,
    sha256,
    signal_stage,
    slowed,
    torch_steps,
    truth_steps,
)

from flowcheck.replica.state_file.file_header import peek_commit
from flowcheck.stages.run_directory.run_dir import RunDir

CAPTURE = "iter_40000_p2p_iter10"
CHAIN_KILLS = 6
LAST_STEP = 20

HARNESS = '''
"""Plays the extractor, forks updaters with torch loaded, kills them, prints what was hit."""
import json, os, random, signal, sys, time
from pathlib import Path

import numpy as np
import torch

from flowcheck._core import ffi, lib
from flowcheck.config import JobConfig, OptimizerConfig, SourceConfig
from flowcheck.plane.shared_memory.gradient_double_buffer import GradientShard, GenerationState
from flowcheck.replica.state_file.file_header import peek_commit
from flowcheck.replica.torch_without_compiler import load_torch
from flowcheck.stages.zmq_sockets import StageSockets
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.service_loop import run_service as run_stage
from flowcheck.stages.replica_update.update_stage import UpdateService
from flowcheck.wire.training_job.learned_job import LearnedJob, Parameter
from flowcheck.wire.training_job.learned_job import encode_job
from flowcheck.wire.collectives.nccl_parameters import NcclEra

torch.set_num_threads(1)  # a forked child has no OpenMP workers
load_torch()
folder, shm, kills = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
config = JobConfig(
    source=(SourceConfig(file="none"),),
    optimizer=OptimizerConfig(name="adamw", learning_rate=1e-3, amsgrad=True),
    digests=True,
)
rng = np.random.default_rng(3)
shapes = [(300, 500), (77,), (50_001,)]
elements = sum(int(np.prod(s)) for s in shapes)
weights = rng.standard_normal(elements).astype("<f4")
gradients = [rng.standard_normal(elements).astype("<f4") for _ in range(5)]
where = RunDir.create(folder / "run", shm)
parameters = tuple(
    Parameter(sizes=s, strides=tuple(int(np.prod(s[i + 1 :])) for i in range(len(s))))
    for s in shapes
)
job = LearnedJob(era=NcclEra.V2_19, communicators=(), edges=(), parameters=parameters,
                 first_buckets=(), buckets=(), first=(), each=())
where.weights.write_bytes(weights.tobytes())
shard = GradientShard.create(where.shard, gradient_bytes=elements * 4)
where.learned_job.write_bytes(encode_job(job))


def feed():
    """Keeps both generations ahead of the updater whole."""
    for step in (shard.applied_iteration + 1, shard.applied_iteration + 2):
        free = [g for g in (0, 1)
                if shard.generation_state(g) == GenerationState.EMPTY
                or shard.iteration(g) <= shard.applied_iteration]
        if shard.generation_of(step) is None and free:
            shard.begin(free[0], step)
            data = np.frombuffer(ffi.buffer(lib.fc_shard_data(shard.handle, free[0]),
                                            elements * 4), "<f4")
            data[:] = gradients[step % 5]
            shard.handle.header.generations[free[0]].covered_units = elements
            assert shard.finish(free[0])


def updater():
    me = os.getpid()
    child = os.fork()
    if child == 0:
        links = StageSockets(where.sockets, "update")
        os._exit(run_stage(UpdateService(where, config), links, parent=me))
    return child


report = {"inside_step": 0, "owed_line": 0, "torn_line": 0}
dice = random.Random(5)
done = 0
while done < kills or (report["inside_step"] < kills // 10 and done < 10 * kills):
    done += 1
    child, before = updater(), shard.applied_iteration
    while shard.applied_iteration == before:
        feed()
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
    until = time.monotonic() + dice.uniform(0, 0.08)
    while time.monotonic() < until:
        feed()
        time.sleep(0.0005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    commit, in_step = peek_commit(where.replica)
    lines = where.steps.read_bytes()
    report["inside_step"] += in_step == commit.step + 1
    report["owed_line"] += commit.step > shard.applied_iteration
    report["torn_line"] += not lines.endswith(b"\\n")
child, last = updater(), shard.applied_iteration + 5
while shard.applied_iteration < last:
    feed()
    time.sleep(0.001)
os.kill(child, signal.SIGTERM)
report["ended"] = os.waitpid(child, 0)[1]
taken = shard.applied_iteration
lines = [json.loads(line) for line in where.steps.read_text().splitlines()]

import hashlib
reference = [torch.nn.Parameter(torch.from_numpy(part.copy()).reshape(shape)) for part, shape in
             zip(np.split(weights, np.cumsum([np.prod(s) for s in shapes])[:-1]), shapes)]
optimizer = torch.optim.AdamW(reference, lr=1e-3, amsgrad=True, foreach=False, fused=False)
report["gradients_right"] = report["parameters_right"] = 0
for line, step in zip(lines, range(1, taken + 1)):
    at = 0
    for p in reference:
        part = gradients[step % 5][at : at + p.numel()].copy()
        p.grad, at = torch.from_numpy(part).reshape(p.shape), at + p.numel()
    optimizer.step()
    flat = torch.cat([p.detach().reshape(-1) for p in reference]).numpy().tobytes()
    gradient = hashlib.sha256(gradients[step % 5].tobytes()).hexdigest()
    report["gradients_right"] += line["gradient_sha256"] == gradient
    report["parameters_right"] += line["parameters_sha256"] == hashlib.sha256(flat).hexdigest()
report |= {"taken": taken, "steps": [line["step"] for line in lines]}
where.remove()
print(json.dumps(report))
'''


@pytest.mark.parametrize("kills", [10, pytest.param(50, marks=pytest.mark.nightly)])
def test_kills_of_the_updater_lose_no_step_and_repeat_none(
    tmp_path: Path, shm: Path, kills: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HARNESS, str(tmp_path), str(shm), str(kills)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    print({key: value for key, value in report.items() if key != "steps"})
    assert report["inside_step"] >= kills // 10, "kills inside an optimizer step"
    taken = report["taken"]
    assert taken >= kills
    assert report["steps"] == list(range(1, taken + 1))
    assert report["gradients_right"] == report["parameters_right"] == taken
    assert report["ended"] == 0


@pytest.mark.nightly
def test_an_updater_killed_in_the_running_chain_goes_on_where_it_was(
    captures: Path, truth: Path, tmp_path: Path
) -> None:
    slow = tmp_path / "slow.pcap"
    slowed(captures / f"{CAPTURE}.pcapng", slow, frame_every_s=0.015)
    run = RunDir(tmp_path / "run")
    dice = random.Random(8)
    killed: list[int | None] = []
    at_steps: list[int] = []
    with Command(
        "replay", slow, "--source", "file", "--speed", "1", "--optimizer", "adamw", "--lr", "0.001",
        "--run", run.root, "--digests", "--json",
    ) as command:  # fmt: skip
        while len(killed) < CHAIN_KILLS and command.process.poll() is None:
            if at_work(run, killed, at_steps):
                time.sleep(dice.uniform(0.0, 0.3))
                killed.append(signal_stage(run, "update"))
                at_steps.append(peek_commit(run.replica)[0].step)
            time.sleep(0.01)
        result = command.json()
    print(at_steps)
    assert len(set(killed)) == len(killed) >= 2
    assert len(killed) - result["restarts"] in (0, 1), "the last may hit after the last step"
    assert at_steps == sorted(set(at_steps)), "steps were taken between the kills"
    weights, gradients = truth_steps(truth, CAPTURE)
    wanted = torch_steps(weights, gradients, "adamw", lr=0.001)
    assert [s["step"] for s in result["digests"]] == list(range(1, 21))
    assert [s["gradient_sha256"] for s in result["digests"]] == [sha256(g) for g in gradients]
    assert [s["parameters_sha256"] for s in result["digests"]] == [sha256(p) for p in wanted]


def at_work(run: RunDir, killed: list[int | None], at_steps: list[int]) -> bool:
    """Whether a new updater runs and took a step."""
    if run.stage_pids().get("update") in (None, *killed) or not run.replica.exists():
        return False
    return max(at_steps, default=0) < peek_commit(run.replica)[0].step < LAST_STEP
