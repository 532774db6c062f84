"""Jobs that real NCCL carried on a real GPU (scripts/gpu), against NCCL's own log and the trainers'
own digests: the frames around NCCL's messages are the only part made here."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from support import gpu_recorded, preloaded

from flowcheck.findings.catalog.collective_evidence import END_OPEN
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
FOLLOWED_GRADIENTS = {
    "unused": ('name = "rmsprop"\nlearning_rate = 0.001\n', "batch_norm", ""),
}
"""Beside a second communicator that uses trees; RMSprop's CUDA kernels round otherwise."""
NIGHTLY = (
    *("tree-simple", "tree-ll", "eight", "wide-simple", "channels", "hook"),
    *("default", "two-ranks", "accumulate"),
)
"""Whose protocol, algorithm and optimizer the other jobs' steps have; all are read by day."""
READ = (*FOLLOWED, "ring-ll", "bf16", "unused")
KINDS = {"AllGather": "all_gather", "Broadcast": "broadcast", "AllReduce": "all_reduce"}
SENT_IN_PAIRS_BYTES = 9 * 13 * 4
"""Of the nine samples that a stage passes on each step (scripts/gpu/train.py); the log has none."""
PROTOCOLS = {"LL": "LL", "LL128": "LL128", "SIMPLE": "Simple"}
LINE_BYTES = {"LL": 8, "LL128": 1920, "Simple": 1}
"""What the least message holds: a line of LL, 16 lines of LL128."""


def capture_of(name: str, folder: Path) -> Path:
    return gpu_recorded.write_pcap(
        folder / f"{name}.pcap", gpu_recorded.frames(gpu_recorded.load(name))
    )


def expected(truth: dict[str, Any]) -> list[tuple[str, int, str, str, int]]:
    """[(kind, bytes of the result, algorithm, protocol, channels)]; NCCL logs one rank's part."""
    return [
        (
            KINDS[kind],
            size * (truth["ranks"] if kind == "AllGather" else 1),
            algorithm.lower(),
            PROTOCOLS[protocol],
            last - first + 1,
        )
        for kind, size, algorithm, protocol, first, last in truth["calls"]
    ]


def sizes_told(collective: dict[str, Any]) -> tuple[int, int]:
    """Least and most bytes that it is said to have."""
    open_end = [a["arguments"] for a in collective["assumed"] if a["code"] == END_OPEN.code]
    size = collective["bytes"]
    return (open_end[0]["least"], open_end[0]["most"]) if open_end else (size, size)


@pytest.mark.parametrize("name", READ)
def test_collectives_are_those_that_nccl_logged(name: str, tmp_path: Path) -> None:
    """All of them in order, with algorithm, protocol, channels and bytes. What is no bucket, and
    nothing whose size the start-up tells, may end anywhere in its last line, and says so."""
    truth = gpu_recorded.load(name).truth
    tape = read_capture_files([capture_of(name, tmp_path)])
    every = as_dict({}, read_stream(tape.flows, tape.messages))["collectives"]
    told = [c for c in every if c["kind"] != "send_recv"]
    pairs = [(c["bytes"], c["algorithm"], c["coverage"]) for c in every if c not in told]
    assert pairs == [(SENT_IN_PAIRS_BYTES, None, 1.0)] * len(truth["steps"]) * (name == "pipeline")
    logged = expected(truth)
    assert [(c["kind"], c["algorithm"], c["protocol"], c["channels"]) for c in told] == [
        (kind, algorithm, protocol, channels) for kind, _, algorithm, protocol, channels in logged
    ]
    for own, (_, size, _, protocol, _) in zip(told, logged, strict=True):
        least, most = sizes_told(own)
        assert least <= own["bytes"] <= most < least + LINE_BYTES[protocol]
        if own["meaning"] == "initial weights":  # NCCL counts the buffers behind them
            assert own["bytes"] <= size and own["coverage"] == 1.0
        else:
            assert least <= size <= most
        if own["meaning"] not in ("initial weights", "buffers", ""):
            assert (own["bytes"], own["coverage"]) == (size, 1.0)
        if protocol == "LL128" and least < most:  # up to all of it is what fills a group up
            assert own["sha256"] is None


def test_a_second_communicator_that_uses_trees_alone_is_told_as_that(tmp_path: Path) -> None:
    """Its three ranks sum their numbers: 0 + 1 + 2, three times."""
    tape = read_capture_files([capture_of("unused", tmp_path)])
    reading = read_stream(tape.flows, tape.messages)
    own = [c for c in reading.collectives if c.communicator == 1]
    assert [(c.kind, c.tree, c.ranks) for c in own] == [("all_reduce", True, 3)] * 5
    assert {struct.unpack("<2f", c.result[:8].tobytes()) for c in own} == {(3.0, 3.0)}
    assert all(start >= 8 for c in own for start, _ in c.missing)
    assert reading.why_not == () and {c.communicator for c in reading.collectives} == {0, 1}


def test_gathers_by_pat_are_no_sends_of_pairs(tmp_path: Path) -> None:
    """Their receives grant what each needs, as those of pairs do, but lie in its slots."""
    tape = read_capture_files([capture_of("fsdp2-pat", tmp_path)])
    told = read_stream(tape.flows, tape.messages).collectives
    assert told and not any(c.kind == "send_recv" for c in told)


def replayed(name: str, folder: Path) -> dict[str, Any]:
    optimizer, model, more = {**FOLLOWED, **FOLLOWED_GRADIENTS}[name]
    job = folder / "job.toml"
    job.write_text(
        f'[optimizer]\n{optimizer}device = "cuda"\ntorch = "2.11"\n'
        f'[model]\nfactory = "{MODELS}:{model}"\n{more}'
    )
    words = ["replay", str(capture_of(name, folder)), "--job", str(job), "--source", "file"]
    done = preloaded.run(
        [*words, "--digests", "--json"],
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


@pytest.mark.parametrize("name", FOLLOWED_GRADIENTS)
def test_every_gradient_has_the_bits_of_the_gpu(name: str, tmp_path: Path) -> None:
    steps = gpu_recorded.load(name).truth["steps"]
    told = replayed(name, tmp_path)
    assert told["complete_steps"] == len(steps)
    assert [own["gradient_sha256"] for own in told["digests"]] == [s["gradient"] for s in steps]
