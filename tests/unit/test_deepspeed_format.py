"""DeepSpeed's folders: put together as its own zero_to_fp32.py does, and refused where it has no
place for a state."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.refused_as import refused_as
from support.steps import given_of, layout_of, made, trained

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog import deepspeed_checkpoints as findings
from flowcheck.findings.catalog.checkpoint_options import ZERO_STAGE
from flowcheck.findings.catalog.unreadable_checkpoints import WOULD_RUN_CODE
from flowcheck.replica.checkpoint_files.checksum_verifier import verify_files
from flowcheck.replica.checkpoint_files.manifest import load_manifest
from flowcheck.vault.checkpoint_formats.checkpoint_contents import CheckpointContents, contents_of
from flowcheck.vault.checkpoint_formats.checkpoint_io import read, write
from flowcheck.vault.checkpoint_formats.format_registry import FormatOptions
from flowcheck.vault.trainer_checkpoint.checkpoint_template import read_template

RANKS = (1, 2, 3, 7)


@pytest.fixture(scope="module")
def step() -> CheckpointContents:
    net, optimizer = made()
    trained(net, optimizer, 1, 3)
    return contents_of(given_of(net, optimizer, 3), layout_of(net))


def merged(place: Path, key: str) -> dict[str, torch.Tensor]:
    """As DeepSpeed's utils/zero_to_fp32.py: the ranks' parts back to back, cut by param_shapes, and
    the rest no more than the alignment of 2 elements a rank."""
    shapes = torch.load(place / "mp_rank_00_model_states.pt", weights_only=True)["param_shapes"]
    files = sorted(place.glob("*_optim_states.pt"), key=lambda f: int(f.name.split("_")[3]))
    parts = [torch.load(f, weights_only=True)["optimizer_state_dict"] for f in files]
    assert [part["partition_count"] for part in parts] == [[len(files)]] * len(files)
    found = {}
    for number, own in enumerate(shapes):
        if key == "fp32":
            flat = torch.cat([part["single_partition_of_fp32_groups"][number] for part in parts])
        else:
            each = [part["base_optimizer_state"]["state"][number][key] for part in parts]
            assert len({tensor.numel() for tensor in each}) == 1
            flat = torch.cat(each)
        at = 0
        for name, shape in own.items():
            found[name] = flat.narrow(0, at, shape.numel()).view(shape)
            at += shape.numel()
        align = 2 * len(files)
        assert -(-at // align) == -(-flat.numel() // align)
    return found


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("stage", [1, 2])
def test_ranks_parts_put_together_are_the_parameters_and_their_states(
    ranks: int, stage: int, step: CheckpointContents, tmp_path: Path
) -> None:
    write(step, tmp_path / "out", "deepspeed", FormatOptions(ranks=ranks, stage=stage))
    assert (tmp_path / "out/latest").read_text() == "global_step3"
    place = tmp_path / "out/global_step3"
    assert len(list(place.glob("zero_pp_rank_*_mp_rank_00_optim_states.pt"))) == ranks
    for name, value in merged(place, "fp32").items():
        assert torch.equal(value, step.model[name])
    for kind in ("exp_avg", "exp_avg_sq"):
        for name, value in merged(place, kind).items():
            assert torch.equal(value, step.named_states[name][kind])
    assert not verify_files(tmp_path / "out", load_manifest(tmp_path / "out"))


@pytest.mark.parametrize(("stage", "ranks"), [(0, 1), (1, 2), (2, 3)])
def test_what_is_read_of_it_is_a_base_with_every_state(
    stage: int, ranks: int, step: CheckpointContents, tmp_path: Path
) -> None:
    write(step, tmp_path / "out", "deepspeed", FormatOptions(ranks=ranks, stage=stage))
    (tmp_path / "out/manifest.json").unlink()
    found = read_template(read(tmp_path / "out"), step.layout, (), "out")
    assert found.step == 3
    for index, name in enumerate(found.names):
        assert torch.equal(found.parameters[index], step.model[name])
        own = step.named_states[name]
        assert all(
            torch.equal(found.optimizer_state(index)[kind], value) for kind, value in own.items()
        )


def test_a_parameter_at_another_step_than_its_group_is_refused_by_name(
    step: CheckpointContents, tmp_path: Path
) -> None:
    assert step.trainer_state.optimizer is not None
    states = dict(step.trainer_state.optimizer["state"])
    states[2] = {**states[2], "step": torch.tensor(1.0)}
    other = replace(step.trainer_state, optimizer={**step.trainer_state.optimizer, "state": states})
    with refused_as(findings.OTHER_STEP_IN_GROUP, parameter="norm.weight"):
        write(
            replace(step, trainer_state=other),
            tmp_path / "out",
            "deepspeed",
            FormatOptions(stage=2),
        )
    with refused_as(ZERO_STAGE, kind=ConfigError):
        write(step, tmp_path / "out", "deepspeed", FormatOptions(stage=3))
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_is_missing_is_told(step: CheckpointContents, tmp_path: Path) -> None:
    write(step, tmp_path / "out", "deepspeed", FormatOptions(ranks=3, stage=2))
    (tmp_path / "out/manifest.json").unlink()
    shard = tmp_path / "out/global_step3/zero_pp_rank_2_mp_rank_00_optim_states.pt"
    shard.unlink()
    with refused_as(findings.SHARDS_MISSING, found=2, ranks="3"):
        read(tmp_path / "out")


class LossScaler:
    """As DeepSpeed pickles its own."""

    def __init__(self) -> None:
        self.cur_scale = 1.0


def test_deepspeeds_own_objects_are_let_in_as_stand_ins_and_no_others(
    step: CheckpointContents, tmp_path: Path
) -> None:
    write(step, tmp_path / "out", "deepspeed", FormatOptions(stage=2))
    (tmp_path / "out/manifest.json").unlink()
    shard = tmp_path / "out/global_step3/zero_pp_rank_0_mp_rank_00_optim_states.pt"
    tree: Any = torch.load(shard, weights_only=True)
    for module, ours in (("deepspeed.runtime.fp16.loss_scaler", True), ("deepspeed.other", False)):
        tree["optimizer_state_dict"]["loss_scaler"] = LossScaler()
        torch.save(tree, shard)
        renamed(shard, LossScaler.__module__, module)
        if ours:
            assert read(tmp_path / "out")["step"] == 3
        else:
            with refused_as(WOULD_RUN_CODE):
                read(tmp_path / "out")


def renamed(file: Path, old: str, new: str) -> None:
    """The same archive; its pickle's GLOBAL opcode names another module."""
    with zipfile.ZipFile(file) as archive:
        held = {one.filename: archive.read(one) for one in archive.infolist()}
    protocol_2 = b"c" + old.encode() + b"\n"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, raw in held.items():
            changed = raw.replace(protocol_2, b"c" + new.encode() + b"\n")
            assert not name.endswith("data.pkl") or changed != raw
            archive.writestr(name, changed)


@pytest.mark.parametrize(("ranks", "stage"), [(3, 1), (2, 2)])
def test_ranks_and_stage_are_those_of_an_earlier_folder(
    step: CheckpointContents, ranks: int, stage: int, tmp_path: Path
) -> None:
    earlier, made, stated = tmp_path / "earlier", tmp_path / "made", tmp_path / "stated"
    write(step, earlier, "deepspeed", FormatOptions(ranks=ranks, stage=stage))
    write(step, made, "deepspeed", FormatOptions(like=earlier))
    names = [sorted(p.name for p in folder.rglob("*.pt")) for folder in (earlier, made)]
    assert names[0] == names[1] and len(names[0]) == ranks + 1
    for name in names[0]:
        one, other = (torch.load(next(f.rglob(name)), weights_only=False) for f in (earlier, made))
        for key in ("optimizer_state_dict", "param_shapes"):
            assert repr(one.get(key)) == repr(other.get(key))
    write(step, stated, "deepspeed", FormatOptions(ranks=5, stage=2, like=earlier))
    assert len(list(stated.rglob("*.pt"))) == 6
