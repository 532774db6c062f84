"""A step held against the trainer's file, given back in its form, kept when a chain is killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from support.chain import LIMIT_S, Command, flowcheck, wait_until
from support.refused_as import refused_as

from flowcheck.findings.catalog.unreadable_checkpoints import NOT_TORCH_SAVE
from flowcheck.lab.synthetic_traffic.synthetic_job import SyntheticJob, make_traffic, write_pcap
from flowcheck.ops.trainer_checkpoint import audit_command
from flowcheck.replica.state_file.file_header import peek_versions
from flowcheck.stages.run_directory.run_dir import RunDir

pytestmark = pytest.mark.xdist_group("give back")
"""The training is made once."""
STEPS = 8
RATE = 0.01
FACTORY = "def halves(every):\n    return lambda step: 0.5 ** (step // every)\n"


def trained(folder: Path, job: SyntheticJob) -> None:
    """The capture of a job, and the checkpoints torch's own training on its gradients writes."""
    truth = make_traffic(job)
    write_pcap(folder / "job.pcap", truth.frames_at_port(0))
    flat = torch.frombuffer(bytearray(truth.weights), dtype=torch.float32)
    parameters = [
        part.reshape(shape).clone()
        for part, shape in zip(
            flat.split([torch.Size(s).numel() for s in job.shapes]), job.shapes, strict=True
        )
    ]
    optimizer = torch.optim.AdamW(parameters, lr=RATE)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 ** (step // 3))
    for step in range(job.steps + 1):
        if step:
            raw = torch.frombuffer(bytearray(truth.gradients[step - 1]), dtype=torch.float32)
            parts = raw.split([p.numel() for p in parameters])
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.grad = part.reshape(parameter.shape)
            optimizer.step()
            scheduler.step()
        kept = {
            "net": {f"layer{i}": p for i, p in enumerate(parameters)},
            "opt": optimizer.state_dict(),
            "schedule": scheduler.state_dict(),
            "global_step": step,
            "note": "not of any step",
        }
        torch.save(kept, folder / f"step-{step}.pt")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    trained(folder, SyntheticJob(steps=STEPS))
    (folder / "job.py").write_text(FACTORY)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "job"))


def job_file(folder: Path, rate: float) -> Path:
    path = folder / f"job-{rate}.toml"
    path.write_text(
        f'[[source]]\nfile = "{folder}/job.pcap"\n[replica]\nkeep_bytes = 60000\n'
        f'[optimizer]\nname = "adamw"\nlearning_rate = {rate}\n'
        f'schedule = "{folder}/job.py:halves"\nschedule_arguments = {{ every = 3 }}\n'
    )
    return path


@pytest.fixture
def chain(folder: Path) -> Iterator[Path]:
    """The run directory of a chain that has taken every step."""
    with running(folder, RATE) as run:
        yield run


@contextmanager
def running(folder: Path, rate: float) -> Iterator[Path]:
    """Nothing of it is left behind, be it that it never comes so far."""
    where = RunDir(folder / f"run-{rate}")
    try:
        with Command("up", job_file(folder, rate), "--run", where.root):
            wait_until(lambda: lines(where.steps) == STEPS, LIMIT_S, "all steps")
            yield where.root
    finally:
        wait_until(lambda: not where.stage_pids(), 60, "the end of the killed chain's stages")
        where.remove()


def lines(file: Path) -> int:
    return len(file.read_bytes().splitlines()) if file.exists() else 0


@pytest.mark.slow
def test_every_step_is_audited_and_the_newest_comes_back_as_the_trainers_own_file(
    folder: Path, chain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "never audited" in flowcheck("status", "--run", chain)[1]
    for step in range(1, STEPS):
        code = audit_command.run(chain, folder / f"step-{step}.pt", as_json=True)
        assert (code, json.loads(capsys.readouterr().out)["step"]) == (0, step)
    code, out, err = flowcheck("audit", folder / f"step-{STEPS}.pt", "--run", chain, "--json")
    assert code == 0, out + err
    assert json.loads(out)["step"] == STEPS
    (job,) = json.loads(flowcheck("status", "--run", chain, "--json")[1])["jobs"]
    assert job["audited_step"] == STEPS
    restored = folder / "restored.pt"
    words = ("restore", "--run", chain, "--template", folder / "step-0.pt", "--out", restored)
    code, out, err = flowcheck(*words)
    assert code == 0, out + err
    own, ours = (torch.load(p, weights_only=True) for p in (folder / f"step-{STEPS}.pt", restored))
    for tree in (own, ours):
        tree["schedule"].pop("_is_initial", None)  # true of a fresh scheduler alone
    assert str(own) == str(ours)
    for name, value in own["net"].items():
        assert torch.equal(value, ours["net"][name])
    for number, state in own["opt"]["state"].items():
        assert all(torch.equal(v, ours["opt"]["state"][number][k]) for k, v in state.items())
    assert flowcheck(*words)[0] == 2, "an existing file is not overwritten unasked"


@pytest.mark.nightly
def test_any_step_that_is_kept_is_given_by_number_and_format_while_the_chain_runs(
    folder: Path, chain: Path
) -> None:
    kept = peek_versions(RunDir(chain).replica)[1]
    assert len(kept) > 1
    for step in (min(kept), max(kept)):
        out = folder / f"step-{step}-again.pt"
        keys = "model=net,optimizer=opt,scheduler=schedule,step=global_step"
        words = ("--format", "torch", "--keys", keys, "--like", folder / "step-0.pt")
        code, told, err = flowcheck(
            "restore", "--run", chain, "--step", str(step), *words, "--out", out, "--json"
        )
        assert (code, json.loads(told)["step"]) == (0, step), err
        own, ours = (torch.load(p, weights_only=True) for p in (folder / f"step-{step}.pt", out))
        assert own["net"].keys() == ours["net"].keys() and ours["global_step"] == step
        assert all(torch.equal(value, ours["net"][name]) for name, value in own["net"].items())
        for number, state in own["opt"]["state"].items():
            assert all(torch.equal(v, ours["opt"]["state"][number][k]) for k, v in state.items())
        assert own["schedule"]["last_epoch"] == ours["schedule"]["last_epoch"]
        assert flowcheck("verify", out)[0] == 0
    code, _, err = flowcheck(
        "restore", "--run", chain, "--step", "1000", "--format", "dcp", "--out", folder / "none"
    )
    assert code == 2 and "step 1000 is not kept" in err


@pytest.mark.slow
@pytest.mark.nightly
def test_a_wrong_learning_rate_is_found_by_an_audit_of_any_step(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(folder, RATE * 1.001) as run:
        first = audit_command.run(run, folder / "step-1.pt", as_json=True), capsys.readouterr().out
        last = flowcheck("audit", folder / f"step-{STEPS}.pt", "--run", run, "--json")[:2]
        for (code, out), ulp_is_told in ((first, False), (last, True)):
            found = json.loads(out)
            assert code == 1
            assert found["first_difference"] == "layer0"
            assert (found["differences"][0]["ulp"] is not None) == ulp_is_told
        assert f"audit FAILED at step {STEPS}" in flowcheck("status", "--run", run)[1]
        with refused_as(NOT_TORCH_SAVE):
            audit_command.run(run, folder / "job.py", as_json=True)


@pytest.mark.slow
def test_the_replica_of_a_killed_chain_is_kept_and_said_before_another_takes_its_place(
    folder: Path, chain: Path
) -> None:
    os.kill(RunDir(chain).stage_pids()["supervisor"], signal.SIGKILL)
    with Command("up", job_file(folder, RATE), "--run", chain) as again:
        where = RunDir(chain)
        own = again.process.pid
        wait_until(lambda: where.stage_pids().get("supervisor") == own, 60, "the next supervisor")
        wait_until(lambda: "extract" in where.stage_pids(), 60, "the next chain")
        again.process.send_signal(signal.SIGTERM)
        code, out, err = again.result()
    assert code in (0, 1), out + err  # it may have been told to end before its first step
    assert f"its replica is kept in {chain}/rescued/step-{STEPS}" in err
    code, out, err = flowcheck(
        "restore",
        *("--checkpoint", chain / "rescued" / f"step-{STEPS}", "--template", folder / "step-2.pt"),
        *("--out", folder / "again.pt", "--json"),
    )
    assert code == 0, err
    assert json.loads(out)["step"] == STEPS
    code, told, _ = flowcheck("status", "--run", chain)
    assert code == 1 and "SIGTERM" in told
    assert (chain / "update.log").exists()
