"""A replica in shared memory whose steps are saved, and what others than we say of the result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from flowcheck.config import OptimizerConfig, PersistConfig, load_job
from flowcheck.ops.lifecycle.chain_runner import create_run
from flowcheck.replica.checkpoint.step_snapshot import hold_snapshot
from flowcheck.replica.checkpoint.trainer_state import trainer_state
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.param_layout import Layout
from flowcheck.stages.checkpointing.pinned_steps import PinnedStep
from flowcheck.stages.job_state.model_layout import optimizer_of_run
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.vault.erasure.target_choice import open_target
from flowcheck.vault.persist.saver import Saver
from flowcheck.wire.collectives.nccl_parameters import NcclEra
from flowcheck.wire.training_job.learned_job import LearnedJob, Parameter, encode_job

ADAMW = OptimizerConfig(name="adamw", learning_rate=0.1)


def replica_in(path: Path, elements: int = 1000, *, spare: int = 1) -> Replica:
    """A new one at step 0, with room for so many versions to spare."""
    layout = Layout.of_shapes([(elements,), (3,)])
    weights = np.linspace(-1, 1, layout.elements).astype(np.float32)
    each = 4 * 3 * layout.elements + 64
    return Replica.create(path, layout, ADAMW, weights, keep_bytes=spare * each)


@contextmanager
def stepped(path: Path, steps: int = 2, elements: int = 100_000) -> Iterator[Replica]:
    """One that has taken so many steps."""
    made = replica_in(path, elements)
    take(made, steps)
    yield made
    made.close()


def take(replica: Replica, steps: int = 1) -> None:
    for step in range(replica.step + 1, replica.step + 1 + steps):
        gradient = np.random.default_rng(step).standard_normal(replica.layout.elements)
        replica.apply(step, gradient.astype(np.float32))


class Steps:
    """Of a state file, whoever steps it."""

    def __init__(self, path: Path, name: str = "run", config: PersistConfig | None = None) -> None:
        self._path, self.name, self._config = path, name, config

    @contextmanager
    def hold(self, step: int) -> Iterator[PinnedStep]:
        with hold_snapshot(self._path, ADAMW) as snapshot:
            yield PinnedStep(trainer_state(snapshot), snapshot.layout, self._config)


def saver_for(
    config: PersistConfig, staging: Path, state: Path, name: str = "run", **doubts: Any
) -> Saver:
    """doubts: what is known of its saves, as `Saver` takes it."""
    place = open_target(config, staging)
    return Saver(config, place, staging, Steps(state, name, config), **doubts)


def kept_at(target: Path, state: Path, step: int) -> Path:
    """A folder with the checkpoint of a state file's newest step, which is `step`."""
    config = PersistConfig(target=str(target), every_steps=1, keep_last=1)
    assert saver_for(config, target.parent, state).save(step).step == step
    return target


def proved(folder: Path) -> int:
    """The step of a checkpoint, loaded by safetensors itself and with the sums its manifest tells,
    by hashlib."""
    from safetensors.torch import load_file

    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert manifest["files"]
    for name, told in manifest["files"].items():
        data = (folder / name).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (told["bytes"], told["sha256"])
    assert load_file(folder / "model.safetensors")
    counts = load_file(folder / "optimizer.safetensors")
    step = int(counts["param.0/step"].item())
    assert step == manifest["step"]
    return step


def run_with_replica(root: Path, memory: Path, job_file: str, elements: int = 1000) -> RunDir:
    """A run directory as the chain of this job file leaves it after it learned a job of one
    parameter; its replica is at step 0 of `replica_of`."""
    path = root.parent / "job.toml"
    path.write_text(
        f'run = "{root}"\n[[source]]\ninterface = "none0"\n[ring]\nslots = 64\n[staging]\n'
        "size_bytes = 1_048_576\n[optimizer]\nname = 'adamw'\nlearning_rate = 0.1\n" + job_file
    )
    run, _ = create_run(load_job(path), root)
    learn(run, elements)
    return run


def learn(run: RunDir, elements: int) -> None:
    """As the stages leave it that read a job of one parameter."""
    sizes = Parameter(sizes=(elements,), strides=(1,))
    job = LearnedJob(
        era=NcclEra.V2_20, communicators=(), edges=(), parameters=(sizes,),
        first_buckets=((0,),), buckets=((0,),), first=(), each=(),
    )  # fmt: skip
    run.learned_job.write_bytes(encode_job(job))
    layout = Layout.of_shapes([(elements,)])
    weights = np.linspace(-1, 1, elements).astype(np.float32)
    Replica.create(run.replica, layout, optimizer_of_run(run), weights, keep_bytes=1 << 20).close()


def replica_of(run: RunDir) -> Replica:
    return Replica.open(run.replica, optimizer_of_run(run))
