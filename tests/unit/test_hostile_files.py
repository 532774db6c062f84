"""Checkpoints made to harm whoever reads them: none waits, grows, or changes this process."""

from __future__ import annotations

import io
import os
import pickle
import signal
import sys
import warnings
import zipfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.refused_as import refused_as
from support.steps import given_of, layout_of, made, trained

from flowcheck.errors import StateError
from flowcheck.findings.catalog import dcp_checkpoints as dcp_findings
from flowcheck.findings.catalog import unreadable_checkpoints as unreadable
from flowcheck.findings.finding import Entry
from flowcheck.vault.checkpoint_formats.checkpoint_contents import CheckpointContents, contents_of
from flowcheck.vault.checkpoint_formats.checkpoint_io import read, write
from flowcheck.vault.checkpoint_formats.format_registry import FormatOptions
from flowcheck.vault.trainer_checkpoint.checkpoint_template import read_template

LARGE = 1 << 34
"""More than any file here; that of a tensor that is never made."""


@pytest.fixture(scope="module")
def step() -> CheckpointContents:
    net, optimizer = made()
    trained(net, optimizer, 1, 3)
    return contents_of(given_of(net, optimizer, 3), layout_of(net))


def packed(raw: bytes) -> bytes:
    """The same archive, its records compressed."""
    out = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(raw)) as old,
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return out.getvalue()


def dcp_of(folder: Path, tensor: torch.Tensor, change: Callable[[bytes], bytes]) -> None:
    """A folder of torch.distributed.checkpoint's own with one tensor, whose shard is changed."""
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"w": tensor}, checkpoint_id=folder)
    file = folder / "__0_0.distcp"
    raw = change(file.read_bytes())
    file.write_bytes(raw)
    told = pickle.loads((folder / ".metadata").read_bytes())
    for info in told.storage_data.values():
        info.length = len(raw)
    (folder / ".metadata").write_bytes(pickle.dumps(told))


def test_a_shard_that_grows_when_it_is_read_is_refused(tmp_path: Path) -> None:
    dcp_of(tmp_path / "as-it-is", torch.zeros(1000), lambda raw: raw)
    assert torch.equal(read(tmp_path / "as-it-is")["w"], torch.zeros(1000))
    dcp_of(tmp_path / "packed", torch.zeros(1000), packed)
    (tmp_path / "packed" / "other").write_bytes(bytes(10_000))  # all of it has room in the files
    with refused_as(unreadable.OTHER_ZIP):
        read(tmp_path / "packed")


def test_one_shard_that_is_told_as_thousands_is_refused(tmp_path: Path) -> None:
    dcp_of(tmp_path, torch.zeros(1000), lambda raw: raw)
    told = pickle.loads((tmp_path / ".metadata").read_bytes())
    ((index, info),) = told.storage_data.items()
    for n in range(100):
        told.state_dict_metadata[f"w{n}"] = told.state_dict_metadata["w"]
        told.storage_data[type(index)(f"w{n}", index.offset, index.index)] = info
    (tmp_path / ".metadata").write_bytes(pickle.dumps(told))
    with refused_as(dcp_findings.SHARDS_OVERLAP):
        read(tmp_path)


def doubled() -> Any:
    """A list of a few hundred bytes with 2**60 parts for whoever walks through it."""
    node: Any = [1]
    for _ in range(60):
        node = [node, node]
    return node


def within_itself() -> Any:
    node: list[Any] = []
    node.append(node)
    return node


@pytest.mark.parametrize(
    ("tree", "entry"),
    [
        (doubled, unreadable.PARTS_REPEAT),
        (within_itself, unreadable.PART_HOLDS_ITSELF),
        (lambda: torch.zeros(1).expand(LARGE), unreadable.TENSORS_EXPAND),
    ],
)
@pytest.mark.parametrize("old", [True, False])
def test_a_tree_that_is_more_than_its_file_is_refused(
    tmp_path: Path, tree: Callable[[], Any], entry: Entry, old: bool
) -> None:
    path = tmp_path / "x.pt"
    torch.save({"a": tree()}, path, _use_new_zipfile_serialization=not old)
    assert path.stat().st_size < 10_000
    with refused_as(entry):
        read(path)


def test_a_mask_that_repeats_its_elements_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"mask": torch.zeros(1).expand(100, 100)}, path)
    assert read(path)["mask"].shape == (100, 100)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("what", ["pipe", "/dev/zero"])
@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("torch", "x.pt"),
        ("safetensors", "x.safetensors"),
        ("dcp", "folder/.metadata"),
        ("dcp", "folder/__0_0.distcp"),
        ("deepspeed", "folder/latest"),
        ("megatron", "folder/latest_checkpointed_iteration.txt"),
        ("huggingface", "folder/model.safetensors"),
    ],
)
def test_a_pipe_or_a_device_in_place_of_a_file_is_not_read(
    tmp_path: Path, form: str, name: str, what: str
) -> None:
    if form == "dcp":
        dcp_of(tmp_path / "folder", torch.zeros(10), lambda raw: raw)
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if what == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(what)
    named = tmp_path / name.split("/", maxsplit=1)[0]
    with pytest.raises(StateError):
        read(named, form)


def megatron(folder: Path, **more: Any) -> Path:
    """An earlier checkpoint of a run."""
    net, optimizer = made()
    place = folder / "iter_0000003" / "mp_rank_00"
    place.mkdir(parents=True)
    (folder / "latest_checkpointed_iteration.txt").write_text("3")
    tree = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "iteration": 3, **more}
    torch.save(tree, place / "model_optim_rng.pt")
    return folder


class Made:
    """What a pickle says, whatever it is of."""

    def __init__(self, *said: Any) -> None:
        self._said = said

    def __reduce__(self) -> Any:
        return self._said


def array(dtype: Any, raw: Any, shape: tuple[int, ...] = (2,)) -> Made:
    make = np.zeros(0).__reduce__()[0]
    return Made(make, (np.ndarray, (0,), b"b"), (1, shape, dtype, False, raw))


@pytest.mark.parametrize("kind", ["<u4", ">u4", "<f8", "|u1", "|b1", "<i8", "<f2"])
def test_arrays_of_numbers_are_what_numpy_wrote(tmp_path: Path, kind: str) -> None:
    own = np.arange(6).astype(kind).reshape(2, 3)
    told = [own, np.asfortranarray(own), np.array(1, kind)]
    found = read(megatron(tmp_path, rng=told))["rng"]
    for mine, theirs in zip(found, told, strict=True):
        assert mine.dtype == theirs.dtype and np.array_equal(mine, theirs)
        assert mine.shape == theirs.shape and mine.flags.writeable


@pytest.mark.parametrize(
    "hostile",
    [
        # Elements that are pointers, and others than their size: numpy's own takes them as told.
        array(Made(np.dtype, ("V8", False, True), (3, "|", None, None, None, 8, 1, 63)), b"A" * 16),
        array(Made(np.dtype, ("u4", False, True), (3, "<", None, None, None, 8, 1, 63)), b"A" * 16),
        array(Made(np.dtype, ("O8", False, True), (3, "|", None, None, None, -1, -1, 63)), [1, 2]),
        array(np.dtype("<u4"), b"A" * 7),
        array(np.dtype("<u4"), b"A" * 8, (1 << 40,)),
        array(np.dtype("<u4"), [1, 2]),
        Made(np.dtype, ("u4, O",)),
        Made(np.ndarray, ((1 << 40,),)),
    ],
    ids=["pointers", "flags", "objects", "short", "huge", "list", "fields", "unmade"],
)
def test_arrays_that_are_none_are_refused(tmp_path: Path, hostile: Made) -> None:
    refusals = unreadable.INVALID_ARRAY, unreadable.WOULD_RUN_CODE, unreadable.OTHER_ZIP
    with refused_as(*refusals):
        read(megatron(tmp_path, rng=hostile))


def test_a_run_whose_arguments_hold_a_signal_is_filled(
    step: CheckpointContents, tmp_path: Path
) -> None:
    """Megatron-LM's --exit-signal has one; nothing is put into Python's own module for it."""
    before, modules = dict(vars(signal)), set(sys.modules)
    like = megatron(tmp_path / "run", args=Namespace(exit_signal=signal.SIGTERM))
    write(step, tmp_path / "out", "megatron", FormatOptions(like=like))
    file = tmp_path / "out" / "iter_0000003" / "mp_rank_00" / "model_optim_rng.pt"
    found = torch.load(file, weights_only=False)
    assert found["args"].exit_signal is signal.SIGTERM
    assert dict(vars(signal)) == before
    assert not {name for name in set(sys.modules) - modules if name.startswith("megatron")}


def test_what_libraries_here_allowed_for_files_of_their_own_is_not_allowed(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"a": Namespace(b=signal.Signals(15))}, path)
    with (
        torch.serialization.safe_globals([signal.Signals]),
        refused_as(unreadable.WOULD_RUN_CODE, name="signal.Signals"),
    ):
        read(path)


def test_a_trainers_file_whose_parts_are_of_other_kinds_is_refused(tmp_path: Path) -> None:
    net, optimizer = made()
    trained(net, optimizer, 1, 3)
    whole = optimizer.state_dict()
    for states in ({0: {"step": None}}, {0: 5}, {0: {"step": "9" * 5000}}):
        tree = {"model": net.state_dict(), "optimizer": {**whole, "state": states}}
        with refused_as(unreadable.PARTS_DO_NOT_FIT):
            read_template(tree, layout_of(net), (), "x")
