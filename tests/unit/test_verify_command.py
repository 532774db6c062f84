"""Files that are not what was written are told, and the tensor in them is named."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save, save_file
from support.refused_as import like, refused_as
from support.steps import ADAMW, given_of, layout_of, made, trained
from typer.testing import CliRunner

import flowcheck
from flowcheck.cli import app
from flowcheck.errors import StateError
from flowcheck.findings.catalog.checkpoint_damage import (
    FORMAT_UNKNOWN,
    IN_TENSOR,
    MANIFEST_CHANGED,
    MANIFEST_TOO_LONG,
    MANIFEST_UNREADABLE,
    NO_MANIFEST,
    NOT_AS_WRITTEN,
    SEVERAL_NOT_AS_WRITTEN,
    TENSOR_CHANGED,
)
from flowcheck.findings.catalog.earlier_files import earlier_finding
from flowcheck.findings.catalog.refused_restores import (
    HOLDS_NO_MANIFEST,
    IS_NOT_THERE,
    LATEST_NOT_WHOLE,
    NO_MANIFEST_OF_IT,
    NONE_WHOLE,
    NOTHING_TO_VERIFY,
    PATH_MISSING,
    STEP_WITHOUT_MANIFEST,
    WHOLE_ARE,
)
from flowcheck.findings.catalog.restored_state import EARLIER_PARAMETERS, NO_OPTIMIZER_STATE
from flowcheck.findings.catalog.step_arithmetic import SQUARE_ROOTS
from flowcheck.findings.catalog.unreadable_checkpoints import UNFINISHED
from flowcheck.ops.restore import verify_command
from flowcheck.ops.restore.step_lookup import step_in_checkpoint
from flowcheck.replica.checkpoint import checkpoint_save
from flowcheck.replica.checkpoint_files import latest_pointer
from flowcheck.replica.checkpoint_files.checksum_verifier import verify_files
from flowcheck.replica.checkpoint_files.manifest import (
    MANIFEST,
    CheckpointKind,
    FileSum,
    Manifest,
    TensorSum,
    decode_manifest,
    encode_manifest,
    load_manifest,
    write_manifest,
)

DATA = Path(__file__).resolve().parents[1] / "data"

MANIFEST_FAULTS = (
    NO_MANIFEST,
    MANIFEST_CHANGED,
    FORMAT_UNKNOWN,
)


def test_a_step_that_latest_names_and_that_is_not_whole_is_named(
    written: Path, tmp_path: Path
) -> None:
    shutil.copytree(written, tmp_path / "step-2")
    latest_pointer.write_latest(tmp_path, "step-99")
    for verb in (verify, flowcheck.load, step_in_checkpoint):
        with refused_as(
            LATEST_NOT_WHOLE,
            checkpoint="step-99",
            fault=IS_NOT_THERE(),
            there=WHOLE_ARE(("step-2",)),
        ):
            verb(tmp_path)
    latest_pointer.write_latest(tmp_path, "step-2")
    (tmp_path / "step-2" / MANIFEST).unlink()
    step = tmp_path / "step-2"
    for verb in (verify, flowcheck.load, step_in_checkpoint):
        with refused_as(
            LATEST_NOT_WHOLE,
            checkpoint="step-2",
            fault=HOLDS_NO_MANIFEST(MANIFEST),
            there=NONE_WHOLE(),
        ):
            verb(tmp_path)
        with refused_as(
            like(STEP_WITHOUT_MANIFEST, path=step),
            like(UNFINISHED, folder=step),
            like(MANIFEST_UNREADABLE, output=step),
            manifest=MANIFEST,
        ):
            verb(tmp_path / "step-2")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint's folder, step-2."""
    net, optimizer = made()
    trained(net, optimizer, 1, 2)
    out = tmp_path_factory.mktemp("written")
    return checkpoint_save.save_trainer_state(given_of(net, optimizer, 2), out, layout_of(net))


def verify(path: Path, *flags: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["verify", str(path), *flags])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout


def test_every_sum_of_the_manifest_is_that_of_the_bytes_it_speaks_of(written: Path) -> None:
    told = json.loads((written / MANIFEST).read_text())
    for name, one in told["files"].items():
        raw = (written / name).read_bytes()
        assert (len(raw), hashlib.sha256(raw).hexdigest()) == (one["bytes"], one["sha256"])
    values = load_file(written / "model.safetensors")
    assert {f"model/{name}" for name in values} <= told["tensors"].keys()
    for name, value in values.items():
        one = told["tensors"][f"model/{name}"]
        assert one["sha256"] == hashlib.sha256(value.numpy().tobytes()).hexdigest()
        [[file, first, count]] = one["at"]
        raw = (written / file).read_bytes()[first : first + count]
        assert raw == value.numpy().tobytes()


def test_the_tensor_file_is_the_very_bytes_that_safetensors_itself_writes(written: Path) -> None:
    values = load_file(written / "model.safetensors")
    theirs = save(values, metadata={"format": "pt"})
    ours = (written / "model.safetensors").read_bytes()
    begins = [8 + int.from_bytes(raw[:8], "little") for raw in (theirs, ours)]
    headers = [json.loads(raw[8:b]) for raw, b in zip((theirs, ours), begins, strict=True)]
    assert begins[1] % 8 == 0
    for name in values:
        places = [(h[name]["data_offsets"], b) for h, b in zip(headers, begins, strict=True)]
        theirs_own, ours_own = (
            raw[b + first : b + end]
            for raw, ((first, end), b) in zip((theirs, ours), places, strict=True)
        )
        assert theirs_own == ours_own
        assert headers[0][name]["shape"] == headers[1][name]["shape"]


def test_a_whole_checkpoint_passes_and_a_changed_tensor_is_named(
    written: Path, tmp_path: Path
) -> None:
    folder = copied(written, tmp_path)
    (folder / "model-00002.safetensors").write_bytes(b"left by somebody")
    code, said = verify(folder)
    assert code == 0 and "all as written" in said
    assert "not of this checkpoint: model-00002.safetensors" in said
    told = json.loads((folder / MANIFEST).read_text())
    [[file, first, _]] = told["tensors"]["optimizer/outer.weight/exp_avg"]["at"]
    flip(folder / file, first + 1)
    code, said = verify(folder, "--json")
    assert code == 1
    assert [fault["tensor"] for fault in json.loads(said)["faults"]] == [
        "optimizer/outer.weight/exp_avg"
    ]
    with refused_as(IN_TENSOR, tensor="optimizer/outer.weight/exp_avg", why=TENSOR_CHANGED):
        checkpoint_save.load(folder)


def test_a_damaged_checkpoint_is_told_with_its_remedy_once(written: Path, tmp_path: Path) -> None:
    step = copied(written, tmp_path)
    for file in step.glob("*.safetensors"):
        flip(file, -1)
    code, told = verify(step)
    assert code == verify_command.DAMAGED
    _, as_json = verify(step, "--json")
    remedies = {fault["why"]["remedy"] for fault in json.loads(as_json)["faults"]}
    assert remedies and all(told.count(one) == 1 for one in remedies)
    code, told = verify(written)
    assert code == 0 and not any(one in told for one in remedies)


def test_a_file_cut_short_names_the_tensors_that_are_lost(written: Path, tmp_path: Path) -> None:
    folder = copied(written, tmp_path)
    told = json.loads((folder / MANIFEST).read_text())
    last = max(
        (at[0][1], label)
        for label, at in ((k, v["at"]) for k, v in told["tensors"].items())
        if at[0][0] == "model.safetensors"
    )
    raw = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(raw[: last[0] + 1])
    faults = verify_files(folder, load_manifest(folder))
    assert [fault.tensor for fault in faults if fault.tensor] == [last[1]]
    assert "ends before" in str(faults[-1])


def test_what_is_no_output_of_ours_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with refused_as(NO_MANIFEST_OF_IT):
        verify(tmp_path)
    with refused_as(NOTHING_TO_VERIFY, found=PATH_MISSING):
        verify(tmp_path / "none")
    torch.save({}, tmp_path / "foreign.pt")
    with refused_as(MANIFEST_UNREADABLE, manifest="foreign.pt.manifest.json"):
        verify(tmp_path / "foreign.pt")
    with pytest.raises(StateError) as refused:
        verify(tmp_path / "foreign.pt")
    for expected in ("step-N folder", "`latest`", "foreign.pt.manifest.json beside it"):
        assert expected in refused.value.finding.remedy
    assert "trainers write" in refused.value.finding.cause


def test_one_file_is_no_files(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = verify(written)[1]
    told = json.loads((written / MANIFEST).read_text())
    files, tensors = len(told["files"]), len(told["tensors"])
    assert files > 1 and f", {files} files, {tensors} tensors: " in text
    whole = load_manifest(written)
    alone = {key: dict([*getattr(whole, key).items()][:1]) for key in ("files", "tensors")}
    verify_command._print(written, msgspec.structs.replace(whole, **alone), [])
    assert ", 1 file, 1 tensor: " in capsys.readouterr().out


def test_a_manifest_may_not_speak_of_files_outside_its_folder(
    written: Path, tmp_path: Path
) -> None:
    folder = copied(written, tmp_path)
    manifest = load_manifest(folder)
    (folder / "model.safetensors").rename(tmp_path / "other")
    moved = {f"../{k}" if k == "model.safetensors" else k: v for k, v in manifest.files.items()}
    moved["../other"] = moved.pop("../model.safetensors")
    write_manifest(folder / MANIFEST, msgspec.structs.replace(manifest, files=moved))
    assert verify(folder)[0] == 1


def test_the_newest_of_a_folder_is_the_one_that_latest_names(written: Path, tmp_path: Path) -> None:
    folder = copied(written, tmp_path)
    latest_pointer.write_latest(tmp_path, folder.name)
    code, said = verify(tmp_path)
    assert code == 0 and str(folder) in said
    (tmp_path / "latest").write_text("../step-2\n")
    assert latest_pointer.latest_checkpoint(tmp_path) is None


def test_a_checkpoint_of_the_format_before_is_still_read_and_checked(tmp_path: Path) -> None:
    net, optimizer = made()
    values = {name: p.detach().clone() for name, p in net.named_parameters()}
    folder = tmp_path / "step-0"
    folder.mkdir()
    save_file(values, folder / "model.safetensors", metadata={"format": "pt"})
    save_file({}, folder / "optimizer.safetensors", metadata={"format": "pt"})
    whole = given_of(net, optimizer, 0)
    checkpoint_save.save_trainer_state(whole, tmp_path / "now", layout_of(net))
    told = json.loads((tmp_path / "now/step-0" / MANIFEST).read_text())
    old = {k: told[k] for k in ("step", "digest", "torch_version", "kind", "layout", "optimizer")}
    names = ("model.safetensors", "optimizer.safetensors")
    sums = {n: hashlib.sha256((folder / n).read_bytes()).hexdigest() for n in names}
    (folder / MANIFEST).write_text(json.dumps(old | {"format": 1, "sha256": sums}))
    kept = checkpoint_save.load(folder)
    assert all(torch.equal(kept.parameters[n], v) for n, v in values.items())
    assert kept.optimizer_state_dict()["param_groups"][0]["lr"] == ADAMW.learning_rate
    assert verify(folder)[0] == 0
    flip(folder / "model.safetensors", -1)
    assert verify(folder)[0] == 1
    with pytest.raises(StateError):
        checkpoint_save.load(folder)


def test_a_manifest_of_format_2_is_read_and_its_sentences_are_findings(tmp_path: Path) -> None:
    """tests/data/earlier/manifest-format-2.json was written by the release before format 3."""
    text = (DATA / "earlier/manifest-format-2.json").read_bytes()
    found = decode_manifest(text, "step-7")
    assert (found.step, found.kind) == (7, CheckpointKind.PARAMETERS_ONLY)
    lacks = "parameters of step 7 and no optimizer state; 2 parameters are of earlier steps"
    assert [str(one) for one in found.resume_caveats] == [lacks]
    assert [str(one) for one in found.evidence] == ["weights: broadcast"]
    assert [one.until_audit for one in found.assumed] == [True, False]
    assert str(found.assumed[0]) == "channel order (no audit has shown it yet)"
    again = decode_manifest(encode_manifest(found), "step-7")
    assert (
        again.format == 3
        and again.assumed == found.assumed
        and again.resume_caveats == found.resume_caveats
    )
    assert json.loads(encode_manifest(found))["kind"] == "parameters"
    with pytest.raises(StateError) as refused:
        decode_manifest(text.replace(b"by address", b"by adress."), "step-7")
    assert refused.value.finding == MANIFEST_CHANGED("step-7")
    with pytest.raises(StateError) as refused:
        decode_manifest(text.replace(b'"format": 2', b'"format": 4'), "step-7")
    assert refused.value.finding.is_any_of(FORMAT_UNKNOWN)


def test_findings_lie_in_a_manifest_as_objects(tmp_path: Path) -> None:
    gaps = (NO_OPTIMIZER_STATE(9), EARLIER_PARAMETERS(2))
    made = Manifest(
        step=9, digest="", torch_version="", resume_caveats=gaps, assumed=(SQUARE_ROOTS(),)
    )
    text = encode_manifest(made)
    told = json.loads(text)
    assert [one["code"] for one in told["lacks"]] == [one.code for one in gaps]
    assert told["lacks"][1]["arguments"] == {"parameters": 2}
    assert told["lacks"][1]["sentence"] == str(gaps[1])
    found = decode_manifest(text, "step-9")
    assert (found.resume_caveats, found.assumed) == (gaps, (SQUARE_ROOTS(),))


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_files_torn_or_changed_anywhere_never_pass_nor_load(
    data: st.DataObject, written: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "step-2"
    if not folder.exists():
        copied(written, tmp_path)
    name = data.draw(st.sampled_from(["model.safetensors", "optimizer.safetensors", MANIFEST]))
    whole = (written / name).read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != whole[place]))
    changed = whole[:place] + bytes([other]) + whole[place + 1 :]
    (folder / name).write_bytes(data.draw(st.sampled_from([whole[:place], changed])))
    try:
        if name != MANIFEST:
            faults = verify_files(folder, load_manifest(folder))
            assert faults and all(fault.tensor or fault.file == name for fault in faults)
        with refused_as(
            like(SEVERAL_NOT_AS_WRITTEN, checkpoint=folder),
            like(NOT_AS_WRITTEN, checkpoint=folder),
            *(like(one, where=folder / MANIFEST) for one in MANIFEST_FAULTS),
        ):
            checkpoint_save.load(folder)
    finally:
        (folder / name).write_bytes(whole)


def test_what_a_hostile_manifest_says_is_shown_and_neither_obeyed_nor_waited_for(
    written: Path, tmp_path: Path
) -> None:
    folder = copied(written, tmp_path)
    manifest = load_manifest(folder)
    far = TensorSum(
        dtype="float32", shape=(), sha256="0",
        at=(("model.safetensors", 1 << 70, 1 << 80), ("model.safetensors", -5, 3)),
    )  # fmt: skip
    tensors = {"[/red]\x1b[31m": far, **manifest.tensors}
    files = manifest.files | {name: FileSum(1, "", "") for name in ("a" * 5000, "b\0")}
    lacks = (earlier_finding("[/b]"),)
    hostile = msgspec.structs.replace(manifest, files=files, tensors=tensors, resume_caveats=lacks)
    write_manifest(folder / MANIFEST, hostile)
    code, said = verify(folder)
    assert code == 1
    assert "[/red]\\x1b[31m: is cut off" in said and "b\\x00: is missing" in said


def test_pipes_and_devices_in_the_place_of_files_are_none(written: Path, tmp_path: Path) -> None:
    folder = copied(written, tmp_path)
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    assert "model.safetensors: is missing" in verify(folder)[1]
    os.truncate(folder / MANIFEST, 1 << 40)
    with refused_as(MANIFEST_TOO_LONG):
        verify(folder)
    (folder / MANIFEST).unlink()
    (folder / MANIFEST).symlink_to("/dev/zero")
    os.mkfifo(tmp_path / latest_pointer.LATEST)
    for place in (folder, tmp_path):
        with refused_as(like(STEP_WITHOUT_MANIFEST, manifest=MANIFEST), NO_MANIFEST_OF_IT):
            verify(place)


def copied(written: Path, below: Path) -> Path:
    folder = below / written.name
    folder.mkdir()
    for file in written.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def flip(file: Path, place: int) -> None:
    raw = bytearray(file.read_bytes())
    raw[place] ^= 1
    file.write_bytes(raw)
