"""Buffers of a trainer's checkpoint that is filled with a later step: torch's own running
statistics of the step that was seen of them, and said to be of it."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from support.formatted import fill
from torch import nn

from flowcheck.config import OptimizerConfig
from flowcheck.findings.catalog import restored_state as gaps
from flowcheck.findings.catalog.restored_state import BUFFERS
from flowcheck.findings.finding import Finding
from flowcheck.ops.restore.restore_command import print_parts_of_other_steps
from flowcheck.ops.restore.step_lookup import FoundStep
from flowcheck.replica.checkpoint.frozen_and_buffers import NO_FROZEN_OR_BUFFERS, FrozenAndBuffers
from flowcheck.replica.checkpoint.step_snapshot import Snapshot
from flowcheck.replica.checkpoint.trainer_state import trainer_state
from flowcheck.replica.param_layout import Layout
from flowcheck.vault.checkpoint_formats.checkpoint_contents import contents_of
from flowcheck.vault.checkpoint_formats.checkpoint_io import load_template, write
from flowcheck.vault.trainer_checkpoint.buffer_step_inference import ObservedFile, buffer_digests
from flowcheck.vault.trainer_checkpoint.checkpoint_template import read_template

ADAMW = OptimizerConfig(name="adamw", learning_rate=0.01)
ALONE = OptimizerConfig(name="none")
STEPS = 5
STATISTICS = ("1.running_mean", "1.running_var", "1.num_batches_tracked")


class Trainer:
    """Of a net with BatchNorm, a frozen weight and a buffer that no forward sends; files[step]."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        self.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        self.net.register_buffer("own", torch.zeros(2))
        self.net[2].weight.requires_grad_(False)
        self.stepped = {n: p for n, p in self.net.named_parameters() if p.requires_grad}
        self.optimizer = torch.optim.AdamW(self.stepped.values(), lr=0.01)
        self.files = [self.file(0)]
        for step in range(1, STEPS + 1):
            self.optimizer.zero_grad()
            self.net(torch.randn(8, 3) * 3 + 1).square().sum().backward()
            self.optimizer.step()
            self.net.own += 1
            self.files.append(self.file(step))

    def file(self, step: int) -> dict[str, Any]:
        tree = {"model": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}
        return copy.deepcopy(tree | {"step": step})

    def found(self, told: int | None, config: OptimizerConfig = ADAMW) -> FoundStep:
        """What a replica holds of the last step; told: the step of the statistics that a forward
        sent last; None: no model is stated."""
        file = self.files[STEPS]
        values = {name: file["model"][name].clone() for name in self.stepped}
        shapes = [(tuple(v.shape), v.stride()) for v in values.values()]
        layout = Layout.of(shapes, names=list(values), dtype="float32")
        states = tuple(dict(file["optimizer"]["state"][i]) for i in range(len(values)))
        beside = NO_FROZEN_OR_BUFFERS
        if told is not None:
            earlier, first = self.files[told]["model"], self.files[0]["model"]
            tensors = {name: earlier[name].clone() for name in STATISTICS}
            beside = FrozenAndBuffers(
                keys=tuple((key, key) for key in first),
                registered=tuple(name for name, _ in self.net.named_parameters()),
                frozen=("2.weight",),
                buffers=("own", *STATISTICS),
                tensors={**tensors, "2.weight": first["2.weight"].clone()},
                sent=told,
                followed=STATISTICS,
            )
        taken = Snapshot(STEPS, "", layout, config, values, states, frozen_and_buffers=beside)
        return FoundStep(taken, "the replica")


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    return Trainer()


@pytest.mark.parametrize("config", [ADAMW, ALONE])
@pytest.mark.parametrize("at", [0, 2])
def test_statistics_are_those_that_were_seen_last_and_what_was_not_seen_is_named(
    trainer: Trainer,
    at: int,
    config: OptimizerConfig,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = trainer.found(STEPS - 1, config)
    torch.save(trainer.files[at], tmp_path / "early.pt")
    filled = fill(found, tmp_path / "early.pt", tmp_path / "out.pt")
    own = torch.load(tmp_path / "out.pt", weights_only=True)["model"]
    net = copy.deepcopy(trainer.net)
    net.load_state_dict(own)  # strictly
    last, seen, early = (trainer.files[n]["model"] for n in (STEPS, STEPS - 1, at))
    assert all(torch.equal(own[name], seen[name]) for name in STATISTICS)
    assert not any(torch.equal(own[name], early[name]) for name in STATISTICS)
    assert torch.equal(own["own"], early["own"])
    assert all(torch.equal(own[n], last[n]) for n in last if n not in (*STATISTICS, "own"))
    template = load_template(tmp_path / "early.pt", found.snapshot.layout, found.names)
    like = contents_of(trainer_state(found.snapshot), found.snapshot.layout, template)
    assert filled.older == like.older == {**dict.fromkeys(STATISTICS, STEPS - 1), "own": at}
    assert filled.untold == ("own",)
    print_parts_of_other_steps(filled)
    said = capsys.readouterr().out.splitlines()
    assert "NOT a full resume: " in said[0] and "3 buffers are of step 4" in said[0]
    assert said[0].endswith(
        f"1 buffers are the template's own, of step {at} and NOT of step {STEPS}: own"
    )
    assert said[1:] == [f"  of step {STEPS - 1}: {n}" for n in filled.older if n != "own"]


def test_a_file_of_the_very_step_keeps_its_own_buffers_and_lacks_nothing(
    trainer: Trainer, tmp_path: Path
) -> None:
    torch.save(trainer.files[STEPS], tmp_path / "own.pt")
    filled = fill(trainer.found(STEPS - 1), tmp_path / "own.pt", tmp_path / "out.pt")
    assert (filled.resume_caveats, filled.older, filled.untold) == ((), {}, ())
    own = torch.load(tmp_path / "out.pt", weights_only=True)["model"]
    wanted = trainer.files[STEPS]["model"]
    assert all(torch.equal(own[name], value) for name, value in wanted.items())


def test_statistics_of_the_step_itself_are_of_it(trainer: Trainer, tmp_path: Path) -> None:
    torch.save(trainer.files[0], tmp_path / "early.pt")
    filled = fill(trainer.found(STEPS), tmp_path / "early.pt", tmp_path / "out.pt")
    assert BUFFERS(3) in filled.replaced and filled.older == {"own": 0}
    own = torch.load(tmp_path / "out.pt", weights_only=True)["model"]
    wanted = trainer.files[STEPS]["model"]
    assert [n for n in wanted if not torch.equal(own[n], wanted[n])] == ["own"]


@pytest.mark.parametrize("told", [STEPS - 1, STEPS])
def test_a_safetensors_file_alone_tells_of_which_steps_its_buffers_are(
    trainer: Trainer, told: int, tmp_path: Path
) -> None:
    found = trainer.found(told)
    parts = contents_of(trainer_state(found.snapshot), found.snapshot.layout)
    manifest = write(parts, tmp_path / "out.safetensors", "safetensors")
    with safe_open(tmp_path / "out.safetensors", framework="pt") as file:
        metadata = file.metadata()
        of = dict.fromkeys(STATISTICS, told)
        assert all(torch.equal(file.get_tensor(n), trainer.files[told]["model"][n]) for n in of)
    assert metadata["step"] == str(STEPS)
    older = of if told < STEPS else {}
    assert json.loads(metadata.get("older", "{}")) == older == manifest.older


def seen(trainer: Trainer, found: FoundStep, step: int) -> ObservedFile:
    """What an audit of the trainer's file of that step writes down."""
    template = read_template(trainer.files[step], found.snapshot.layout, found.names, "a file")
    return ObservedFile(step, buffer_digests(template, template.non_parameters))


def own_buffers(at: int, names: Sequence[str]) -> Finding:
    """The template's own are left as they were at that step."""
    return gaps.TEMPLATE_BUFFERS(
        buffers=len(names), template_step=at, step=STEPS, names=gaps.NAMES(names)
    )


@pytest.mark.parametrize("at", [0, 2])
def test_without_a_stated_model_files_tell_what_changes_and_what_is_taken_to_stay(
    trainer: Trainer, at: int, tmp_path: Path
) -> None:
    torch.save(trainer.files[at], tmp_path / "early.pt")
    found = trainer.found(None)
    names = [n for n in trainer.files[at]["model"] if n not in trainer.stepped]
    assert set(names) == {"own", "2.weight", *STATISTICS}

    alone = fill(found, tmp_path / "early.pt", tmp_path / "out.pt")
    assert alone.untold == tuple(names)
    assert alone.resume_caveats == (own_buffers(at, STATISTICS),), "each forward changes them"
    unknown = gaps.TENSORS_UNKNOWN(names=gaps.NAMES(["own", "2.weight"]), tensors=2, step=at)
    assert alone.assumed[0] == unknown

    of = (seen(trainer, found, at), seen(trainer, found, 3))  # one of the same step tells nothing
    files = fill(replace(found, observed_files=of), tmp_path / "early.pt", tmp_path / "out.pt")
    assert set(files.untold) == {"own", *STATISTICS} == set(files.older)
    others = [name for name in names if name != "2.weight"]
    [lacks] = files.resume_caveats
    assert lacks.is_any_of(gaps.TEMPLATE_BUFFERS) and lacks.arguments["buffers"] == 4
    assert lacks.arguments["names"] == gaps.NAMES_AND_MORE(names=others[:3], more=1)
    stays = gaps.TENSORS_STAY(names=gaps.NAMES(["2.weight"]), tensors=1, steps=[at, 3])
    assert files.assumed[0] == stays

    template = load_template(tmp_path / "early.pt", found.snapshot.layout, found.names)
    parts = contents_of(trainer_state(found.snapshot), found.snapshot.layout, template, of)
    assert parts.older == dict(files.older)
    assert gaps.BUFFERS_OF_STEP(buffers=4, step=at) in parts.resume_caveats
    assert parts.trainer_state.assumed[-1] == stays


def test_masks_and_tables_that_stay_make_no_resume_less_than_full(tmp_path: Path) -> None:
    """A causal mask, positions and rotary frequencies, judged by the trainer's own last file."""
    torch.manual_seed(2)
    net = nn.Linear(3, 2)
    net.register_buffer("mask", torch.ones(4, 4, dtype=torch.bool).tril())
    net.register_buffer("position_ids", torch.arange(9))
    net.register_buffer("inv_freq", torch.rand(8).bfloat16())
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    files = []
    for step in range(STEPS + 1):
        tree = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        files.append(copy.deepcopy(tree))
        net(torch.randn(8, 3)).square().sum().backward()
        optimizer.step()
    last = files[STEPS]
    values = {name: last["model"][name].clone() for name, _ in net.named_parameters()}
    layout = Layout.of([(tuple(v.shape), v.stride()) for v in values.values()], names=list(values))
    states = tuple(dict(last["optimizer"]["state"][n]) for n in range(len(values)))
    taken = Snapshot(STEPS, "", layout, ADAMW, values, states)
    found = FoundStep(taken, "the replica")
    tables = ("mask", "position_ids", "inv_freq")
    torch.save(files[0], tmp_path / "early.pt")
    alone = fill(found, tmp_path / "early.pt", tmp_path / "out.pt")
    assert not alone.resume_caveats and alone.untold == tables
    later = read_template(files[3], found.snapshot.layout, found.names, "a file")
    known = replace(
        found, observed_files=(ObservedFile(3, buffer_digests(later, later.non_parameters)),)
    )
    filled = fill(known, tmp_path / "early.pt", tmp_path / "out.pt")
    assert (filled.resume_caveats, filled.untold, filled.older) == ((), (), {})
    stay = gaps.NAMES(["mask", "position_ids", "inv_freq"])
    assert filled.assumed[0] == gaps.TENSORS_STAY(names=stay, tensors=3, steps=[0, 3])
    torch.save(files[3], tmp_path / "later.pt")
    assert found.with_files([tmp_path / "later.pt"]).observed_files == known.observed_files
    own = torch.load(tmp_path / "out.pt", weights_only=True)["model"]
    assert own.keys() == files[STEPS]["model"].keys()
    assert all(torch.equal(own[n], value) for n, value in files[STEPS]["model"].items())
