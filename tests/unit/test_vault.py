"""Restoring into a trainer's own checkpoint, judged by checkpoints that the trainer wrote."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.refused_as import refused_as
from support.room import no_room

from flowcheck.config import OptimizerConfig
from flowcheck.findings.catalog import trainer_checkpoints as findings
from flowcheck.findings.catalog.replica_state_errors import OTHER_OPTIMIZER
from flowcheck.findings.catalog.restored_state import COUNTER_FROM_ZERO
from flowcheck.replica.checkpoint.step_snapshot import Snapshot, copy_snapshot
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.param_layout import Layout
from flowcheck.vault.audit import bitwise_audit
from flowcheck.vault.checkpoint_formats.checkpoint_io import load_template
from flowcheck.vault.overwrite_guard import OutputTarget
from flowcheck.vault.trainer_checkpoint import template_fill
from flowcheck.vault.trainer_checkpoint.checkpoint_template import read_template

JOB = Path(__file__).parents[2] / "flowcheck/lab/jobs/gpt.py"
SMALL = ("--layers", "1", "--width", "16", "--heads", "2", "--context", "16", "--save-every", "2")
ADAMW = OptimizerConfig(name="adamw", learning_rate=3e-4, weight_decay=0.1)
SGD = OptimizerConfig(name="sgd", learning_rate=3e-4, momentum=0.9, weight_decay=0.1)


TRAIN = """
import runpy, sys
job, folder, *small = sys.argv[1:]
sys.path.insert(0, job.rpartition("/")[0])
for name, flags in {"adamw": (), "sgd": ("--sgd",)}.items():
    sys.argv = [job, *small, "--out", f"{folder}/{name}", *flags]
    runpy.run_path(job, run_name="__main__")
"""


def train(folder: Path) -> None:
    """The lab's own training script on one rank, under torch's own gloo; both in one process, for
    torch takes longer to load than to train."""
    environment = dict(
        os.environ, RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", OMP_NUM_THREADS="1"
    )
    environment["MASTER_PORT"] = str(20000 + os.getpid() % 20000)
    command = [sys.executable, "-c", TRAIN, str(JOB), str(folder), *SMALL, "--steps", "4"]
    subprocess.run(command, env=environment, check=True, timeout=100, stdout=subprocess.DEVNULL)


pytestmark = pytest.mark.xdist_group("vault")
"""The trainings are made once."""


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    train(folder)
    return folder


@pytest.fixture(params=["adamw", "sgd"])
def trained(request: pytest.FixtureRequest, trainings: Path) -> Any:
    """(folder with step-0, 2 and 4, its optimizer)."""
    return trainings / request.param, SGD if request.param == "sgd" else ADAMW


def load(path: Path) -> Any:
    return torch.load(path, weights_only=True)


def layout_of(tree: Any) -> Layout:
    """The layout of the model in a checkpoint of the script; its last entry is a tied weight."""
    return Layout.of_shapes([v.shape for v in list(tree["model"].values())[:-1]])


def snapshot_of(path: Path, optimizer: OptimizerConfig) -> Snapshot:
    """What a perfect replica would hold, taken from the trainer's own file."""
    tree = load(path)
    layout = layout_of(tree)
    values = [v.clone() for v in list(tree["model"].values())[:-1]]
    states = tree["optimizer"]["state"]
    named = {p.name: v for p, v in zip(layout.parameters, values, strict=True)}
    return Snapshot(
        tree["step"],
        "",
        layout,
        optimizer,
        named,
        tuple(dict(states.get(i, {})) for i in range(len(values))),
    )


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def listed(tree: Any) -> Any:
    """As a trainer of several optimizers would keep its one: optimizer and scheduler in lists."""
    return tree | {"optimizer": [tree["optimizer"]], "scheduler": (tree["scheduler"],)}


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("template_step", [0, 2, 4])
def test_a_restored_step_is_the_file_the_trainer_wrote_at_it(
    trained: Any, template_step: int, lists: bool, tmp_path: Path
) -> None:
    out, optimizer = trained
    wanted = load(out / "step-4.pt")
    pattern = out / f"step-{template_step}.pt"
    if lists:
        pattern = tmp_path / "pattern.pt"
        torch.save(listed(load(out / f"step-{template_step}.pt")), pattern)
    template = load_template(pattern, layout_of(wanted))
    assert template.step == template_step
    rate = wanted["optimizer"]["param_groups"][0]["lr"]
    template_fill.fill_template(
        template, snapshot_of(out / "step-4.pt", optimizer), lambda step: rate
    )
    template_fill.write_torch_file(
        template.tree, OutputTarget(path=tmp_path / "restored.pt", folder=False)
    )
    restored = load(tmp_path / "restored.pt")
    if lists:
        [restored["optimizer"]], [restored["scheduler"]] = (
            restored["optimizer"],
            restored["scheduler"],
        )
    assert restored["model"]["head.weight"].data_ptr() == (
        restored["model"]["tokens.weight"].data_ptr()
    )
    for tree in (wanted, restored):  # true until the first step of a scheduler's life, no more
        tree["scheduler"].pop("_is_initial", None)
    assert same(wanted["model"], restored["model"])
    assert same(wanted["optimizer"]["param_groups"], restored["optimizer"]["param_groups"])
    assert wanted["optimizer"]["state"].keys() == restored["optimizer"]["state"].keys()
    for number, state in wanted["optimizer"]["state"].items():
        ours = restored["optimizer"]["state"][number]
        assert state.keys() == ours.keys()
        assert all(same(value, ours[kind]) for kind, value in state.items())
    for key in ("scheduler", "step", "arguments"):
        assert same(wanted[key], restored[key]), key


def test_a_file_of_two_optimizers_is_refused(trained: Any, tmp_path: Path) -> None:
    tree = load(trained[0] / "step-2.pt")
    torch.save(tree | {"optimizer": [tree["optimizer"]] * 2}, tmp_path / "two.pt")
    with refused_as(findings.SEVERAL_OPTIMIZERS, optimizers=2):
        load_template(tmp_path / "two.pt", layout_of(tree))


def test_a_trainer_that_saved_its_parameters_themselves_gets_them_back(tmp_path: Path) -> None:
    """named_parameters() where others save state_dict(): leaves that require a gradient."""
    torch.save({"net": {"w": torch.nn.Parameter(torch.zeros(3))}, "step": 0}, tmp_path / "own.pt")
    layout = Layout.of_shapes([(3,)], names=["w"])
    taken = Snapshot(2, "", layout, SGD, {"w": torch.ones(3)}, ({},))
    template = load_template(tmp_path / "own.pt", layout)
    assert template_fill.fill_template(template, taken, lambda step: 0.1).step == 2
    assert template.tree["net"]["w"].tolist() == [1.0, 1.0, 1.0]
    assert template.tree["net"]["w"].requires_grad and template.tree["step"] == 2


@pytest.mark.parametrize("most_bytes", [10, 4000])
def test_no_room_for_a_restored_step_is_told_and_leaves_no_file(
    tmp_path: Path, most_bytes: int
) -> None:
    with no_room(most_bytes), pytest.raises(OSError, match="File too large") as caught:
        out = OutputTarget(path=tmp_path / "out.pt", folder=False)
        template_fill.write_torch_file({"weight": torch.zeros(10_000)}, out)
    assert caught.value.filename == f"{tmp_path}/out.pt"
    assert not list(tmp_path.iterdir())


def test_an_audit_passes_on_the_trainers_own_step_and_names_what_differs(trained: Any) -> None:
    out, optimizer = trained
    snapshot = snapshot_of(out / "step-4.pt", optimizer)
    template = load_template(out / "step-4.pt", snapshot.layout)
    passed = bitwise_audit.audit_snapshot(template, snapshot)
    assert passed.passed
    assert passed.tensors >= len(snapshot.parameters)
    bias = "blocks.0.qkv.bias"
    index = template.names.index(bias)
    own = template.parameters[index]
    own[3] = torch.nextafter(own[3], torch.tensor(float("inf")))
    own[5] = -own[5] if own[5] else 1.0
    failed = bitwise_audit.audit_snapshot(template, snapshot)
    assert [d.name for d in failed.differences] == [bias]
    assert failed.differences[0].elements == 2
    assert (failed.differences[0].ulp or 0) > 1


def test_another_step_another_model_and_another_optimizer_are_refused(trained: Any) -> None:
    out, optimizer = trained
    snapshot = snapshot_of(out / "step-4.pt", optimizer)
    with refused_as(findings.OTHER_STEP, step=2, at=4):
        bitwise_audit.audit_snapshot(load_template(out / "step-2.pt", snapshot.layout), snapshot)
    with refused_as(findings.NO_MODEL, parameters=2):
        load_template(out / "step-4.pt", Layout.of_shapes([(3, 3), (3,)]))
    template = load_template(out / "step-4.pt", snapshot.layout)
    other = SGD if optimizer is ADAMW else ADAMW
    wrong = snapshot_of(out / "step-4.pt", other)
    with refused_as(findings.OTHER_STATES):
        template_fill.fill_template(template, wrong, lambda step: 0.1)


def test_a_model_that_fits_in_two_ways_needs_names() -> None:
    tree = {"model": {"a": torch.zeros(3), "mean": torch.zeros(3), "b": torch.ones(2)}}
    tree["optimizer"] = {"state": {}, "param_groups": [{"params": [0, 1], "lr": 0.1}]}
    layout = Layout.of_shapes([(3,), (2,)])
    with refused_as(findings.AMBIGUOUS_PARAMETERS, file="x", names=("a", "mean")):
        read_template(tree, layout, (), "x")
    assert read_template(tree, layout, ("a", "b"), "x").non_parameters == ("mean",)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_the_moments_of_one_parameter_are_not_the_model(kind: Any) -> None:
    parameter = torch.nn.Parameter(torch.ones(1, 5))
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    optimizer = kind([parameter], lr=0.1, **options)
    parameter.grad = torch.ones(1, 5)
    optimizer.step()
    model = {"weight": parameter.detach()}
    layout = Layout.of_shapes([(1, 5)])
    tree = {"optimizer": optimizer.state_dict(), "model": model, "step": 1}
    found = read_template(tree, layout, (), "x")
    assert found.model is model
    assert found.names == ("weight",)


def test_a_snapshot_is_one_step_whole_while_another_process_steps(tmp_path: Path) -> None:
    layout = Layout.of_shapes([(64, 64), (64,)])
    weights = torch.randn(layout.elements, generator=torch.Generator().manual_seed(1))
    replica = Replica.create(tmp_path / "replica", layout, ADAMW, weights.numpy())
    first = copy.deepcopy(copy_snapshot(tmp_path / "replica", ADAMW))
    gradient = torch.ones(layout.elements).numpy()
    for step in (1, 2, 3):
        replica.apply(step, gradient)
        taken = copy_snapshot(tmp_path / "replica", ADAMW)
        assert (taken.step, taken.digest) == (step, replica.digest)
        flat = torch.cat([v.reshape(-1) for v in taken.parameters.values()])
        assert torch.equal(flat, torch.from_numpy(replica.parameters().copy()))
        assert float(taken.states[1]["step"]) == step
    replica.close()
    assert first.step == 0
    assert first.states == ({}, {})
    with refused_as(OTHER_OPTIMIZER):
        copy_snapshot(tmp_path / "replica", SGD)


def test_what_is_kept_and_assumed_is_said_and_another_scheduler_is_refused(trained: Any) -> None:
    out, optimizer = trained
    snapshot = snapshot_of(out / "step-4.pt", optimizer)
    tree = load(out / "step-0.pt") | {"rng": torch.zeros(4, dtype=torch.uint8)}
    template = read_template(tree, snapshot.layout, (), "x")
    filled = template_fill.fill_template(template, snapshot, lambda step: 0.1)
    assert {"rng", "arguments"} <= {str(one) for one in filled.unchanged}
    if optimizer is ADAMW:  # SGD counts no steps: there the counter is the evidence
        assert COUNTER_FROM_ZERO("step") in filled.assumed
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
        torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    )
    tree = load(out / "step-2.pt") | {"scheduler": plateau.state_dict()}
    with refused_as(findings.UNKNOWN_SCHEDULER):
        read_template(tree, snapshot.layout, (), "x")
