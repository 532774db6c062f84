"""What a job file asks for in memory, against torch's own count of a model and its optimizer."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from support.refused_as import refused_as
from typer.testing import CliRunner

from flowcheck.cli import app
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_commands import FACTORY_FOR_MEMORY
from flowcheck.findings.catalog.starting_a_chain import JOB_TOO_LARGE
from flowcheck.ops.job_setup.checked_job_file import load_checked_job
from flowcheck.ops.job_setup.midstream_join_buckets import expected_buckets_of_jobs
from flowcheck.ops.lifecycle import job_file_memory as plan_job
from flowcheck.ops.lifecycle import up_command

NET = """
import torch
def make(width=64):
    return torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Linear(width, 3))
"""
JOB = """
run = "{0}/run"
[[source]]
file = "job.pcap"
[optimizer]
name = "adamw"
learning_rate = 1e-3
[replica]
keep_bytes = {1}
[persist]
target = "{0}/out"
every_steps = 10
"""
MODEL = '[model]\nfactory = "{}/net.py:make"\n'


def planned(folder: Path, keep_bytes: int, model: str = MODEL) -> tuple[int, str]:
    (folder / "net.py").write_text(NET)
    job = folder / "job.toml"
    job.write_text(JOB.format(folder, keep_bytes) + model.format(folder))
    done = CliRunner().invoke(app, ["plan", str(job), "--json"])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout


def test_a_job_file_is_planned_with_its_copies_readers_and_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 3))
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(64)).sum().backward()
    optimizer.step()
    weights = sum(p.nbytes for p in net.parameters())
    states = sum(v.nbytes for state in optimizer.state.values() for v in state.values())
    code, said = planned(tmp_path, 0)
    told = json.loads(said)
    parts = {part["what"]: part["bytes"] for part in told["parts"]}
    assert (code, told["fits"]) == (0, True)
    assert (parts["parameters"], parts["gradients"]) == (weights, 2 * weights)
    assert parts["optimizer states"] == states
    assert parts["the step being made"] == parts["a step that is saved"] == weights + states
    assert told["bytes"] == sum(parts.values())
    codes = {part["part"]: part["bytes"] for part in told["parts"]}
    assert (codes["optimizer_states"], codes["saved_step"]) == (states, weights + states)
    assert len(codes) == len(parts), "a code for each line"
    assert told["advice"] == []
    assert told["staging_bytes"] == 2 * weights
    kept = json.loads(planned(tmp_path, 2 * (weights + states))[1])
    named = {part["what"]: part["bytes"] for part in kept["parts"]}
    assert named["earlier steps"] == 2 * (weights + states)
    assert "a step that is saved" not in named
    monkeypatch.setattr(plan_job, "ordinary_bytes_free", lambda: told["bytes"] - 1)
    code, said = planned(tmp_path, 0)
    assert (code, json.loads(said)["fits"]) == (1, False)
    with refused_as(FACTORY_FOR_MEMORY, kind=ConfigError):
        planned(tmp_path, 0, model="")


def test_a_chain_that_does_not_fit_is_refused_with_the_sum_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = "[gradient_log]\ntaken_steps = 3\n"
    told = json.loads(planned(tmp_path, 0, model=MODEL + log)[1])
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 3))
    weights = sum(p.nbytes for p in net.parameters())
    parts = {part["what"]: part["bytes"] for part in told["parts"]}
    assert parts["gradients of applied steps"] >= 2 * 3 * weights
    assert "gradient log" not in parts
    monkeypatch.setattr(plan_job, "huge_bytes_free", lambda: 0)
    monkeypatch.setattr(plan_job, "ordinary_bytes_free", lambda: told["bytes"] - 1)
    monkeypatch.setattr(up_command, "check_capture_ports", lambda sources, job: None)
    with refused_as(
        JOB_TOO_LARGE,
        kind=ConfigError,
        account=re.compile("gradients of applied steps [0-9,]+ "),
        bytes=told["bytes"],
        free_bytes=told["bytes"] - 1,
    ):
        up_command.up(tmp_path / "job.toml", None, as_json=True)
    assert not (tmp_path / "run").exists()


BUFFERED = """
import torch
def make():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
"""
COUNTED = """
from pathlib import Path
def make():
    import torch
    with Path(__file__).with_suffix(".made").open("a") as file:
        file.write("m")
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 3))
def loss(net):
    import torch
    return net(torch.ones(2, 8)).sum()
"""


@pytest.mark.parametrize("loss", [False, True])
def test_a_model_is_made_once_for_all_that_a_start_asks_of_it(tmp_path: Path, loss: bool) -> None:
    (tmp_path / "net.py").write_text(COUNTED)
    stated = MODEL + ('loss = "{}/net.py:loss"\n' if loss else "")
    job = tmp_path / "job.toml"
    text = JOB.format(tmp_path, 0).replace("[replica]", "[replica]\njoins = true")
    job.write_text(text + stated.format(tmp_path, tmp_path))
    config = load_checked_job(job)
    (expected,) = expected_buckets_of_jobs(config)
    plan_job.check_memory_fits(config)
    assert (tmp_path / "net.made").read_text() == "m"
    assert expected is not None and expected.parameters[0].sizes == (8, 8)
    assert bool(expected.assumed) is not loss  # the order of gradients is known from its backward


def test_a_staging_that_cannot_hold_an_iteration_is_told_before_it_is_full(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET.replace("64", "2048"))
    job, settings = tmp_path / "job.toml", JOB.format(tmp_path, 0) + MODEL.format(tmp_path)
    job.write_text(settings + "[staging]\nsize_bytes = 33000000\n")
    told = " ".join(CliRunner().invoke(app, ["plan", str(job)]).stdout.split())
    assert "staging.size_bytes = 33,000,000 is less than start-up and one iteration" in told
    account = json.loads(CliRunner().invoke(app, ["plan", str(job), "--json"]).stdout)
    (advice,) = account["advice"]
    assert advice["code"] == "memory.staging_below_iteration"
    stated = {"stated": 33_000_000, "needed": account["staging_bytes"]}
    assert advice["arguments"].items() >= stated.items()
    job.write_text(settings + "[staging]\nsize_bytes = 35000000\n")
    assert "staging.size_bytes" not in CliRunner().invoke(app, ["plan", str(job)]).stdout


def test_each_collective_of_a_plan_has_a_role_and_the_words_for_it(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(BUFFERED)
    model = f"{tmp_path}/net.py:make"
    done = CliRunner().invoke(app, ["plan", model, "--world", "2", "--static-graph", "--json"])
    told = json.loads(done.stdout)
    parts = (told["start_up"], *told["first"], told["each"])
    named = {
        (one["planned"]["role"], one["planned"]["bucket"], one["planned"]["what"])
        for part in parts
        for one in part
    }
    assert named == {
        ("parameter_count", None, "parameter count"),
        ("parameter_shapes", None, "parameter shapes"),
        ("initial_weights", None, "initial weights"),
        ("buffers", None, "buffers"),
        ("used_parameters", None, "map of used parameters"),
        ("bucket_order", None, "bucket order"),
        ("bucket_sizes", None, "bucket sizes"),
        ("bucket", 0, "bucket 0"),
    }
    lines = {(one["part"], one["what"]) for one in told["memory"]["parts"]}
    assert lines == {
        ("parameters", "parameters"),
        ("optimizer_states", "optimizer states"),
        ("step_in_progress", "the step being made"),
        ("earlier_steps", "earlier steps"),
        ("gradients", "gradients"),
        ("staging", "staging"),
        ("rings", "rings"),
    }
