"""A training job of two rings behind one chain, each with half of the model: its run directory, and
torch's own state of each step, which lost nothing."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import closing
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flowcheck.config import load_job
from flowcheck.findings.catalog.how_chains_end import SIGNAL_INT
from flowcheck.messages import StepDoubtful
from flowcheck.ops.lifecycle.chain_runner import create_run
from flowcheck.ops.lifecycle.shutdown_cleanup import save_replicas
from flowcheck.ops.lifecycle.shutdown_record_writer import record_end
from flowcheck.ops.trainer_checkpoint.audit_watch.file_heal import FileHeal
from flowcheck.ops.watch.state.chain_state import EndKind
from flowcheck.replica.checkpoint import checkpoint_save
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.param_layout import Layout
from flowcheck.stages.job_state.model_layout import optimizer_of_run
from flowcheck.stages.replica_update.gradient_sources.gradient_source import LateDifferences
from flowcheck.stages.replica_update.late_differences import taint_late
from flowcheck.stages.replica_update.step_log import StepLog
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Iteration, Step
from flowcheck.wire.collectives.nccl_parameters import NcclEra
from flowcheck.wire.training_job.learned_job import Communicator, LearnedJob, Parameter, encode_job

SHAPES = {1: ((40, 5), (40,)), 2: ((60, 7), (60,))}
"""{ring: shapes of its parameters}."""
RATE = 0.1
Lost = Sequence[tuple[int, int]]
"""[start, stop) of the bytes of a gradient that no mirror brought."""


class TwoRings:
    """Both replicas are stepped by `take`, with what their gradients lacked."""

    def __init__(self, folder: Path, *, keep_bytes: int = 1 << 20, together: bool = True) -> None:
        job = folder / "job.toml"
        text = f'run = "{folder / "run"}"\njobs = 2\ncheckpoint = "{folder / "kept"}"\n'
        text += "" if together else "together = false\n"
        text += '[[source]]\ninterface = "none0"\n[ring]\nslots = 64\n[staging]\n'
        text += "size_bytes = 1_048_576\n[optimizer]\nname = 'adamw'\n"
        job.write_text(f"{text}learning_rate = {RATE}\n")
        self.run, _ = create_run(load_job(job), folder / "run")
        self.truth = {ring: [_Trainer(shapes, ring)] for ring, shapes in SHAPES.items()}
        self.exact: dict[int, set[int]] = {ring: {0} for ring in SHAPES}
        """{ring: steps that were torch's own in every bit}"""
        for ring, shapes in SHAPES.items():
            _learn(self.own(ring), shapes, self.truth[ring][0].flat(), keep_bytes)
        self._replicas = {ring: self._opened(ring) for ring in SHAPES}

    def own(self, ring: int) -> RunDir:
        return self.run if ring == 1 else self.run.job_run_dir(ring)

    def take(self, ring: int, lost: Lost = (), *, known: bool = True) -> None:
        """One more step of a ring: by torch with all of the gradient, by the replica without what
        it lacked. known: to the replica, by then."""
        trainer = copy.deepcopy(self.truth[ring][-1])
        step = len(self.truth[ring])
        random = np.random.default_rng(100 * ring + step)
        gradient = random.standard_normal(len(trainer.flat())).astype(np.float32)
        trainer.take(gradient)
        self.truth[ring].append(trainer)
        zeroed = gradient.copy()
        for start, stop in lost:
            zeroed.view(np.uint8)[start:stop] = 0
        replica = self._replicas[ring]
        replica.apply(Step(step), zeroed, missing=lost if known else ())
        with self._log(ring) as log:
            log.write(replica, 0.01, zeroed)
        if not any(mask.any() for mask in self.differing(ring).values()):
            self.exact[ring].add(step)

    def differs_late(self, ring: int, step: int, lost: Lost) -> StepDoubtful | None:
        """As the updater takes copies that turn out to differ of a step that is made."""
        late = LateDifferences(0, Iteration(step), 8, lost)
        with self._log(ring) as log:
            return taint_late(self.own(ring), self._replicas[ring], log, Step(step), late)

    def differing(self, ring: int) -> dict[str, np.ndarray]:
        """{parameter: mask of the elements of its newest step that are not torch's, in bits}."""
        trainer, replica = self.truth[ring][-1], self._replicas[ring]
        assert replica.step == len(self.truth[ring]) - 1
        held = np.split(replica.parameters().copy(), trainer.cuts)
        names = [p.name for p in replica.layout.parameters]
        told = [p.detach().numpy().reshape(-1) for p in trainer.parameters]
        return {
            name: own.view(np.int32) != right.view(np.int32)
            for name, own, right in zip(names, held, told, strict=True)
        }

    def wrong(self) -> dict[str, dict[str, set[int]]]:
        """{job: {parameter: elements that are not torch's}} of the newest steps; {} without any."""
        found: dict[str, dict[str, set[int]]] = {}
        for ring in SHAPES:
            for name, mask in self.differing(ring).items():
                if mask.any():
                    found.setdefault(f"job-{ring}", {})[name] = set(np.flatnonzero(mask).tolist())
        return found

    @property
    def newest_exact(self) -> int:
        return max(self.exact[1] & self.exact[2])

    def heal(self, ring: int, found: FileHeal) -> None:
        """As the updater takes a file's values."""
        replica = self._replicas[ring]
        replica.heal(found.found.step, found.patch)
        with self._log(ring) as log:
            log.write_newest_again(replica)

    def _opened(self, ring: int) -> Replica:
        run = self.own(ring)
        return Replica.open(run.replica, optimizer_of_run(run))

    def _log(self, ring: int) -> closing[StepLog]:
        run = self.own(ring)
        return closing(StepLog(run, run.settings(), self._replicas[ring]))

    def save(self, ring: int, file: Path, step: int = -1) -> Path:
        """The trainer's own checkpoint."""
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save(self.truth[ring][step].tree(), file)
        return file

    def keep(self, ring: int, folder: Path) -> Path:
        """A checkpoint of FlowCheck's of a ring's newest step."""
        return checkpoint_save.save(self._replicas[ring], folder)

    def end(self) -> None:
        """As `flowcheck down` ends a chain: checkpoints of both rings, and nothing in memory."""
        self._let_go()
        save_replicas(self.run.settings(), self.run)
        record_end(self.run, EndKind.ASKED, SIGNAL_INT(), ())
        self.run.remove(keep_records=True)

    def _let_go(self) -> None:
        for ring in list(self._replicas):
            self._replicas.pop(ring).close()

    def close(self) -> None:
        self._let_go()
        self.own(2).remove()
        self.run.remove()


class _Trainer:
    """The ranks of a ring, as torch steps them."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        drawn = [torch.randn(shape, generator=random) for shape in shapes]
        self.parameters = [torch.nn.Parameter(value) for value in drawn]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=RATE)
        self.cuts = np.cumsum([prod(shape) for shape in shapes])[:-1]

    def take(self, gradient: np.ndarray) -> None:
        for p, part in zip(self.parameters, np.split(gradient, self.cuts), strict=True):
            p.grad = torch.from_numpy(part.copy()).reshape(p.shape)
        self.optimizer.step()

    def flat(self) -> np.ndarray:
        return np.concatenate([p.detach().numpy().reshape(-1) for p in self.parameters])

    def tree(self) -> dict[str, Any]:
        model = {f"w{n}": p.detach().clone() for n, p in enumerate(self.parameters)}
        return {"model": model, "opt": copy.deepcopy(self.optimizer.state_dict())}


def _learn(run: RunDir, shapes: Sequence[tuple[int, ...]], flat: np.ndarray, keep: int) -> None:
    """As the stages leave it that read a job of such parameters."""
    layout = Layout.of_shapes(shapes)
    every = tuple(range(len(shapes)))
    job = LearnedJob(
        era=NcclEra.V2_20, communicators=(Communicator(ranks=2, channels=1),), edges=(),
        parameters=tuple(Parameter(sizes=p.shape, strides=p.stride) for p in layout.parameters),
        first_buckets=(every,), buckets=(every,), first=(), each=(),
    )  # fmt: skip
    run.learned_job.write_bytes(encode_job(job))
    run.weights.write_bytes(flat.tobytes())
    Replica.create(run.replica, layout, optimizer_of_run(run), flat, keep_bytes=keep).close()
