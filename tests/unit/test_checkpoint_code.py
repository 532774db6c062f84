"""Code that a checkpoint's manifest names runs where somebody here states it, and nowhere else."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from support.formatted import run
from support.refused_as import refused_as
from support.steps import layout_of, made

import flowcheck
from flowcheck.config import JobConfig, OptimizerConfig, SourceConfig, encode_config
from flowcheck.errors import ConfigError, FlowCheckError
from flowcheck.findings.catalog.refused_user_code import OF_A_CHECKPOINT, OF_ANOTHER_USER
from flowcheck.findings.catalog.unloadable_checkpoints import CODE_WITHOUT_GROUPS
from flowcheck.ops.restore.step_lookup import CodeApproval, step_in_checkpoint
from flowcheck.replica.checkpoint import checkpoint_save
from flowcheck.replica.checkpoint.trainer_state import trainer_state
from flowcheck.replica.checkpoint_files.manifest import MANIFEST, encode_manifest, load_manifest
from flowcheck.replica.model_replica import Replica
from flowcheck.stages.run_directory.service_account import account

SCRIPT = """
import pathlib
import torch

def _ran():
    pathlib.Path({ran!r}).touch()

def halves(every=2):
    _ran()
    return lambda step: 0.5 ** (step // every)

def make(named):
    _ran()
    own = [p for _, p in named]
    first = torch.optim.SGD(own[:1], lr=0.1, momentum=0.9)
    second = torch.optim.AdamW(own[1:], lr=1e-2)
    return {{"one": first, "two": second}}
"""
STEPS = 3


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """Is there once a line of the script's ran."""
    (tmp_path / "train.py").write_text(SCRIPT.format(ran=str(tmp_path / "ran")))
    return tmp_path / "ran"


def kept(folder: Path, rule: OptimizerConfig) -> Path:
    """A checkpoint that a replica of this rule wrote."""
    folder.mkdir(parents=True, exist_ok=True)
    net, _ = made()
    layout = layout_of(net)
    flat = np.concatenate([p.detach().numpy().reshape(-1) for p in net.parameters()])
    replica = Replica.create(folder / "state", layout, rule, flat)
    for step in range(1, STEPS + 1):
        replica.apply(step, np.full(layout.elements, 0.5 / step, np.float32))
    written = checkpoint_save.save(replica, folder / "kept")
    replica.close()
    return written


def told_of(folder: Path, **more: Any) -> None:
    """Makes the manifest name other settings; its seal is that of whoever made it."""
    manifest = load_manifest(folder)
    rule = msgspec.structs.replace(manifest.optimizer, **more)
    changed = msgspec.structs.replace(manifest, optimizer=rule)
    (folder / MANIFEST).write_bytes(encode_manifest(changed))


def tried(*words: object) -> int:
    """The exit code of a command, which may refuse."""
    try:
        return run(*words)[0]
    except FlowCheckError:
        return 2


def schedule(folder: Path) -> OptimizerConfig:
    return OptimizerConfig(name="adamw", learning_rate=0.01, schedule=f"{folder}/train.py:halves")


@pytest.mark.parametrize("form", ["flowcheck", "torch", "dcp", "safetensors", "deepspeed"])
@pytest.mark.parametrize(
    "named",
    [
        {"schedule": "pathlib:Path.touch", "schedule_arguments": {"self": "ran"}},
        {"schedule": "train.py:halves"},
        {"factory": "train.py:make", "name": ""},
    ],
)
def test_what_somebody_elses_checkpoint_names_is_never_run(
    tmp_path: Path,
    ran: Path,
    form: str,
    named: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = kept(tmp_path, OptimizerConfig(name="adamw", learning_rate=0.01))
    monkeypatch.chdir(tmp_path)
    told_of(folder, **named)
    out = tmp_path / "out"
    tried("restore", "--checkpoint", folder, "--format", form, "--out", out)
    tried("restore", "--checkpoint", folder, "--template", out, "--out", tmp_path / "again")
    tried("restore", "--checkpoint", folder, "--format", form, "--like", out, "--out", out / "b")
    flowcheck.load(folder)
    with refused_as(OF_A_CHECKPOINT, kind=ConfigError):
        trainer_state(step_in_checkpoint(folder).snapshot)
    assert not ran.exists()


@pytest.mark.parametrize("key", ["schedule", "factory"])
def test_a_step_is_given_as_it_was_written_where_its_code_is_not_run(
    tmp_path: Path, ran: Path, key: str
) -> None:
    """The same step as its own code, which is stated here, works it out."""
    script = f"{tmp_path}/train.py"
    rule = schedule(tmp_path) if key == "schedule" else OptimizerConfig(factory=f"{script}:make")
    folder = kept(tmp_path, rule)
    worked_out = trainer_state(step_in_checkpoint(folder, by=CodeApproval((rule,))).snapshot)
    ran.unlink()
    found = step_in_checkpoint(folder)
    assert found.stored_state is not None and not ran.exists()
    plain = replace(found.stored_state, model={}, optimizer=None, masters=None, averages=None)
    assert plain == replace(worked_out, model={}, optimizer=None, masters=None, averages=None)
    mine, theirs = found.stored_state.optimizer, worked_out.optimizer
    assert mine is not None and theirs is not None
    assert mine["param_groups"] == theirs["param_groups"]
    assert mine["state"].keys() == theirs["state"].keys()
    for number, states in theirs["state"].items():
        for kind, value in states.items():
            assert torch.equal(mine["state"][number][kind], value), (number, kind)


def test_a_job_file_that_states_the_same_code_has_it_run(tmp_path: Path, ran: Path) -> None:
    rule = schedule(tmp_path)
    folder = kept(tmp_path, rule)
    net, optimizer = made()
    trainers = tmp_path / "trainers.pt"
    torch.save(
        {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": 0}, trainers
    )
    words = ("restore", "--checkpoint", folder, "--template", trainers, "--out", tmp_path / "out")
    ran.unlink()
    stated = JobConfig(source=(SourceConfig(interface="lo"),), optimizer=rule)
    other = msgspec.structs.replace(rule, schedule_arguments={"every": 5})
    for job, code in ((None, 2), (other, 2), (rule, 0)):
        own = tmp_path / f"run-{code}"
        own.mkdir(exist_ok=True, mode=0o700)
        if job is not None:
            said = msgspec.structs.replace(stated, optimizer=job)
            (own / "config.json").write_bytes(encode_config(said))
        assert tried(*words, "--run", own, "--force") == code
        assert ran.exists() == (code == 0)
    ran.unlink()
    assert tried(*words, "--run-code", "--force") == 0
    assert ran.exists()


def test_a_checkpoint_in_the_run_directory_of_its_job_has_its_code_run(
    tmp_path: Path, ran: Path
) -> None:
    rule = schedule(tmp_path)
    folder = kept(tmp_path / "run" / "rescued", rule)
    stated = JobConfig(source=(SourceConfig(interface="lo"),), optimizer=rule)
    (tmp_path / "run" / "config.json").write_bytes(encode_config(stated))
    ran.unlink()
    out = tmp_path / "out.pt"
    assert tried("restore", "--checkpoint", folder, "--format", "torch", "--out", out) == 0
    assert ran.exists()


def test_a_checkpoint_of_before_groups_were_written_says_what_to_do(
    tmp_path: Path, ran: Path
) -> None:
    folder = kept(tmp_path, OptimizerConfig(name="adamw", learning_rate=0.01))
    manifest = load_manifest(folder)
    (folder / MANIFEST).write_bytes(encode_manifest(msgspec.structs.replace(manifest, plain={})))
    told_of(folder, schedule=f"{tmp_path}/train.py:halves")
    with refused_as(CODE_WITHOUT_GROUPS):
        step_in_checkpoint(folder)
    assert not ran.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="root reads run directories of every user")
def test_root_that_loads_a_run_of_somebody_elses_runs_none_of_its_code(
    tmp_path: Path, ran: Path
) -> None:
    rule = schedule(tmp_path)
    run_folder = tmp_path / "run"
    kept(run_folder, rule)
    said = JobConfig(
        source=(SourceConfig(interface="lo"),), optimizer=rule, checkpoint=str(run_folder / "kept")
    )
    (run_folder / "config.json").write_bytes(encode_config(said))
    assert flowcheck.load(run_folder)["step"] == STEPS
    assert ran.exists()
    ran.unlink()
    told = account(None).user  # whose chains root starts, and trusts the folders of
    os.chown(run_folder, told, told)
    try:
        with refused_as(OF_ANOTHER_USER, kind=ConfigError):
            flowcheck.load(run_folder)
    finally:
        os.chown(run_folder, 0, 0)
    assert not ran.exists()
