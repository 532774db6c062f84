"""Files of formats one by one: shards and index, keys, torn and renamed ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from support.formatted import ALONE, WHOLE, run, step_before
from support.refused_as import refused_as

import flowcheck
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.checkpoint_damage import NOT_AS_WRITTEN, SEVERAL_NOT_AS_WRITTEN
from flowcheck.findings.catalog.checkpoint_options import KEY_OF_OTHER_PART, KEY_TWICE, KEYS_FORM
from flowcheck.findings.catalog.untrusted_names import NOT_IN_THE_FOLDER
from flowcheck.replica.checkpoint_files.checksum_verifier import verify_files
from flowcheck.replica.checkpoint_files.manifest import load_manifest
from flowcheck.vault.checkpoint_formats.checkpoint_contents import CheckpointContents
from flowcheck.vault.checkpoint_formats.checkpoint_io import read, write
from flowcheck.vault.checkpoint_formats.format_registry import FormatOptions, keys_in


@pytest.fixture(scope="module")
def step() -> CheckpointContents:
    return step_before()


def test_a_model_folder_has_shards_an_index_and_what_is_passed_through(
    step: CheckpointContents, tmp_path: Path
) -> None:
    like = tmp_path / "like"
    like.mkdir()
    (like / "config.json").write_text('{"model_type": "net"}')
    (like / "tokenizer.json").write_text("{}")
    for other in ("model.safetensors", "pytorch_model.bin", "optimizer.pt", "trainer_state.json"):
        (like / other).write_bytes(b"of another step")
    out = tmp_path / "out"
    most = max(value.nbytes for value in step.model.values())
    write(step, out, "huggingface", FormatOptions(like=like, shard_bytes=most))
    index = json.loads((out / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 1
    assert files == [
        f"model-{n + 1:05d}-of-{len(files):05d}.safetensors" for n in range(len(files))
    ]
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in step.model.values())
    found: dict[str, Any] = {}
    for name in files:
        with safe_open(out / name, framework="pt") as file:
            assert file.metadata()["format"] == "pt"
            held = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        assert {index["weight_map"][key] for key in held} == {name}
        assert sum(value.nbytes for value in held.values()) <= most
        found |= held
    assert all(torch.equal(found[name], value) for name, value in step.model.items())
    passed = {path.name for path in out.iterdir()} - set(files)
    assert passed == {
        "config.json",
        "tokenizer.json",
        "manifest.json",
        "model.safetensors.index.json",
    }
    assert (out / "config.json").read_text() == '{"model_type": "net"}'
    assert not verify_files(out, load_manifest(out))


def test_an_index_that_leads_out_of_its_folder_is_refused(tmp_path: Path) -> None:
    index = {"metadata": {}, "weight_map": {"a": "../../etc/passwd"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with refused_as(NOT_IN_THE_FOLDER):
        read(tmp_path)


@pytest.mark.parametrize("stated", ["weights=a", "model", "model=a..b", "model=.a"])
def test_keys_that_are_none_are_refused(stated: str) -> None:
    with refused_as(KEYS_FORM, kind=ConfigError, key="--keys"):
        keys_in(stated)


def test_two_parts_under_one_key_are_refused(step: CheckpointContents, tmp_path: Path) -> None:
    for stated in ("model=a,optimizer=a", "model=a,optimizer=a.b"):
        with refused_as(KEY_TWICE, KEY_OF_OTHER_PART, kind=ConfigError, key="--keys"):
            write(step, tmp_path / "out", "torch", FormatOptions(keys_in(stated)))
        assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def outputs(step: CheckpointContents, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("outputs")
    for form in (*WHOLE, *ALONE):
        write(step, out / form, form)
    return out


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    form=st.sampled_from([*WHOLE, *ALONE]),
    pick=st.floats(0, 1, exclude_max=True),
    place=st.floats(0, 1, exclude_max=True),
    cut=st.booleans(),
)
def test_an_output_torn_or_changed_anywhere_is_never_taken_for_whole(
    outputs: Path, form: str, pick: float, place: float, cut: bool
) -> None:
    path = outputs / form
    root = path if path.is_dir() else outputs
    files = sorted(load_manifest(path).files)
    file = root / files[int(pick * len(files))]
    whole = file.read_bytes()
    at = int(place * len(whole))
    torn = whole[:at] if cut else whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :]
    file.write_bytes(torn)
    try:
        faults = verify_files(root, load_manifest(path))
        assert faults and all(fault.file == file.relative_to(root).name for fault in faults)
        with refused_as(NOT_AS_WRITTEN, SEVERAL_NOT_AS_WRITTEN, checkpoint=path):
            read(path)
    finally:
        file.write_bytes(whole)


@pytest.mark.parametrize("form", ["torch", "safetensors"])
def test_a_renamed_file_is_held_against_its_own_sums_and_not_a_siblings(
    step: CheckpointContents, tmp_path: Path, form: str
) -> None:
    own, renamed = tmp_path / "own.bin", tmp_path / "renamed.bin"
    write(step, own, form, FormatOptions())
    sums = Path(f"{own}.manifest.json").read_bytes()
    raw = bytearray(own.read_bytes())
    renamed.write_bytes(raw)
    Path(f"{renamed}.manifest.json").write_bytes(sums)
    assert run("verify", renamed)[0] == 0
    (_, first, count) = next(iter(load_manifest(own).tensors.values())).at[0]
    raw[first + count // 2] ^= 1
    renamed.write_bytes(raw)
    assert run("verify", own)[0] == 0
    assert run("verify", renamed)[0] == 1
    with refused_as(NOT_AS_WRITTEN):
        flowcheck.load(renamed)
