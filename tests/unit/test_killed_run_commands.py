"""What is printed of a killed run, and of a manifest that may not be read, can be run as it
stands: with the run's folder, the user and the files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.refused_as import refused_as

from flowcheck.config import job_from
from flowcheck.errors import RunDirError, StateError
from flowcheck.findings.catalog.checkpoint_damage import MANIFEST_FORBIDDEN
from flowcheck.findings.catalog.run_directories import (
    FOUND_NOTHING,
    FOUND_OTHER,
    NO_CHAIN_STARTED,
    NOTHING_TO_STOP,
    RUN_IS_FILE,
)
from flowcheck.ops.lifecycle.chain_runner import create_run
from flowcheck.ops.lifecycle.shutdown_cleanup import down
from flowcheck.ops.lifecycle.status_command import print_state, read_chain
from flowcheck.replica.checkpoint_files.manifest import manifest_text
from flowcheck.stages.run_directory.run_dir import RunDir

OPTIMIZER = {"name": "sgd", "learning_rate": 0.1}


@pytest.mark.parametrize(("kind", "again"), [("file", "replay"), ("interface", "up")])
def test_a_killed_run_is_told_with_its_folder(
    kind: str, again: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = create_run(
        job_from({"source": [{kind: "x"}], "optimizer": OPTIMIZER}), tmp_path / "a run"
    )
    run.steps.write_text('{"step":5,"digest":"d","seconds":0.1}\n')
    (run.pids / "supervisor").write_text("999999 0")
    try:
        print_state(read_chain(run), [])
    finally:
        run.remove(keep_records=False)
    out = capsys.readouterr().out
    commands = [one for one in out.split("`")[1::2] if one.startswith("flowcheck ")]
    assert {one.split()[1] for one in commands} == {"audit", "down", "restore", again}
    assert all(f"--run '{run.root}'" in one for one in commands)


def test_a_manifest_that_may_not_be_read_names_user_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, beside = tmp_path / "a.pt", tmp_path / "a.pt.manifest.json"
    for file in (output, beside):
        file.write_bytes(b"{}")

    def denied(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", denied)
    uid = os.geteuid()
    with refused_as(MANIFEST_FORBIDDEN, output=str(output), manifest=str(beside), uid=uid) as why:
        manifest_text(output)
    assert isinstance(why.value, StateError)
    assert f"setfacl -m u:{uid}:r {output} {beside}" in why.value.finding.remedy


def test_what_stands_where_no_chain_was_started_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place, found in (
        (tmp_path / "none", FOUND_NOTHING()),
        (tmp_path, FOUND_OTHER()),
    ):
        with pytest.raises(RunDirError) as why:
            RunDir(place).settings()
        assert why.value.finding == NO_CHAIN_STARTED(place, found)
        assert "`--run`" in why.value.finding.remedy


def test_a_file_is_no_place_where_a_chain_is_started(tmp_path: Path) -> None:
    """Neither `status` nor `down` says that it does not exist, or offers `up` with it."""
    file = tmp_path / "a job.pcap"
    file.touch()
    for entry, refused in (
        (RUN_IS_FILE, RunDir(file).settings),
        (NOTHING_TO_STOP, lambda: down(file, discard=False, as_json=False)),
    ):
        with pytest.raises(RunDirError) as why:
            refused()
        found = why.value.finding
        assert found == entry(file)
        assert "not exist" not in found.cause and "flowcheck up" not in found.remedy
