"""A chain is killed and its memory thrown away; a save of an earlier step and the gradients on disk
give its last step, as torch's own optimizer has it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from support.chain import LIMIT_S, Command, flowcheck, signal_stage, wait_until
from support.netib import generate
from test_tainted_steps import LEARNING_RATE, job, trained

from flowcheck.ops.restore.step_lookup import newest_step
from flowcheck.replica.checkpoint.checkpoint_save import save_trainer_state
from flowcheck.replica.checkpoint.trainer_state import trainer_state
from flowcheck.replica.step_journal.journal_figures import read_figures
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step

STEPS, SAVED = 8, 6
"""SAVED: a step that the replica has still when it is at the last."""


@pytest.mark.timeout(300)
def test_the_last_step_comes_again_when_the_machines_memory_is_gone(tmp_path: Path) -> None:
    made = generate(job("LL128"), tmp_path)
    run, kept, saved = RunDir(tmp_path / "run"), tmp_path / "kept", tmp_path / "saved"
    (tmp_path / "job.toml").write_text(
        f'[[source]]\nfile = "{made.files[0]}"\n'
        f'[optimizer]\nname = "adamw"\nlearning_rate = {LEARNING_RATE}\n'
        f'[gradient_log]\nfolder = "{kept}"\n'
    )

    def all_kept() -> bool:
        figures = read_figures(run.kept_steps)
        return figures is not None and figures.last_step == STEPS

    with Command("up", tmp_path / "job.toml", "--run", run.root) as chain:
        wait_until(all_kept, LIMIT_S, "all steps on disk")
        wait_until(lambda: len(run.steps.read_bytes().splitlines()) == STEPS, LIMIT_S, "the step")
        found = newest_step(run, settle=False, step=Step(SAVED)).snapshot
        save_trainer_state(trainer_state(found), saved, found.layout)
        stages = run.stage_pids()
        chain.process.kill()
        for stage in stages:
            signal_stage(run, stage)
        chain.process.wait(60)
        wait_until(lambda: not run.stage_pids(), LIMIT_S, "the end of the killed chain's stages")
    # Another chain that starts meanwhile may remove it as well: its owner is dead.
    shutil.rmtree(run.memory, ignore_errors=True)
    shutil.rmtree(run.root)
    words = ["restore", "--checkpoint", saved, "--gradients", kept, "--format", "torch"]
    code, out, err = flowcheck(*words, "--out", tmp_path / "last.pt")
    assert code == 0, out + err
    parameters, optimizer = trained(made.truth, STEPS)
    again = torch.load(tmp_path / "last.pt")
    assert again["step"] == STEPS
    for own, value in zip(parameters, again["model"].values(), strict=True):
        assert torch.equal(own, value)
    state = optimizer.state_dict()["state"]
    assert again["optimizer"]["state"].keys() == state.keys()
    for number, values in again["optimizer"]["state"].items():
        for name, value in values.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(state[number][name]))
