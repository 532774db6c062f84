"""A schedule's job on the wire, and what its replica must come to: by the generator and torch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from support.chain import torch_steps
from support.cut import truth_of
from support.faults.schedule import Job
from support.netib import Options, generate

SETTINGS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.05, "momentum": 0.9},
    "adam": {"lr": 0.01},
    "adamw": {"lr": 0.001, "weight_decay": 0.1},
}
STATED = {"lr": "learning_rate"}


@dataclass(frozen=True)
class Truth:
    """What is right, by step from 1 on; registration order."""

    files: list[Path]
    weights: np.ndarray
    gradients: list[str]
    """sha256 of each step's."""
    parameters: list[np.ndarray]
    """Behind each step."""

    @property
    def steps(self) -> int:
        return len(self.gradients)

    def right(self, step: int, gradient: str, parameters: str) -> bool:
        """Whether two sums are those of that step."""
        if not 1 <= step <= self.steps:
            return False
        own = hashlib.sha256(self.parameters[step - 1].tobytes()).hexdigest()
        return gradient == self.gradients[step - 1] and parameters == own


def made(job: Job, folder: Path) -> Truth:
    """Writes the job's captures into a new folder."""
    folder.mkdir()
    generated = generate(
        Options(
            seed=job.seed,
            ranks=job.ranks,
            channels=job.channels,
            qps=job.qps,
            protocol=job.protocol,
            version=job.version,
            shapes=job.shapes,
            caps_bytes=job.caps_bytes,
            steps=job.steps,
            mtu=job.mtu,
            ipv6=job.ipv6,
            adaptive=job.adaptive,
            metric_every=job.metric_every,
            retransmits=job.retransmits,
            mirrored=job.mirrored,
            directions=job.directions,
        ),
        folder,
    )
    gradients = truth_of(generated.truth)
    weights = np.frombuffer(generated.truth.weights, "<f4")
    as_floats = [np.frombuffer(gradient, "<f4") for gradient in gradients]
    return Truth(
        files=generated.files,
        weights=weights,
        gradients=[hashlib.sha256(gradient).hexdigest() for gradient in gradients],
        parameters=torch_steps(weights, as_floats, job.optimizer, **SETTINGS[job.optimizer]),
    )


def stated(job: Job) -> str:
    """The optimizer as a job file states it."""
    settings = {STATED.get(name, name): value for name, value in SETTINGS[job.optimizer].items()}
    lines = [f"{name} = {value}" for name, value in settings.items()]
    return "\n".join(["[optimizer]", f'name = "{job.optimizer}"', *lines])
