"""What an audit says of the optimizer's settings in a file: torch's optimizers and schedules write
the files, at the very step that the replica is at."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.scripted import Script, replica_of
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, StepLR

from flowcheck.config import JobConfig, OptimizerConfig, encode_config
from flowcheck.config.capture_config import SourceConfig
from flowcheck.findings.catalog.trainer_settings import SCHEDULE_NOT_STATED
from flowcheck.ops.restore.step_lookup import observed_files_of
from flowcheck.ops.trainer_checkpoint import audit_command as verb
from flowcheck.ops.trainer_checkpoint.audit_command import WRONG
from flowcheck.stages.run_directory.run_dir import RunDir

STEPS = 3
CYCLE: dict[str, Any] = {"max_lr": 0.1, "total_steps": 20}
CYCLING = OptimizerConfig(
    name="adamw", learning_rate=0.01, schedule="OneCycleLR", schedule_arguments=CYCLE
)
PLAIN = OptimizerConfig(name="adamw", learning_rate=0.01)
Schedule = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]


def adamw(net: nn.Module, **settings: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), **{"lr": 0.01, **settings})


def cycle(optimizer: torch.optim.Optimizer) -> OneCycleLR:
    return OneCycleLR(optimizer, **CYCLE)


class Followed:
    """A script and the run whose replica takes its gradients; files of the last step."""

    def __init__(self, folder: Path, stated: OptimizerConfig, **settings: Any) -> None:
        self.script = Script(lambda net: adamw(net, **settings))
        self.where = RunDir(folder / "run")
        self.where.replica.parent.mkdir(parents=True)
        config = JobConfig(source=(SourceConfig(interface="eth1"),), optimizer=stated)
        self.where.config.write_bytes(encode_config(config))
        self.replica = replica_of(self.script, stated, self.where.replica)
        self._file = folder / "file.pt"

    def take(self, steps: int, behind: Callable[[], None] = lambda: None) -> None:
        for _ in range(steps):
            self.replica.apply(self.replica.step + 1, self.script.backward())
            self.script.step()
            behind()

    def audit(self, schedule: Any = None) -> int:
        """The exit code; the file is as torch has it now, with the state of a schedule or none."""
        tree: dict[str, Any] = {"model": self.script.net.state_dict()}
        tree |= {"optimizer": self.script.optimizer.state_dict(), "step": self.replica.step}
        tree |= {} if schedule is None else {"schedule": schedule.state_dict()}
        torch.save(tree, self._file)
        return verb.run(self.where.root, self._file, as_json=False)


@pytest.fixture
def followed(shm: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Followed]:
    def make(stated: OptimizerConfig, **settings: Any) -> Followed:
        monkeypatch.setattr(verb, "optimizer_of_run", lambda run: stated)  # without a learned job
        return Followed(shm, stated, **settings)

    return make


def test_files_of_every_habit_say_nothing_else(
    followed: Callable[..., Followed], capsys: pytest.CaptureFixture[str]
) -> None:
    """Written behind the schedule's step, before it, and with rates that the script sets itself:
    those of the step before, or of the one to come."""
    own = followed(CYCLING)
    schedule = cycle(own.script.optimizer)
    assert own.audit(schedule) == own.audit() == 0
    for step in range(1, STEPS + 1):
        own.take(1)
        assert own.audit() == 0
        capsys.readouterr()
        assert own.audit(schedule) == 0
        early = f"last_epoch = {step - 1}, one step less than the optimizer: the file was written"
        assert early in capsys.readouterr().out
        schedule.step()
        assert own.audit(schedule) == own.audit() == 0
        said = capsys.readouterr().out.splitlines()
        assert len(said) == 2 and all("equal, bit for bit" in line for line in said)


def test_a_schedule_that_is_not_stated_or_another_is_named_with_its_rate(
    followed: Callable[..., Followed], capsys: pytest.CaptureFixture[str]
) -> None:
    own = followed(PLAIN)
    schedule = StepLR(own.script.optimizer, STEPS, gamma=0.5)
    own.take(STEPS - 1, schedule.step)
    assert own.audit(schedule) == 0
    own.take(1, schedule.step)
    assert own.audit(schedule) == 1
    said = capsys.readouterr().out
    assert "equal, bit for bit" in said
    assert f"group 0: lr = 0.005 at step {STEPS}, stated is 0.01" in said
    keys = ("step_size", "gamma", "base_lrs", "last_epoch")
    assert str(SCHEDULE_NOT_STATED(keys)) in said
    assert f"changed no bit until step {STEPS}, or were changed at it; the replica's next" in said
    own.take(1, schedule.step)
    assert own.audit(schedule) == 1
    said = capsys.readouterr().out
    assert " differ" in said.splitlines()[0] and WRONG in said
    assert "flowcheck base" not in said, "it would not help"
    assert own.audit() == 1  # set by hand


@pytest.mark.parametrize(
    ("schedule", "told"),
    [
        (lambda own: OneCycleLR(own, 0.1, total_steps=30), "total_steps = 30, stated is 20"),
        (lambda own: OneCycleLR(own, 0.2, total_steps=20), "group 0: max_lr = 0.2, stated is 0.1"),
        (
            lambda own: LambdaLR(own, lambda step: 1 / (step + 1)),
            "a schedule (base_lrs",
        ),
    ],
)
def test_another_schedule_than_the_stated_one_is_told_apart(
    followed: Callable[..., Followed],
    schedule: Schedule,
    told: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = followed(CYCLING)
    theirs = schedule(own.script.optimizer)
    own.take(STEPS, theirs.step)
    assert own.audit(theirs) == 1
    assert told in capsys.readouterr().out


def test_a_schedule_that_steps_once_an_epoch_is_told_by_its_count(
    followed: Callable[..., Followed], capsys: pytest.CaptureFixture[str]
) -> None:
    own = followed(CYCLING)
    theirs = cycle(own.script.optimizer)
    for _ in range(2):
        own.take(STEPS)
        theirs.step()
    assert own.audit(theirs) == 1
    count = "last_epoch = 2 at step 6, stated is 6 (optimizer.schedule_every = 1)"
    assert f"schedule: {count}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "told", "code"),
    [
        ({"weight_decay": 0.3}, "group 0: weight_decay = 0.3, stated is 0.01", 1),
        ({"betas": (0.8, 0.999)}, "group 0: betas = (0.8, 0.999), stated is (0.9, 0.999)", 1),
        ({"maximize": True}, "group 0: maximize = True, stated is False", 1),
        (
            {"eps": 0.1e-7 * 3 / 3},
            "group 0: eps = 1.0000000000000002e-08, stated is 1e-08:",
            0,
        ),
        ({"foreach": True}, "group 0: its kernels are foreach, stated is loop", 0),
    ],
)
def test_each_setting_is_named_before_any_step_felt_it(
    followed: Callable[..., Followed],
    settings: dict[str, Any],
    told: str,
    code: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = followed(PLAIN, **settings)
    assert own.audit() == code
    said = capsys.readouterr().out
    assert told in said and "equal, bit for bit" in said
    assert ("no step was made with these settings yet" in said) == bool(code)
    line = json.loads(own.where.audits.read_text())
    name = told.partition(" = ")[0] if code else None
    assert (line["passed"], line["first_difference"]) == (not code, name)


def test_an_audit_writes_down_what_else_is_in_the_file_for_a_restore(
    followed: Callable[..., Followed],
) -> None:
    own = followed(PLAIN)
    own.script.net.register_buffer("mask", torch.ones(3, dtype=torch.bool))
    own.script.net.register_buffer("count", torch.zeros(()))
    for _ in range(2):
        own.take(1)
        own.script.net.count += 1
        assert own.audit() == 0
    one, other = observed_files_of(own.where)
    assert (one.step, other.step) == (1, 2) and one.non_parameter_digests.keys() == {
        "mask",
        "count",
    }
    assert one.non_parameter_digests["mask"] == other.non_parameter_digests["mask"]
    assert one.non_parameter_digests["count"] != other.non_parameter_digests["count"]
    with torch.no_grad():
        own.script.parameters[0].add_(1)
    assert own.audit() == 1
    assert len(observed_files_of(own.where)) == 2, "a file that differs may be of another job"


def test_an_audit_that_a_full_disk_cut_short_hides_no_other(
    followed: Callable[..., Followed],
) -> None:
    own = followed(PLAIN)
    own.script.net.register_buffer("mask", torch.ones(3, dtype=torch.bool))
    own.take(1)
    assert own.audit() == 0
    whole = own.where.audits.read_bytes()
    own.where.audits.write_bytes(whole + whole[: len(whole) // 2] + whole + whole)
    assert [one.step for one in observed_files_of(own.where)] == [1, 1]
