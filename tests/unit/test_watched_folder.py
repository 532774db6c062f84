"""What a look at a folder takes for a checkpoint, and when its writer is done with it.

Files are written by torch and safetensors, and torn as a writer that was stopped leaves them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from flowcheck.findings.catalog.file_audits import NO_DIRECTORY, NO_METADATA, NOT_A_CHECKPOINT
from flowcheck.findings.catalog.unreadable_checkpoints import INCOMPLETE_SAFETENSORS
from flowcheck.ops.trainer_checkpoint.audit_watch import candidates
from flowcheck.ops.trainer_checkpoint.audit_watch.candidates import (
    is_other_file,
    look_at,
    stamp_of,
    unfinished_reason,
)
from flowcheck.ops.trainer_checkpoint.audit_watch.file_audit import named_step

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
STATE = {"w": torch.arange(64.0)}


def names(folder: Path) -> set[str]:
    found = (one for one in look_at(folder).candidates if not is_other_file(one))
    return {str(one.path.relative_to(folder)) for one in found}


def test_each_ranks_file_and_each_folder_of_a_format_is_one_candidate(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / "step-4").mkdir(exist_ok=True)
        torch.save(STATE, tmp_path / f"step-4/rank-{rank}.pt")
    dcp.save(STATE, checkpoint_id=tmp_path / "step-8")
    for folder in ("checkpoint-12", "global_step16"):
        (tmp_path / folder).mkdir()
    save_file(STATE, tmp_path / "checkpoint-12/model.safetensors")
    torch.save(STATE, tmp_path / "global_step16/mp_rank_00_model_states.pt")
    (tmp_path / "train.log").write_text("step 1 loss 2\n")
    (tmp_path / ".hidden.pt").write_bytes(b"")
    torch.save(STATE, tmp_path / "step-20.pt.tmp")
    os.mkfifo(tmp_path / "step-24.pt")
    (tmp_path / "latest.pt").symlink_to(tmp_path / "step-4/rank-0.pt")
    (tmp_path / "up").symlink_to(tmp_path)
    ranks = {"step-4/rank-0.pt", "step-4/rank-1.pt"}
    assert names(tmp_path) == {*ranks, "step-8", "checkpoint-12", "global_step16"}


@pytest.mark.parametrize("kind", ["torch", "safetensors", "dcp"])
def test_a_file_is_whole_when_its_own_directory_says_so(tmp_path: Path, kind: str) -> None:
    if kind == "dcp":
        dcp.save(STATE, checkpoint_id=tmp_path / "step-8")
        held = (tmp_path / "step-8/.metadata").read_bytes()
        (tmp_path / "step-8/.metadata").unlink()
        (one,) = look_at(tmp_path).candidates
        assert unfinished_reason(one) == NO_METADATA()
        (tmp_path / "step-8/.metadata").write_bytes(held)
    else:
        file = tmp_path / f"step-8.{kind}"
        torch.save(STATE, file) if kind == "torch" else save_file(STATE, file)
        whole = file.read_bytes()
        file.write_bytes(whole[:-70])
        (one,) = look_at(tmp_path).candidates
        reason = unfinished_reason(one)
        assert reason is not None
        assert reason.is_any_of(NO_DIRECTORY if kind == "torch" else INCOMPLETE_SAFETENSORS)
        file.write_bytes(whole)
    (after,) = look_at(tmp_path).candidates
    assert after.stamp != one.stamp and stamp_of(after) == after.stamp
    assert unfinished_reason(after) is None


def test_a_file_that_begins_as_nothing_known_is_named(tmp_path: Path) -> None:
    (tmp_path / "step-8.pt").write_bytes(bytes(100))
    (one,) = look_at(tmp_path).candidates
    assert unfinished_reason(one) == NOT_A_CHECKPOINT()
    one.path.unlink()
    assert stamp_of(one) is None


def test_many_entries_are_cut_and_the_cut_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        (tmp_path / f"{number}.pt").touch()
    look = look_at(tmp_path)
    assert len(look.candidates) == 40 and not look.cut
    monkeypatch.setattr(candidates, "ENTRIES_MAX", 20)
    assert look_at(tmp_path).cut


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-400.pt", 400),
        ("global_step400", 400),
        ("iter_0000400", 400),
        ("step-400/rank-3.pt", 400),
        ("checkpoint-400", 400),
        ("epoch=3-step=400.ckpt", 400),
        ("rank-3.pt", None),
        ("net-350M.pt", None),
    ],
)
def test_the_step_that_a_name_states(name: str, step: int | None) -> None:
    assert named_step(Path("/runs") / name, Path("/runs")) == step
