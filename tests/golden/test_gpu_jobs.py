"""Jobs that real NCCL carried on a real GPU (scripts/gpu), against NCCL's own log and the trainers'
own digests: the frames around NCCL's messages are the only part made here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import gpu_recorded

from flowcheck.ops.analysis.analyze_command import as_dict
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import read_stream

MODELS = Path(__file__).resolve().parents[2] / "scripts" / "gpu" / "models.py"
ADAMW, SGD = 'name = "adamw"\nlearning_rate = 0.01\n', 'name = "sgd"\nlearning_rate = 0.01\n'
FUSED = 'implementation = "fused"\n'
FOLLOWED = {
    "default": (ADAMW, "small", ""),
    "ring-ll128": (ADAMW + FUSED + "clip_norm = 0.05\n", "batch_norm", ""),
    "ring-simple": (SGD + "momentum = 0.9\nnesterov = true\n", "small", ""),
    "tree-simple": (ADAMW, "width_90", ""),
    "tree-ll128": (ADAMW + 'implementation = "loop"\n', "small", ""),
    "tree-ll": (ADAMW, "small", ""),
    "eight": (ADAMW, "width_100", ""),
    "two-ranks": (SGD, "small", ""),
    "wide-simple": (ADAMW.replace("0.01", "0.001"), "deep_180", ""),
    "channels": (ADAMW, "width_110", ""),
    "accumulate": (ADAMW + "betas = [0.9, 0.95]\nclip_norm = 0.02\n", "small", ""),
    "pipeline": (ADAMW, "small", ""),
    "hook": (ADAMW, "small", 'gradient_dtype = "bfloat16"\n'),
}
"""{job: ([optimizer] as scripts/gpu/jobs.py has it, factory of its model, more of [model])}."""
NIGHTLY = ("tree-simple", "tree-ll", "eight", "wide-simple", "channels", "hook")
READ = (*FOLLOWED, "ring-ll", "bf16")
KINDS = {"AllGather": "all_gather", "Broadcast": "broadcast", "AllReduce": "all_reduce"}
LL128_LEAST_BYTES = 1920
"""Of the least message of LL128: 16 lines of 120 bytes."""
SENT_IN_PAIRS_BYTES = 9 * 13 * 4
"""Of the nine samples that a stage passes on each step (scripts/gpu/train.py); the log has none."""
PROTOCOLS = {"LL": "LL", "LL128": "LL128", "SIMPLE": "Simple"}


def capture_of(name: str, folder: Path) -> Path:
    return gpu_recorded.write_pcap(
        folder / f"{name}.pcap", gpu_recorded.frames(gpu_recorded.load(name))
    )


def expected(truth: dict[str, Any]) -> list[tuple[str, int, str, str]]:
    """[(kind, bytes of the result, algorithm, protocol)]; NCCL logs one rank's part."""
    return [
        (
            KINDS[kind],
            size * (truth["ranks"] if kind == "AllGather" else 1),
            algorithm.lower(),
            PROTOCOLS[protocol],
        )
        for kind, size, algorithm, protocol, *_ in truth["calls"]
    ]


@pytest.mark.parametrize("name", READ)
def test_collectives_are_those_that_nccl_logged(name: str, tmp_path: Path) -> None:
    """All of them in order, with algorithm and protocol. Bytes: of every collective of the start-up
    and of every bucket; the last line of another may end anywhere in it."""
    truth = gpu_recorded.load(name).truth
    tape = read_capture_files([capture_of(name, tmp_path)])
    every = as_dict({}, read_stream(tape.flows, tape.messages))["collectives"]
    told = [c for c in every if c["kind"] != "send_recv"]
    pairs = [(c["bytes"], c["algorithm"], c["coverage"]) for c in every if c not in told]
    assert pairs == [(SENT_IN_PAIRS_BYTES, None, 1.0)] * len(truth["steps"]) * (name == "pipeline")
    logged = expected(truth)
    assert [(c["kind"], c["algorithm"], c["protocol"]) for c in told] == [
        (kind, algorithm, protocol) for kind, _, algorithm, protocol in logged
    ]
    for own, (_, size, _, _) in zip(told, logged, strict=True):
        if own["meaning"] == "buffers":
            assert size <= own["bytes"] <= size + LL128_LEAST_BYTES
        elif own["meaning"] == "initial weights":  # NCCL counts the buffers behind them
            assert own["bytes"] <= size and own["coverage"] == 1.0
        elif own["meaning"] == "":
            assert size <= own["bytes"] <= LL128_LEAST_BYTES
        else:
            assert (own["bytes"], own["coverage"]) == (size, 1.0)


def replayed(name: str, folder: Path) -> dict[str, Any]:
    optimizer, model, more = FOLLOWED[name]
    job = folder / "job.toml"
    job.write_text(
        f'[optimizer]\n{optimizer}device = "cuda"\ntorch = "2.11"\n'
        f'[model]\nfactory = "{MODELS}:{model}"\n{more}'
    )
    words = ["replay", str(capture_of(name, folder)), "--job", str(job), "--source", "file"]
    done = subprocess.run(
        [sys.executable, "-m", "flowcheck", *words, "--digests", "--json"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.nightly if name in NIGHTLY else ()) for name in FOLLOWED],
)
def test_every_step_has_the_bits_of_the_gpu(name: str, tmp_path: Path) -> None:
    truth = gpu_recorded.load(name).truth
    steps = truth["steps"]
    told = replayed(name, tmp_path)
    assert told["complete_steps"] == len(steps)
    for own, step in zip(told["digests"], steps, strict=True):
        assert own["parameters_sha256"] == step["parameters"], own["step"]
        for state in ("exp_avg", "exp_avg_sq", "momentum_buffer"):
            assert own.get("states_sha256", {}).get(state) == step.get(state), (own["step"], state)
        if name != "hook":  # the trainer's are widened, these are as they were reduced
            assert own["gradient_sha256"] == step["gradient"], own["step"]
