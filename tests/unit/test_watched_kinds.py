"""Each kind of checkpoint that trainers write, in a watched folder, beside a replica that lacks
bytes: what is compared, what heals, and what is no proof. Judged by torch's own trainer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from support.incarnations import JOB, Life, floats
from support.lives import Both
from support.refused_as import refused_as
from support.staged import Chain
from support.trainer_folders import (
    deepspeed_folder,
    megatron_folder,
    pretrained,
    trainer_folder,
)
from test_base_command import Trainer

from flowcheck.config import encode_config
from flowcheck.findings.catalog import file_audits as findings
from flowcheck.findings.catalog.trainer_checkpoints import NO_MODEL, OTHER_STATES
from flowcheck.lab.synthetic_traffic.synthetic_job import write_pcap
from flowcheck.ops.trainer_checkpoint.audit_watch.candidates import is_other_file, look_at
from flowcheck.ops.trainer_checkpoint.audit_watch.file_audit import audit_file
from flowcheck.ops.trainer_checkpoint.audit_watch.file_heal import FileHeal
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.taint import tainted_elements
from flowcheck.stages.job_state.audit_history import audit_history_of
from flowcheck.stages.job_state.audited_files import AuditedFile, FileOutcome
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.vault.audit.bitwise_audit import rounded_type
from flowcheck.vault.trainer_checkpoint.checkpoint_template import read_template

LOST, STEPS = 3, 6
NAMES = ("0.weight", "0.bias", "1.weight", "1.bias")


class Saved:
    """torch's model and optimizer at a step, by name."""

    def __init__(self, trainer: Trainer) -> None:
        own = zip(NAMES, trainer.parameters, strict=True)
        self.model = {name: p.detach().clone() for name, p in own}
        self.optimizer = torch.utils._pytree.tree_map(_copied, trainer.optimizer.state_dict())

    @property
    def states(self) -> dict[str, dict[str, torch.Tensor]]:
        return {name: self.optimizer["state"][n] for n, name in enumerate(NAMES)}

    def half(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        return {name: own.to(dtype) for name, own in self.model.items()}


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


class Run:
    """A replica of step STEPS that lacks a frame of step LOST, and what torch's trainer had."""

    def __init__(self, folder: Path, memory: Path) -> None:
        trainer = Trainer()
        life = Life(replace(JOB, steps=STEPS), trainer.flat())
        self.at: dict[int, Saved] = {}
        for step, gradient in enumerate(life.generate().gradients, 1):
            trainer.step(floats(gradient))
            self.at[step] = Saved(trainer)
        frames = life.frames_of()
        first, behind = (len(life.frames_of(stop=life.starts[n])) for n in (LOST - 1, LOST))
        largest = max(len(one.frame) for one in frames)
        del frames[max(n for n in range(first, behind) if len(frames[n].frame) == largest)]
        write_pcap(folder / "seen.pcap", frames)
        model = {"names": list(NAMES)}
        self.both = Both(Chain(folder, memory, [folder / "seen.pcap"], 256), model=model)
        self.run = self.both.chain.run
        self.run.config.write_bytes(encode_config(self.both.config))
        self.both.drive()
        self.runs = folder / "runs"
        self.runs.mkdir()
        self.earlier: list[AuditedFile] = []

    @property
    def replica(self) -> Replica:
        update = self.both.update._opened()
        assert update is not None
        return update.replica

    @property
    def tainted(self) -> int:
        return tainted_elements(self.replica.tainted)

    def first_moments(self, number: int) -> dict[str, torch.Tensor]:
        own = self.at[1].optimizer["state"][number]
        return {kind: own[kind] for kind in ("exp_avg", "exp_avg_sq")}

    def audit(self) -> AuditedFile:
        """What comes of the one checkpoint of the folder that is not looked at yet, which is
        removed behind it."""
        [one] = [one for one in look_at(self.runs).candidates if not is_other_file(one)]
        told: list[Any] = []

        def reads() -> None:
            found = audit_file(self.run, self.runs, one, self.earlier)
            told.append(found.attempt() if isinstance(found, FileHeal) else found)

        reading = Thread(target=reads)
        reading.start()
        while reading.is_alive():
            self.both.drive()
            reading.join(0.05)
        one.path.rename(self.runs.parent / f"seen-{len(self.earlier)}")
        [line] = told
        assert isinstance(line, AuditedFile), line
        self.earlier.append(line)
        return line


@pytest.fixture
def made(shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    run = Run(tmp_path, shm / "memory")
    monkeypatch.setattr(RunDir, "stage_pids", lambda _: {"update": os.getpid()})
    yield run
    run.both.close()


def write(kind: str, runs: Path, at: Saved, step: int) -> None:
    folder = runs / f"checkpoint-{step}"
    writer = {
        "trainer": trainer_folder(folder, at.model, at.optimizer, step, 3),
        "megatron": megatron_folder(runs, at.model, at.optimizer, step),
        "deepspeed": deepspeed_folder(runs, at.model, at.states, step, 2),
    }
    list(writer[kind])


@pytest.mark.parametrize("kind", ["trainer", "megatron", "deepspeed"])
def test_each_kind_heals(made: Run, kind: str) -> None:
    count = made.tainted
    assert count > 0
    write(kind, made.runs, made.at[STEPS - 1], STEPS - 1)
    line = made.audit()
    assert (line.outcome, line.step, line.why) == (FileOutcome.EQUAL, STEPS - 1, ())
    assert line.heal is not None and line.heal.is_any_of(findings.ELEMENTS_HEALED), line.heal
    assert (line.healed_elements, made.tainted) == (count, 0)
    right = torch.cat([own.reshape(-1) for own in made.at[STEPS].model.values()])
    assert torch.equal(torch.from_numpy(made.replica.parameters().copy()), right)


def test_a_rounded_copy_is_compared_rounded_and_proves_no_bits(made: Run) -> None:
    count, dtype, at = made.tainted, torch.bfloat16, made.at[STEPS]
    for own in (torch.float16, dtype):
        word = str(own).removeprefix("torch.")
        list(pretrained(made.runs / f"step-{STEPS}", at.half(own), 2))
        line = made.audit()
        assert (line.outcome, line.step) == (FileOutcome.EQUAL, STEPS)
        assert line.why == (findings.COMPARED_ROUNDED(word),)
        assert line.heal == findings.NOT_HEALED(findings.HEAL_ROUNDED(word))
        assert made.tainted == count
    history = audit_history_of(made.run)
    assert (history.last, history.equal_step) == (None, None)
    list(trainer_folder(made.runs / f"checkpoint-{STEPS}", at.half(dtype), at.optimizer, STEPS))
    line = made.audit()
    assert (line.outcome, line.optimizer) == (FileOutcome.EQUAL, True), "moments as they are"
    other = at.half(dtype)
    kept = torch.ones(other["0.weight"].numel(), dtype=torch.bool)
    for one in made.replica.tainted.get("0.weight", ()):
        kept[one.start : one.stop] = False
    exact = int(kept.nonzero()[0])
    other["0.weight"].reshape(-1)[exact] = float("nan")
    list(pretrained(made.runs / f"step-{STEPS}", other))
    line = made.audit()
    assert (line.outcome, line.tensor, line.heal) == (FileOutcome.DIFFERS, "0.weight", None)
    assert [why.code for why in line.why] == ["audit.element_differs", "audit.holds_nans"]
    failed = audit_history_of(made.run).failed
    assert failed is not None and failed.step == STEPS
    list(pretrained(made.runs / f"step-{STEPS}", at.half(dtype)))
    assert made.audit().outcome is FileOutcome.EQUAL
    assert audit_history_of(made.run).failed == failed, "a rounded copy answers for nothing"


def test_a_model_without_names_is_told_rounded_where_nothing_has_its_types() -> None:
    torch.manual_seed(2)
    tensors = {name: torch.randn(shape) for name, shape in zip(NAMES, JOB.shapes, strict=True)}
    layout = Layout.of_shapes(JOB.shapes)
    half = {"model": {name: own.half() for name, own in tensors.items()}, "step": 4}
    with refused_as(NO_MODEL):
        read_template(half, layout, (), "half.pt")
    found = read_template(half, layout, (), "half.pt", may_be_rounded=True)
    assert (found.names, rounded_type(found, layout)) == (NAMES, "float16")
    both = half | {"masters": tensors}
    found = read_template(both, layout, (), "half.pt", may_be_rounded=True)
    assert rounded_type(found, layout) is None, "those with the bits are there"


def test_damage_and_foreign_models_in_folders_of_the_trainer(made: Run) -> None:
    """As users met them: a copy with NaN, a save that holds the first step's moments, moments that
    were dropped; and a model that is another one, which says nothing of the replica."""
    at = made.at[STEPS]
    foreign = {name: torch.zeros(own.numel() + 1) for name, own in at.model.items()}
    list(pretrained(made.runs / f"step-{STEPS}", foreign))
    line = made.audit()
    assert line.outcome is FileOutcome.NOT_COMPARED and line.why[0].is_any_of(NO_MODEL)
    assert audit_history_of(made.run).failed is None

    def saved(model: Any, optimizer: Any) -> AuditedFile:
        list(trainer_folder(made.runs / f"checkpoint-{STEPS}", model, optimizer, STEPS))
        return made.audit()

    moments = {n: own | made.first_moments(n) for n, own in at.optimizer["state"].items()}
    line = saved(at.model, at.optimizer | {"state": moments})
    assert (line.outcome, line.tensor) == (FileOutcome.DIFFERS, "0.weight/exp_avg")
    steps = [why.arguments["step"] for why in line.why if why.is_any_of(findings.HOLDS_OTHER_STEP)]
    assert steps and set(steps) == {1}
    zeros = {
        n: own | {"exp_avg": torch.zeros_like(own["exp_avg"])}
        for n, own in at.optimizer["state"].items()
    }
    line = saved(at.model, at.optimizer | {"state": zeros})
    assert any(why.is_any_of(findings.HOLDS_ZEROS) for why in line.why)
    dropped = {
        n: {kind: value for kind, value in own.items() if kind != "exp_avg"}
        for n, own in at.optimizer["state"].items()
    }
    line = saved(at.model, at.optimizer | {"state": dropped})
    assert line.outcome is FileOutcome.DIFFERS and line.why[0].is_any_of(OTHER_STATES)
    assert made.tainted and audit_history_of(made.run).failed is not None
    line = saved({n: own.clone() for n, own in at.model.items()}, at.optimizer)
    assert line.outcome is FileOutcome.EQUAL and line.healed_elements
    history = audit_history_of(made.run)
    assert history.failed is None and history.damaged, "the copies are wrong"
    line = saved(at.model | {"1.bias": torch.full_like(at.model["1.bias"], torch.nan)}, None)
    assert (line.outcome, line.tensor) == (FileOutcome.DIFFERS, "1.bias")
    assert line.why[-1] == findings.HOLDS_NANS(tensor="1.bias", elements=10)
    assert audit_history_of(made.run).failed is None, "a copy beside the right one"
    line = saved(at.model, None)
    assert line.outcome is FileOutcome.STALE and line.why[0].is_any_of(findings.STATE_MISSING)
