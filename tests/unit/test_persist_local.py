"""Checkpoints in a folder: durable before they are named, and never fewer than are to stay."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.persisting import Steps, proved, replica_in, saver_for, take
from support.refused_as import refused_as
from support.room import no_room

import flowcheck
from flowcheck.config import PersistConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog import checkpoint_stores as stores
from flowcheck.findings.catalog.checkpoint_damage import IN_TENSOR, TENSOR_CHANGED
from flowcheck.findings.catalog.checkpoint_options import ONE_OF
from flowcheck.findings.catalog.general_errors import ERROR_TEXT
from flowcheck.findings.catalog.refused_settings import AT_LEAST, PERSIST_INTERVAL
from flowcheck.findings.catalog.untrusted_names import NOT_A_CHECKPOINT_NAME
from flowcheck.replica.model_replica import Replica
from flowcheck.vault.erasure.target_choice import check_target
from flowcheck.vault.persist.checkpoint_listing import verify_checkpoint
from flowcheck.vault.persist.local_folder import LocalFolder


@pytest.fixture
def replica(shm: Path) -> Iterator[Replica]:
    made = replica_in(shm / "state")
    yield made
    made.close()


def config(target: Path, **more: object) -> PersistConfig:
    return PersistConfig(target=str(target), every_steps=1, **more)  # type: ignore[arg-type]


def newest(target: Path) -> Path:
    return target / (target / "latest").read_text().strip()


@pytest.mark.parametrize("limit", [None, 100_000_000])
def test_checkpoints_are_whole_named_by_latest_and_old_ones_go(
    replica: Replica, shm: Path, tmp_path: Path, limit: int | None
) -> None:
    target = tmp_path / "kept"
    own = config(target, keep_last=2, keep_every=4, rate_limit_bytes_s=limit)
    saver = saver_for(own, tmp_path / "staging", shm / "state")
    for _ in range(7):
        take(replica)
        entry = saver.save(replica.step)
        assert entry.step == replica.step == proved(newest(target))
    there = sorted(path.name for path in target.iterdir())
    assert there == ["checkpoints.json", "latest", "step-4", "step-6", "step-7"]
    told = json.loads((target / "checkpoints.json").read_bytes())
    assert [one["name"] for one in told["entries"]] == ["step-4", "step-6", "step-7"]
    assert not list((tmp_path / "staging").glob("*")) if limit else True
    said = subprocess.run(
        ["sha256sum", *sorted(str(p) for p in newest(target).glob("*.safetensors"))],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    files = json.loads((newest(target) / "manifest.json").read_bytes())["files"]
    assert [line.split()[0] for line in said.stdout.splitlines()] == [
        files[name]["sha256"] for name in sorted(files)
    ]


def test_nothing_that_is_not_its_own_is_taken_away(
    replica: Replica, shm: Path, tmp_path: Path
) -> None:
    target = tmp_path / "kept"
    take(replica)
    saver_for(config(target, keep_last=1), tmp_path, shm / "state", "another run").save(1)
    (target / "step-0").mkdir()
    take(replica)
    own = saver_for(config(target, keep_last=1), tmp_path, shm / "state")
    own.save(2)
    take(replica)
    own.save(3)
    names = {path.name for path in target.iterdir() if path.is_dir()}
    assert names == {"step-0", "step-1", "step-3"}


@pytest.mark.parametrize("limit", [None, 100_000_000])
def test_a_strangers_folder_of_the_steps_name_stays_and_the_step_has_another_name(
    replica: Replica, shm: Path, tmp_path: Path, limit: int | None
) -> None:
    target = tmp_path / "kept"
    (target / "step-1").mkdir(parents=True)
    (target / "step-1" / "trainer.pt").write_text("of the trainer")
    own = config(target, keep_last=1, rate_limit_bytes_s=limit)
    saver = saver_for(own, tmp_path / "staging", shm / "state")
    for _ in range(2):
        take(replica)
        assert saver.save(replica.step).step == proved(newest(target))
    assert (target / "step-1" / "trainer.pt").read_text() == "of the trainer"
    assert {path.name for path in target.iterdir() if path.is_dir()} == {"step-1", "step-2"}


@pytest.mark.parametrize("name", ["..", "../other", "", "mine", "step-1/..", "/step-1"])
@pytest.mark.parametrize("part", ["writing", "leaving"])
def test_a_list_that_names_what_is_no_checkpoint_takes_nothing_away(
    part: str, name: str, replica: Replica, shm: Path, tmp_path: Path
) -> None:
    target = tmp_path / "kept"
    for folder in (tmp_path / "other", target / "mine", target / "step-1"):
        folder.mkdir(parents=True)
        (folder / "thesis.txt").write_text("x")
    (target / "checkpoints.json").write_text(json.dumps({part: [name]}))
    take(replica)
    with refused_as(NOT_A_CHECKPOINT_NAME):
        saver_for(config(target), tmp_path / "staging", shm / "state").save(1)
    assert len(list(tmp_path.rglob("thesis.txt"))) == 3


def test_a_step_of_the_same_number_of_another_past_has_a_name_of_its_own(
    replica: Replica, shm: Path, tmp_path: Path
) -> None:
    target = tmp_path / "kept"
    take(replica, 2)
    saver = saver_for(config(target), tmp_path, shm / "state")
    saver.save(2)
    replica.go_back(1)
    replica.apply(2, replica.parameters().copy())
    entry = saver.save(2)
    assert entry.name == f"step-2-{replica.digest[:8]}"
    assert newest(target).name == entry.name
    assert proved(target / "step-2") == proved(newest(target)) == 2
    assert saver.save(2).name == entry.name


def test_what_is_being_read_stays_until_it_is_not(
    replica: Replica, shm: Path, tmp_path: Path
) -> None:
    import fcntl

    target = tmp_path / "kept"
    saver = saver_for(config(target, keep_last=1), tmp_path, shm / "state")
    take(replica)
    saver.save(1)
    reader = os.open(target / "step-1", os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_SH)
    take(replica)
    saver.save(2)
    assert proved(target / "step-1") == 1
    os.close(reader)
    take(replica)
    saver.save(3)
    assert {path.name for path in target.glob("step-*")} == {"step-3"}


def test_a_file_that_does_not_read_back_is_not_named(
    replica: Replica, shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "kept"
    own = config(target, rate_limit_bytes_s=1 << 40)
    saver = saver_for(own, tmp_path / "staging", shm / "state")
    take(replica)
    saver.save(1)
    take(replica)
    sound = LocalFolder.send

    def send(self: LocalFolder, folder: Path, name: str, *rest: object) -> None:
        sound(self, folder, name, *rest)  # type: ignore[arg-type]
        with (self.root / name / "model.safetensors").open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\xff")

    monkeypatch.setattr(LocalFolder, "send", send)
    with refused_as(
        IN_TENSOR, tensor="model/param.1", why=TENSOR_CHANGED, checkpoint=re.compile("step-2$")
    ):
        saver.save(2)
    assert newest(target).name == "step-1"
    monkeypatch.undo()
    assert saver.save(2).name == "step-2"
    assert proved(newest(target)) == 2


def test_a_full_disk_costs_the_save_and_nothing_that_is_there(
    replica: Replica, shm: Path, tmp_path: Path
) -> None:
    target = tmp_path / "kept"
    saver = saver_for(config(target), tmp_path / "staging", shm / "state")
    take(replica)
    saver.save(1)
    take(replica)
    with no_room(6000), pytest.raises(OSError, match=r"File too large: '.*step-2"):
        saver.save(2)
    assert proved(newest(target)) == 1
    assert {path.name for path in target.iterdir()} == {"checkpoints.json", "latest", "step-1"}
    assert saver.save(2).step == 2 == proved(newest(target))


def test_a_list_of_checkpoints_that_is_none_stops_everything(
    replica: Replica, shm: Path, tmp_path: Path
) -> None:
    (tmp_path / "checkpoints.json").write_text("{")
    take(replica)
    with refused_as(stores.LEDGER_UNREADABLE):
        saver_for(config(tmp_path), tmp_path, shm / "state").save(1)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints.json"]


def test_settings_that_cannot_be_are_refused_by_name() -> None:
    with refused_as(PERSIST_INTERVAL, kind=ConfigError):
        PersistConfig(target="x")
    with refused_as(AT_LEAST, kind=ConfigError, key="persist.keep_last", value="0"):
        PersistConfig(target="x", every_steps=1, keep_last=0)


@pytest.mark.parametrize("form", ["torch", "dcp", "huggingface"])
def test_other_forms_are_folders_with_a_manifest_as_well(
    replica: Replica, shm: Path, tmp_path: Path, form: str
) -> None:
    import torch

    from flowcheck.vault.checkpoint_formats.checkpoint_io import SAVED_FILE, write_step

    take(replica)
    folder = tmp_path / "out"
    folder.mkdir()
    with Steps(shm / "state").hold(1) as held:
        write_step(held.trainer_state, held.layout, folder, form, {})
    assert verify_checkpoint(folder).step == flowcheck.load(folder)["step"] == 1
    if form == "torch":
        tree = torch.load(folder / SAVED_FILE, weights_only=True)
        own = torch.from_numpy(replica.parameters()[: tree["model"]["param.0"].numel()].copy())
        assert torch.equal(tree["model"]["param.0"], own)


def test_a_form_or_a_package_that_there_is_not_is_named(tmp_path: Path) -> None:
    from flowcheck.vault.checkpoint_formats.checkpoint_io import check_save_format

    with refused_as(ONE_OF, kind=ConfigError, key="persist.format", value="'onnx'"):
        check_save_format(config(tmp_path, format="onnx"))
    with refused_as(ERROR_TEXT, kind=ConfigError, key="persist.format_options"):
        check_save_format(config(tmp_path, format_options={"ranks": "two"}))
    for url, package in (("gs://bucket/x", "gcsfs"), ("abfs://box/x", "adlfs")):
        own = PersistConfig(target=url, every_steps=1, options={"token": "anon"})
        with refused_as(stores.NEEDS_PACKAGE, kind=ConfigError, package=package):
            check_target(own)
    with refused_as(stores.UNKNOWN_SCHEME, kind=ConfigError):
        check_target(PersistConfig(target="tape://x", every_steps=1))
