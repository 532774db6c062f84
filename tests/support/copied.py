"""A replica that is stepped in this process, given to copies over loopback, and its copies; torch's
own optimizer beside them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from support.staged import Heard

from flowcheck.config import JobConfig, encode_config, job_from
from flowcheck.findings.finding import Entry, Finding
from flowcheck.messages import Note
from flowcheck.replica.element_ranges import Ranges
from flowcheck.replica.model_replica import Replica
from flowcheck.stages.copy_updater.copy_stage import CopyService
from flowcheck.stages.job_state.model_layout import layout_of
from flowcheck.stages.replica_copies.copies_stage import CopiesService
from flowcheck.stages.replica_copies.copy_records import read_copies
from flowcheck.stages.replica_update.kept_steps import KeptSteps
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step
from flowcheck.wire.training_job.learned_job import Parameter
from flowcheck.wire.training_job.training_spec import TrainingSpec, encode_spec

LIMIT_S = 60.0
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9},
    "adamw": {"name": "adamw", "learning_rate": 1e-2},
    "muon": {
        "each": [
            {"name": "Muon", "parameters": ["ndim=2"], "learning_rate": 0.02, "momentum": 0.9},
            {"name": "adamw", "parameters": "rest", "learning_rate": 1e-2},
        ]
    },
}


class Net(torch.nn.Module):
    """A scalar, odd sizes, and an empty dimension's neighbour: one element."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(1.5))
        self.one = torch.nn.Parameter(torch.randn(1))
        self.odd = torch.nn.Parameter(torch.randn(17, 13))
        self.line = torch.nn.Parameter(torch.randn(101))


def torch_optimizers(net: torch.nn.Module, name: str) -> list[torch.optim.Optimizer]:
    """As the training script has them."""
    every = list(net.parameters())
    if name == "sgd":
        return [torch.optim.SGD(every, lr=0.05, momentum=0.9, foreach=False)]
    if name == "adamw":
        return [torch.optim.AdamW(every, lr=1e-2, foreach=False)]
    wide, rest = [p for p in every if p.dim() == 2], [p for p in every if p.dim() != 2]
    muon = torch.optim.Muon(wide, lr=0.02, momentum=0.9)
    return [muon, torch.optim.AdamW(rest, lr=1e-2, foreach=False)]


class Trainer:
    """Of plain torch."""

    def __init__(self, name: str = "adamw", seed: int = 3) -> None:
        torch.manual_seed(seed)
        self.net = Net()
        self.optimizers = torch_optimizers(self.net, name)
        self.weights = self._flat(p.detach() for p in self.net.parameters())

    def step(self, seed: int) -> np.ndarray:
        """Takes a step; returns its flat gradient."""
        torch.manual_seed(1000 + seed)
        for p in self.net.parameters():
            p.grad = torch.randn_like(p)
        for optimizer in self.optimizers:
            optimizer.step()
        return self._flat(p.grad for p in self.net.parameters())

    def _flat(self, tensors: Any) -> np.ndarray:
        return torch.cat([t.reshape(-1) for t in tensors]).numpy().copy()

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        return {name: p.detach().clone() for name, p in self.net.named_parameters()}

    def is_at(self, replica: Replica) -> bool:
        """Whether a replica has its parameters and all of its optimizers' tensors, bit for bit."""
        held = replica.tensors()
        states = {id(p): o.state[p] for o in self.optimizers for p in o.state}
        for name, p in self.net.named_parameters():
            if not torch.equal(held[name]["value"], p.detach()):
                return False
            for key, value in states.get(id(p), {}).items():
                if not torch.is_tensor(value) or key == "step":
                    continue
                if not torch.equal(held[name][key].reshape(-1), value.reshape(-1)):
                    return False
        return True


def settings(optimizer: str | dict[str, Any], **tables: Any) -> JobConfig:
    """A job file's."""
    stated = OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer
    names = [name for name, _ in Net().named_parameters()]
    own = {"optimizer": stated, "model": {"names": names}}
    return job_from(own | tables)


def training_of(net: torch.nn.Module) -> TrainingSpec:
    parameters = tuple(
        Parameter(sizes=tuple(p.shape), strides=p.stride(), dtype="float32")
        for p in net.parameters()
    )
    return TrainingSpec(parameters=parameters, communicator_ranks=(2,))


class Source:
    """The first chain's updater and its `copies` stage, without the rest."""

    def __init__(
        self,
        folder: Path,
        memory: Path,
        optimizer: str = "adamw",
        *,
        seed: int = 3,
        replica: dict[str, Any] | None = None,
        **copies: Any,
    ) -> None:
        self.trainer = Trainer(optimizer, seed)
        tables = {"source": [{"file": "0"}], "copies": {"port": 0, **copies}}
        tables["replica"] = {"keep_bytes": 1 << 20, **(replica or {})}
        self.config = settings(optimizer, **tables)
        memory.mkdir(exist_ok=True)
        self.run = RunDir.create(folder, memory)
        self.run.config.write_bytes(encode_config(self.config))
        training = training_of(self.trainer.net)
        self.run.training_spec.write_bytes(encode_spec(training))
        layout = layout_of(training, self.config)
        assert self.config.optimizer is not None
        keep = self.config.replica.keep_bytes
        weights = self.trainer.weights
        own = self.run.replica, layout, self.config.optimizer, weights
        self.replica = Replica.create(*own, keep_bytes=keep)
        self.told: list[Finding] = []
        self.kept = self._observer()
        self.service = CopiesService(self.run, self.config)
        self.heard = Heard()
        self.service.start(self.heard)  # type: ignore[arg-type]

    def _observer(self) -> KeptSteps:
        def say(found: Finding | None) -> None:
            if found is not None:
                self.told.append(found)

        return KeptSteps(self.run, self.config, self.replica, say, gathered=False)

    def reopened(self) -> None:
        """Another updater, behind one that was killed: it has what is in memory alone."""
        self.replica.close()
        assert self.config.optimizer is not None
        self.replica = Replica.open(self.run.replica, self.config.optimizer)
        self.kept = self._observer()

    @property
    def url(self) -> str:
        record = read_copies(self.run)
        assert record is not None
        return record.url

    def step(self, count: int = 1, *, lacks: Ranges | None = None, seed: int = 0) -> None:
        """Takes steps as the trainer does. seed: of other gradients."""
        for _ in range(count):
            gradient = self.trainer.step(seed + self.replica.step + 1)
            self.kept.before_step(gradient, None)
            missing = () if lacks is None else lacks
            self.replica.begin(Step(self.replica.step + 1), gradient, None, missing).commit()
            gradient[:] = np.nan  # its memory is another step's from here on
            self.service.on_message(None)  # type: ignore[arg-type]

    def close(self) -> None:
        self.service.stop()
        self.kept.close()
        self.replica.close()


class Copy:
    """The second chain's updater."""

    def __init__(
        self,
        folder: Path,
        memory: Path,
        urls: list[str],
        optimizer: str | dict[str, Any] = "adamw",
        *,
        keep_bytes: int = 1 << 20,
        **gradients: Any,
    ) -> None:
        own = {"chains": urls, "timeout_s": 2.0, **gradients}
        keeps = {"keep_bytes": keep_bytes}
        self.config = settings(optimizer, gradients=own, replica=keeps)
        memory.mkdir(exist_ok=True)
        self.run = RunDir.create(folder, memory)
        self.run.config.write_bytes(encode_config(self.config))
        self.heard = Heard()
        self.begin()

    def begin(self) -> None:
        """An updater starts."""
        self.service = CopyService(self.run, self.config)
        self.service.start(self.heard)  # type: ignore[arg-type]

    def again(self) -> None:
        """It was killed, as far as files and memory tell, and another one starts."""
        self.service.stop()
        self.begin()

    @property
    def replica(self) -> Replica | None:
        return None if self.service._copied is None else self.service._copied.replica

    @property
    def step(self) -> int:
        return -1 if self.replica is None else self.replica.step

    def until(self, done: Callable[[], bool], what: str = "") -> None:
        until_s = time.monotonic() + LIMIT_S
        while not done():
            assert time.monotonic() < until_s, (what, self.step, self.told())
            if not self.service.work():
                time.sleep(0.002)

    def reaches(self, step: int) -> None:
        self.until(lambda: self.step == step, f"step {step}")

    def told(self) -> list[Finding]:
        return [note.finding for note in self.heard.of(Note)]  # type: ignore[attr-defined]

    def says(self, entry: Entry) -> bool:
        return any(found.is_any_of(entry) for found in self.told())

    def lines(self) -> list[int]:
        text = self.run.steps.read_bytes() if self.run.steps.exists() else b""
        return [msgspec.json.decode(line)["step"] for line in text.splitlines()]

    def close(self) -> None:
        self.service.stop()
