"""A replica in this process with a folder of gradients, a save of an early step, and torch's own
optimizer beside it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from support.steps import ADAMW, layout_of, made

from flowcheck.config import job_from
from flowcheck.findings.finding import Finding
from flowcheck.ops.restore.restore_request import StepSource
from flowcheck.ops.restore.step_lookup import FoundStep, found_step
from flowcheck.replica.checkpoint.checkpoint_save import save_trainer_state
from flowcheck.replica.checkpoint.step_snapshot import copy_snapshot
from flowcheck.replica.checkpoint.trainer_state import trainer_state
from flowcheck.replica.element_patch import patch_of_sections
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.state_digest import sha256
from flowcheck.replica.step_journal import journal_writer
from flowcheck.stages.replica_update.kept_steps import KeptSteps
from flowcheck.step_numbers import Step

SAVED, STEPS = 3, 8
MIB = 1 << 20
LOST = (8, 72)
"""Bytes of a gradient."""


def again(
    place: Path, step: int | None = None, *, tainted: bool = False, folder: Path | None = None
) -> FoundStep:
    """From the gradients in `place` and a save in `folder`, or there too."""
    source = StepSource(
        checkpoint=folder or place / "saved",
        gradients=place / "kept",
        step=None if step is None else Step(step),
        allow_tainted=tainted,
    )
    with found_step(source, in_place=True) as found:
        return found


def parameters_sha256(found: FoundStep) -> str:
    layout = found.snapshot.layout
    values = [p.reshape(-1).numpy() for p in found.snapshot.parameters.values()]
    assert len(values) == len(layout.parameters)
    return sha256(np.concatenate(values))


@pytest.fixture(autouse=True)
def _disk_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is."""
    monkeypatch.setattr(journal_writer, "CLOSE_S", 60.0)


@pytest.fixture
def told() -> list[Finding]:
    return []


def journal_of(folder: Path, told: list[Finding], replica: Replica, size_bytes: int) -> KeptSteps:
    """That observes the replica, as the updater has it."""
    run = SimpleNamespace(waiting_steps=folder / "waiting", kept_steps=folder / "kept-steps.json")
    log = {"folder": str(folder / "kept"), "folder_bytes": size_bytes}
    optimizer = {"name": "adamw", "learning_rate": 1e-2}
    source = [{"file": "0"}]
    config = job_from({"source": source, "optimizer": optimizer, "gradient_log": log})

    def say(found: Finding | None) -> None:
        if found is not None:
            told.append(found)

    return KeptSteps(cast("Any", run), config, replica, say, gathered=False)


class Kept:
    """A replica in which some steps lack bytes, with a save at SAVED and a journal; and torch."""

    def __init__(self, folder: Path, told: list[Finding], size_bytes: int = 64 * MIB) -> None:
        self.folder, self.told, self.size_bytes = folder, told, size_bytes
        self.net, self.optimizer = made()
        layout = layout_of(self.net)
        weights = torch.cat([p.detach().reshape(-1) for p in self.net.parameters()]).numpy()
        self.replica = Replica.create(folder / "replica", layout, ADAMW, weights)
        self.journal = journal_of(folder, told, self.replica, size_bytes)

    def steps(self, first: int, last: int, lossy: int = 0, *, hasty: bool = False) -> None:
        """hasty: faster than the disk, if need be."""
        for step in range(first, last + 1):
            if not hasty:
                self.wait_for_disk()
            flat, missing = self.gradient(step), [LOST] if step == lossy else []
            if missing:
                flat[LOST[0] // 4 : LOST[1] // 4] = 0
            self.journal.before_step(flat, None)
            self.replica.apply(Step(step), flat, missing=missing)
            flat[:] = np.nan  # its memory is another step's from here on
            if step == SAVED:
                found = copy_snapshot(self.replica.path, ADAMW)
                save_trainer_state(trainer_state(found), self.folder / "saved", found.layout)

    def gradient(self, step: int) -> np.ndarray:
        """Of the step, which torch takes."""
        torch.manual_seed(step)
        for p in self.net.parameters():
            p.grad = torch.randn_like(p)
        self.optimizer.step()
        return torch.cat([p.grad.reshape(-1) for p in self.net.parameters()]).numpy()

    def heal(self, whole: Replica) -> None:
        elements = self.replica.tainted_ranges
        patch = patch_of_sections(whole.description, whole.sections(), elements)
        self.replica.heal(self.replica.step, patch)

    def again(self) -> None:
        """The updater starts again."""
        self.journal.close()
        self.journal = journal_of(self.folder, self.told, self.replica, self.size_bytes)

    def wait_for_disk(self) -> None:
        """Until nothing waits for it any more."""
        journal = self.journal._journal
        assert journal is not None
        waiting, until_s = journal._waiting, time.monotonic() + 60
        while waiting is not None and waiting.waiting():
            assert time.monotonic() < until_s
            threading.Event().wait(0.001)

    def written(self) -> None:
        """Everything that waits is on the disk, and the updater has told what it has to."""
        self.journal.close()

    def is_torchs(self, found: FoundStep) -> bool:
        own = dict(self.net.named_parameters())
        held = found.snapshot.parameters
        return all(torch.equal(held[name], p.detach()) for name, p in own.items())

    def close(self) -> None:
        self.journal.close()
        self.replica.close()


@pytest.fixture
def kept(tmp_path: Path, told: list[Finding]) -> Iterator[Kept]:
    made_now = Kept(tmp_path, told)
    yield made_now
    made_now.close()
