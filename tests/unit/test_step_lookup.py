"""`restore --also`: buffers that are the same in files of the trainer's are taken to stay."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import torch
from support.formatted import run
from support.refused_as import refused_as
from support.steps import given_of, layout_of, made, trained

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_restores import BUFFERS_OF_A_FILE
from flowcheck.findings.catalog.restored_state import NAMES, TENSORS_STAY
from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint import checkpoint_save


@pytest.mark.parametrize("form", [None, "dcp"])
def test_a_checkpoint_is_given_back_with_more_files_of_the_trainers(
    form: str | None, tmp_path: Path
) -> None:
    """From the command line, without a run: what each of them rests on."""
    net, optimizer = made()
    net.register_buffer("mask", torch.ones(3))
    files = {}
    for step in range(4):
        files[step] = tmp_path / f"{step}.pt"
        tree = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(tree, files[step])
        trained(net, optimizer, step + 1, step + 1)
    checkpoint_save.save_trainer_state(
        given_of(net, optimizer, 4), tmp_path / "kept", layout_of(net)
    )
    words = ["restore", "--checkpoint", tmp_path / "kept", "--out", tmp_path / "out", "--json"]
    words += ["--template", files[1]] if form is None else ["--format", form, "--like", files[1]]
    if form is None:
        code, said = run(*words)
        told = json.loads(said)
        assert (code, told["not_full"], told["untold"]) == (0, [], ["mask"])
    code, said = run(*words, "--force", "--also", files[0], "--also", files[3])
    told = json.loads(said)
    written = [tmp_path / "out"] if form is None else (tmp_path / "out").iterdir()
    sizes = {one.name: one.stat().st_size for one in written if one.name != "manifest.json"}
    assert (told["format"], told["bytes"]) == (form or "torch", sum(sizes.values()))
    assert told["seconds"] >= 0 and told["out"] == str(tmp_path / "out")
    assert {"step", "from", "assumed", "not_full", "older", "audited"} <= told.keys()
    assert (code, told["not_full"]) == (0, []) and not told["older"]
    stays = TENSORS_STAY(names=NAMES(["mask"]), tensors=1, steps=[0, 1, 3])
    assert stays in msgspec.convert(told["assumed"], list[Finding])
    with refused_as(BUFFERS_OF_A_FILE, kind=ConfigError, key="--also"):
        run(*words[:6], "--format", "dcp", "--also", files[0], "--force")
