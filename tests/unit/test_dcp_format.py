"""torch.distributed.checkpoint folders: DCP itself loads ours, and any of its own is read."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import re
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from support import ranks
from support.refused_as import refused_as
from support.steps import given_of, layout_of, made, trained
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_state_dict,
)

from flowcheck.config import OptimizerConfig
from flowcheck.errors import StateError
from flowcheck.findings.catalog import dcp_checkpoints as dcp_findings
from flowcheck.findings.catalog import unreadable_checkpoints as unreadable
from flowcheck.replica.checkpoint import step_snapshot
from flowcheck.replica.checkpoint import trainer_state as whole_step
from flowcheck.replica.checkpoint_files.checksum_verifier import verify_files
from flowcheck.replica.checkpoint_files.manifest import MANIFEST, load_manifest
from flowcheck.replica.model_replica import Replica
from flowcheck.vault.checkpoint_formats.checkpoint_contents import contents_of
from flowcheck.vault.checkpoint_formats.checkpoint_io import read, write
from flowcheck.vault.trainer_checkpoint.checkpoint_template import read_template

ADAMW = OptimizerConfig(name="adamw", learning_rate=1e-2, weight_decay=0.1, implementation="loop")
"""As tests/support/ranks.py states it, kernels included."""


def flat(tensors: list[torch.Tensor]) -> Any:
    return torch.cat([t.detach().reshape(-1) for t in tensors]).numpy()


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job of two ranks that saved "theirs"; beside it "ours", of a replica that took the same
    gradients; and both resumed by four ranks in shards."""
    out = tmp_path_factory.mktemp("job")
    ranks.launch(2, out, "train")
    net = ranks.model()
    layout = layout_of(net)
    replica = Replica.create(out / "replica", layout, ADAMW, flat(list(net.parameters())))
    for step, gradients in enumerate(torch.load(out / "gradients.pt"), 1):
        replica.apply(step, flat(gradients))
    replica.close()
    taken = whole_step.trainer_state(step_snapshot.copy_snapshot(out / "replica", ADAMW))
    write(contents_of(taken, layout), out / "ours", "dcp")
    ranks.launch(4, out, "resume", "theirs", "ours")
    return out


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_four_ranks_in_shards_go_on_from_ours_as_from_the_trainers_own_folder(job: Path) -> None:
    theirs, ours = (torch.load(job / f"{name}-after.pt") for name in ("theirs", "ours"))
    assert theirs["model"].keys() == ours["model"].keys()
    for name, value in theirs["model"].items():
        assert torch.equal(value, ours["model"][name]), name
    assert theirs["optimizer"]["state"].keys() == ours["optimizer"]["state"].keys()
    for name, states in theirs["optimizer"]["state"].items():
        for kind, value in states.items():
            assert torch.equal(value, ours["optimizer"]["state"][name][kind]), (name, kind)
    for own, other in zip(
        theirs["optimizer"]["param_groups"], ours["optimizer"]["param_groups"], strict=True
    ):
        assert own | {"fused": None} == other | {"fused": None}  # false where torch has none yet


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_what_two_ranks_saved_is_read_as_the_replica_has_it(job: Path) -> None:
    theirs, ours = read(job / "theirs"), read(job / "ours")
    assert not (job / "theirs" / MANIFEST).exists() and (job / "ours" / MANIFEST).exists()
    assert theirs["step"] == ours["step"] == ranks.TAKEN
    for name, value in theirs["model"].items():
        assert torch.equal(value, ours["model"][name])
    for name, states in theirs["optimizer"]["state"].items():
        for kind, value in states.items():
            assert torch.equal(value, ours["optimizer"]["state"][name][kind])


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_shards_of_four_ranks_are_put_together(job: Path) -> None:
    whole = torch.load(job / "theirs-after.pt")["model"]
    found = read(job / "theirs-sharded")["model"]
    assert len(list((job / "theirs-sharded").glob("*.distcp"))) == 4
    assert whole.keys() == found.keys()
    assert all(torch.equal(value, found[name]) for name, value in whole.items())


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    net, optimizer = made()
    trained(net, optimizer, 1, 3)
    out = tmp_path_factory.mktemp("dcp") / "ours"
    write(contents_of(given_of(net, optimizer, 3), layout_of(net)), out, "dcp")
    return out


def loaded(folder: Path) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """What a trainer of one rank has after it loaded a folder in torch's own way."""
    net, optimizer = made(seed=99)
    values, states = get_state_dict(net, optimizer)
    held = {"model": values, "optimizer": states}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(held, checkpoint_id=folder)
    set_state_dict(
        net, optimizer, model_state_dict=held["model"], optim_state_dict=held["optimizer"]
    )
    return net, optimizer


def test_a_trainer_of_one_rank_loads_it_in_torchs_own_way_and_goes_on(ours: Path) -> None:
    net, optimizer = made()
    trained(net, optimizer, 1, 6)
    resumed = loaded(ours)
    trained(*resumed, 4, 6)
    assert all(map(torch.equal, net.parameters(), resumed[0].parameters()))


def test_before_the_first_step_states_are_the_zeros_that_torch_begins_with(tmp_path: Path) -> None:
    net, optimizer = made()
    whole = contents_of(given_of(net, optimizer, 0), layout_of(net))
    assert write(whole, tmp_path / "zero", "dcp").resume_caveats == ()
    resumed = loaded(tmp_path / "zero")
    trained(net, optimizer, 1, 3)
    trained(*resumed, 1, 3)
    assert all(map(torch.equal, net.parameters(), resumed[0].parameters()))


def test_an_optimizer_that_was_saved_flat_is_read_as_any_other(tmp_path: Path) -> None:
    net, optimizer = made()
    trained(net, optimizer, 1, 3)
    flat_too = StateDictOptions(flatten_optimizer_state_dict=True)
    states = get_optimizer_state_dict(net, optimizer, options=flat_too)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = {"model": net.state_dict(), "optimizer": states, "step": 3}
        dcp.save(whole, checkpoint_id=tmp_path / "theirs")
    found = read_template(read(tmp_path / "theirs"), layout_of(net), (), "theirs")
    for index, (name, _) in enumerate(net.named_parameters()):
        own = optimizer.state_dict()["state"][index]
        assert found.names[index] == name
        assert all(
            torch.equal(found.optimizer_state(index)[kind], value) for kind, value in own.items()
        )


def test_its_manifest_says_where_in_its_files_each_tensor_lies(ours: Path) -> None:
    manifest = load_manifest(ours)
    assert not verify_files(ours, manifest)
    for label, one in manifest.tensors.items():
        [(file, first, count)] = one.at
        raw = (ours / file).read_bytes()[first : first + count]
        part, name = label.split("/", 1)
        if part == "model":
            assert raw == read(ours)["model"][name].numpy().tobytes()
        assert hashlib.sha256(raw).hexdigest() == one.sha256


def test_a_shard_that_was_never_saved_or_is_torn_is_named(ours: Path, tmp_path: Path) -> None:
    folder = tmp_path / "torn"
    shutil.copytree(ours, folder)
    (folder / "manifest.json").unlink()  # as a trainer's own folder: nothing but DCP's metadata
    for file in folder.glob("*.distcp"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with refused_as(dcp_findings.FILE_CUT_OFF, unreadable.CANNOT_BE_READ):
        read(folder)
    for file in folder.glob("*.distcp"):
        file.unlink()
    with refused_as(unreadable.CANNOT_BE_READ, error=re.compile("No such file")):
        read(folder)


@settings(max_examples=150, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), cut=st.booleans())
def test_metadata_torn_anywhere_is_read_or_refused_and_nothing_else(
    ours: Path, place: float, bit: int, cut: bool
) -> None:
    with tempfile.TemporaryDirectory() as below:
        folder = Path(below) / "torn"
        shutil.copytree(ours, folder)
        (folder / "manifest.json").unlink()
        whole = (folder / ".metadata").read_bytes()
        at = int(place * len(whole))
        changed = whole[:at] + (b"" if cut else bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
        (folder / ".metadata").write_bytes(changed)
        # A changed bit may be one of a number, which nothing tells; a missing end is always told.
        with pytest.raises(StateError) if cut else contextlib.suppress(StateError):
            read(folder)


class Runs:
    def __reduce__(self) -> Any:
        return os.system, ("touch ran",)


def test_metadata_that_would_run_code_is_refused_and_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "evil"
    folder.mkdir()
    (folder / ".metadata").write_bytes(pickle.dumps(Runs()))
    with refused_as(dcp_findings.WOULD_RUN_CODE):
        read(folder)
    assert not (tmp_path / "ran").exists()


def test_building_on_a_class_changes_nothing_of_this_process(tmp_path: Path) -> None:
    """A slot state on a class is set with setattr by pickle's own reader, before it is refused."""
    (tmp_path / ".metadata").write_bytes(
        b"\x80\x04ctorch.distributed.checkpoint.metadata\nMetadata\nN}X\x06\0\0\0hackedK\x01s\x86b."
    )
    with refused_as(dcp_findings.STATE_OF_KIND("type")):
        read(tmp_path)
    assert not hasattr(dcp.metadata.Metadata, "hacked")
