"""Saving and restoring: whole outputs against a plain copy of the same bytes, both synced."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from bench.measure import Figure, Scale
from flowcheck.config import OptimizerConfig
from flowcheck.ops.restore.restore_request import StepSource
from flowcheck.ops.restore.step_lookup import found_step
from flowcheck.replica.checkpoint import checkpoint_save
from flowcheck.replica.checkpoint.trainer_state import TrainerState
from flowcheck.replica.checkpoint_files.checksum_verifier import verify_files
from flowcheck.replica.checkpoint_files.manifest import load_manifest
from flowcheck.replica.param_layout import Layout
from flowcheck.vault.checkpoint_formats.checkpoint_contents import CheckpointContents, contents_of
from flowcheck.vault.checkpoint_formats.checkpoint_io import read, write

TARGET = 0.8
STATE_BYTES = 1200 << 20
QUICK_BYTES = 120 << 20
MATRIX = (1024, 1024)
COPIES = 3
"""Of each parameter: itself, exp_avg, exp_avg_sq."""
FORMS = ("torch", "dcp")


def figures(how_much: Scale, _: Sequence[Figure]) -> Iterator[Figure]:
    """Seconds of a copy over seconds of the work: 1 is as fast as cp and fsync."""
    size_bytes = QUICK_BYTES if how_much.quick else STATE_BYTES
    parts = made(size_bytes)
    with tempfile.TemporaryDirectory(prefix="flowcheck-bench-", dir=Path.cwd()) as name:
        folder = Path(name)
        kept = checkpoint_save.save_trainer_state(
            parts.trainer_state, folder / "kept", parts.layout
        )
        manifest = load_manifest(kept)
        works: dict[str, Callable[[Path], object]] = {
            "cp": lambda out: copied(kept, out),
            "save": lambda out: checkpoint_save.save_trainer_state(
                parts.trainer_state, out, parts.layout
            ),
            "verify": lambda _: verify_files(kept, manifest),
            "load": lambda _: read(kept),
        }
        for form in FORMS:
            works[f"restore to {form}"] = lambda out, form=form: restored(kept, out, form)  # type: ignore[misc]
            works[form] = lambda out, form=form: write(parts, out, form)  # type: ignore[misc]
        taken = in_turn(works, folder, how_much.repeats)
    whole = sum(file.bytes for file in manifest.files.values())
    for what, seconds in taken.items():
        yield Figure(
            "save",
            NAMES.get(what, f"save, format {what}"),
            whole / seconds / 1e9,
            "GB/s",
            ratio=None if what == "cp" else taken["cp"] / seconds,
            against="cp + fsync",
            target=None if what == "cp" else TARGET,
        )


NAMES = {
    "cp": "cp and fsync of a checkpoint's files",
    "save": "save: written, summed, synced",
    "verify": "verify: all files and tensors",
    "load": "load: checked and mapped",
    "restore to torch": "restore to torch: checked, summed, written",
    "restore to dcp": "restore to dcp: checked, summed, written",
}


def made(size_bytes: int) -> CheckpointContents:
    """A step of AdamW in so many bytes."""
    one = 4 * MATRIX[0] * MATRIX[1]
    layout = Layout.of_shapes([MATRIX] * max(1, size_bytes // (one * COPIES)))
    model = {p.name: torch.randn(p.shape) for p in layout.parameters}
    states = {
        number: {
            "step": torch.tensor(3.0),
            "exp_avg": torch.randn(MATRIX),
            "exp_avg_sq": torch.rand(MATRIX),
        }
        for number in range(len(model))
    }
    groups = [{"lr": 1e-3, "betas": (0.9, 0.999), "params": list(states)}]
    rule = OptimizerConfig(name="adamw", learning_rate=1e-3)
    optimizer = {"state": states, "param_groups": groups}
    return contents_of(TrainerState(3, "0" * 32, rule, model, optimizer), layout)


def in_turn(
    works: dict[str, Callable[[Path], object]], folder: Path, repeats: int
) -> dict[str, float]:
    """Median seconds of each, all in turn, into a folder that is removed; one round before."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats + 1):
        for name, work in works.items():
            out = folder / "out"
            os.sync()
            start = time.perf_counter()
            work(out)
            taken[name].append(time.perf_counter() - start)
            shutil.rmtree(out, ignore_errors=True)
            for file in (out, out.with_name("out.manifest.json")):
                file.unlink(missing_ok=True)
    return {name: statistics.median(times[1:]) for name, times in taken.items()}


def copied(kept: Path, out: Path) -> None:
    subprocess.run(["cp", "-r", kept, out], check=True)
    subprocess.run(["sync", *out.iterdir(), out], check=True)


def restored(kept: Path, out: Path, form: str) -> None:
    with found_step(StepSource(checkpoint=kept), in_place=True) as found:
        write(found.contents(form), out, form)
