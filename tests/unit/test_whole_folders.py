"""A folder that a library writes file after file is a checkpoint once it is whole, not before: the
libraries' own order says when that is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.refused_as import refused_as
from support.trainer_folders import (
    accelerate_folder,
    deepspeed_folder,
    megatron_folder,
    pretrained,
    trainer_folder,
)

from flowcheck.errors import StateError
from flowcheck.findings.catalog import deepspeed_checkpoints as deepspeed
from flowcheck.findings.catalog import file_audits as findings
from flowcheck.findings.catalog import megatron_checkpoints as megatron
from flowcheck.findings.finding import Entry
from flowcheck.ops.trainer_checkpoint.audit_watch.candidates import (
    Candidate,
    is_other_file,
    look_at,
    unfinished_reason,
)
from flowcheck.ops.trainer_checkpoint.audit_watch.whole_folders import INCOMPLETE, SETTLED_S
from flowcheck.vault.checkpoint_formats.checkpoint_io import read

MODEL = {f"{n}.weight": torch.arange(9.0) + n for n in range(4)}
PARAMETERS = [torch.nn.Parameter(own.clone()) for own in MODEL.values()]
OPTIMIZER = torch.optim.AdamW(PARAMETERS, lr=1e-3)
for one in PARAMETERS:
    one.grad = torch.ones_like(one)
OPTIMIZER.step()
STATE = dict(zip(MODEL, (OPTIMIZER.state[p] for p in PARAMETERS), strict=True))


def found_in(root: Path) -> list[Candidate]:
    return [one for one in look_at(root).candidates if not is_other_file(one)]


def the_one(root: Path) -> Candidate:
    [found] = found_in(root)
    assert found.folder
    return found


def lacks(root: Path, still_s: float = 5.0) -> str | None:
    """The code of what is missing; None: the folder is whole. As the watch asks: by the names, then
    by what the files hold."""
    found = the_one(root)
    reason = unfinished_reason(found, still_s)
    if reason is None:
        try:
            read(found.path)
        except StateError as error:
            return error.finding.code
    return None if reason is None else reason.code


def codes(root: Path, writer: Iterator[str]) -> dict[str, str | None]:
    """{file: what is missing once it was written}, from the first that makes a candidate."""
    return {file: lacks(root) for file in writer if found_in(root)}


@pytest.mark.parametrize("shards", [1, 3])
def test_a_trainer_is_done_with_its_state_file(tmp_path: Path, shards: int) -> None:
    own = trainer_folder(tmp_path / "checkpoint-500", MODEL, OPTIMIZER.state_dict(), 500, shards)
    told = codes(tmp_path, own)
    *before, last = told.items()
    assert last == ("trainer_state.json", None) and all(code for _, code in before)
    assert told["optimizer.pt"] == findings.NO_LAST_FILE.code
    assert read(tmp_path / "checkpoint-500")["step"] == 500
    (tmp_path / "checkpoint-500/trainer_state.json").write_text('{"global_st')
    assert lacks(tmp_path) == "checkpoint.no_global_step"


def test_each_part_that_the_index_names_is_awaited(tmp_path: Path) -> None:
    told = codes(tmp_path, pretrained(tmp_path / "export", MODEL, 3))
    assert list(told.values()) == [findings.NO_LAST_FILE.code] * 3 + [None]
    part = tmp_path / "export/model-00002-of-00003.safetensors"
    whole = part.read_bytes()
    part.write_bytes(whole[:-9])
    assert lacks(tmp_path) == findings.PART_NOT_WHOLE.code
    part.unlink()
    missing = unfinished_reason(the_one(tmp_path))
    assert missing == findings.FILES_MISSING(missing=1, parts=3, files=[part.name])


def test_a_model_alone_under_the_trainers_name_is_taken_once_it_settled(tmp_path: Path) -> None:
    list(pretrained(tmp_path / "checkpoint-500", MODEL))
    assert lacks(tmp_path) == findings.STATE_MAY_FOLLOW.code
    assert lacks(tmp_path, SETTLED_S) is None


def test_accelerate_is_done_with_its_random_states(tmp_path: Path) -> None:
    told = codes(tmp_path, accelerate_folder(tmp_path / "step_4", MODEL, OPTIMIZER.state_dict()))
    assert told["optimizer.bin"] == findings.NO_LAST_FILE.code
    assert told["random_states_0.pkl"] is None
    assert read(tmp_path / "step_4")["optimizer"]["state"][0]["step"] == 1


def test_what_a_removed_model_leaves_is_no_checkpoint(tmp_path: Path) -> None:
    place = tmp_path / "checkpoint-500"
    list(trainer_folder(place, MODEL, OPTIMIZER.state_dict(), 500))
    whole = the_one(tmp_path)
    (place / "optimizer.pt").unlink()
    assert the_one(tmp_path).lost_parts_of(whole)
    torch.save({}, place / "optimizer.pt")
    assert not the_one(tmp_path).lost_parts_of(whole), "another one, not none"
    (place / "model.safetensors").unlink()
    assert not found_in(tmp_path)


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_rank_of_a_megatron_folder_is_awaited(tmp_path: Path, ranks: int) -> None:
    list(megatron_folder(tmp_path, MODEL, OPTIMIZER.state_dict(), 3))
    shutil.rmtree(tmp_path / "iter_0000003")
    told = codes(tmp_path, megatron_folder(tmp_path, MODEL, OPTIMIZER.state_dict(), 7, ranks))
    *before, last = told.values()
    assert before == [findings.SAVE_NOT_ENDED.code] * ranks
    place = tmp_path / "iter_0000007"
    if ranks == 1:
        assert last is None and read(place)["iteration"] == 7
        return
    assert last == megatron.SEVERAL_RANKS.code, "whole, and refused"
    shutil.rmtree(place / "mp_rank_01")
    check_refused(place, megatron.RANKS_MISSING, found=1, ranks=2)
    (place / "mp_rank_01").mkdir()
    check_refused(place, megatron.RANKS_MISSING, found=1, ranks=2)


def test_every_rank_of_a_deepspeed_folder_is_awaited(tmp_path: Path) -> None:
    told = codes(tmp_path, deepspeed_folder(tmp_path, MODEL, STATE, 16, 3))
    *before, last, _ = told.values()
    assert before == [deepspeed.SHARDS_MISSING.code] * 3 and last is None
    place = tmp_path / "global_step16"
    assert read(place)["optimizer"]["state"].keys() == MODEL.keys()
    shard = place / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    assert lacks(tmp_path) == findings.PART_NOT_WHOLE.code
    shard.unlink()
    check_refused(place, deepspeed.RANKS_MISSING, ranks=(0, 2))
    shard.write_bytes(whole)
    (place / "mp_rank_00_model_states.pt").unlink()
    check_refused(place, deepspeed.MODEL_STATES_MISSING, found=0)


def check_refused(place: Path, entry: Entry, **arguments: object) -> None:
    """What is missing is found by the watch, and by whoever names the folder."""
    assert lacks(place.parent) == entry.code and entry in INCOMPLETE
    with refused_as(entry, **arguments):
        read(place)
