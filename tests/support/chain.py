"""The command line run as its user runs it, captures slowed down, and what must come out."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from support import preloaded

from flowcheck._core import ffi, lib
from flowcheck.plane.frame_sources.pcap_source import PcapSource
from flowcheck.stages.run_directory.run_dir import RunDir

LIMIT_S = 100.0


class Command:
    """`python -m flowcheck ...` in a process of its own; killed at the end whatever happens."""

    def __init__(self, *words: str | Path) -> None:
        self.process = self._begun(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def _begun(self, words: Sequence[str | Path], **options: Any) -> subprocess.Popen[str]:
        return preloaded.Popen(words, **options)

    def result(self, limit_s: float = LIMIT_S) -> tuple[int, str, str]:
        """(exit code, stdout, stderr)"""
        out, err = self.process.communicate(timeout=limit_s)
        return self.process.returncode, out, err

    def json(self, limit_s: float = LIMIT_S) -> Any:
        """What it printed for programs; it must have succeeded."""
        code, out, err = self.result(limit_s)
        assert code == 0, f"exit code {code}\n{out}\n{err}"
        return json.loads(out)

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=60)


class ExecutedCommand(Command):
    """The same for tests whose subject is the process itself: nothing was loaded before."""

    def _begun(self, words: Sequence[str | Path], **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-m", "flowcheck", *map(str, words)], **options)


def flowcheck(*words: str | Path, limit_s: float = LIMIT_S) -> tuple[int, str, str]:
    """Runs a verb to its end: (exit code, stdout, stderr)."""
    with Command(*words) as command:
        return command.result(limit_s)


def analyzed(capture: Path) -> Any:
    """What `flowcheck analyze` says of a capture."""
    with Command("analyze", "--json", capture) as command:
        return command.json()


def wait_until(done: Callable[[], bool], limit_s: float, what: str) -> float:
    """Looks again and again; seconds it took. Fails with `what` after `limit_s`."""
    began_s = time.monotonic()
    while not done():
        waited_s = time.monotonic() - began_s
        assert waited_s < limit_s, f"{what}: not within {limit_s} s"
        time.sleep(0.005)
    return time.monotonic() - began_s


def slowed(source: Path, target: Path, *, frame_every_s: float, behind: int = 0) -> int:
    """The same frames as a pcap file, the first `behind` of them at once and the others at an even
    pace; how many."""
    frame = ffi.new("struct fc_pcap_frame *")
    count = 0
    with PcapSource(source) as pcap, target.open("wb") as out:
        # pcap with nanoseconds: magic, version 2.4, zone, accuracy, snap length, Ethernet
        out.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 262144, 1))
        while lib.fc_pcap_next(pcap.handle, frame) == 1:
            when_ns = 10**18 + int(max(0, count - behind) * frame_every_s * 1e9)
            seconds, ns = divmod(when_ns, 10**9)
            out.write(struct.pack("<IIII", seconds, ns, frame.frame_bytes, frame.wire_bytes))
            out.write(bytes(ffi.buffer(frame.bytes, frame.frame_bytes)))
            count += 1
    return count


def signal_stage(run: RunDir, stage: str, number: signal.Signals = signal.SIGKILL) -> int | None:
    """Signals a stage of a running chain; its pid, or None if it is just being started."""
    pid = run.stage_pids().get(stage)
    if pid is None:
        return None
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return None
    return pid


def truth_steps(truth: Path, name: str) -> tuple[np.ndarray, list[np.ndarray]]:
    """(initial weights, gradients) of a capture, float32, from the truth files alone."""
    weights = np.fromfile(truth / "tensors" / f"{name}.bcast.f32.bin", "<f4")
    files = sorted((truth / "tensors").glob(f"{name}.ar*.f32.bin"))
    gradients = [np.fromfile(file, "<f4") for file in files]
    told = [step["sha256_le"] for step in json.loads((truth / f"{name}.json").read_text())
            ["all_reduces"]]  # fmt: skip
    assert [hashlib.sha256(g.tobytes()).hexdigest() for g in gradients] == told
    return weights[: gradients[0].size], gradients


def torch_steps(
    weights: np.ndarray, gradients: Sequence[np.ndarray], optimizer: str, **settings: Any
) -> list[np.ndarray]:
    """The parameters after every step, by torch's own optimizer on one tensor [1, elements]."""
    import torch

    from flowcheck.replica.torch_vector_math import settle_vector_math

    settle_vector_math()
    parameter = torch.nn.Parameter(torch.from_numpy(weights.copy()).reshape(1, -1))
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    steps = kinds[optimizer]([parameter], foreach=False, fused=False, **settings)
    after = []
    for gradient in gradients:
        parameter.grad = torch.from_numpy(gradient.copy()).reshape(1, -1)
        steps.step()
        after.append(parameter.detach().numpy().reshape(-1).copy())
    return after


def sha256(array: np.ndarray) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()
