"""The run directory: whose it is, and that nobody takes what another uses."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from support.refused_as import refused_as

from flowcheck.config import encode_config, load_job
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.run_directories import HOLDS_FOREIGN_FILES, IN_USE, SETTINGS_DAMAGED
from flowcheck.stages.run_directory.run_dir import RunDir


def test_a_run_directory_in_use_is_refused_and_one_left_behind_is_taken(
    tmp_path: Path, shm: Path
) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        run = RunDir.create(tmp_path / "r", shm)
        memory = run.memory
        (memory / "ring-0").write_text("left behind")
        run.note_pid("supervisor", other.pid)
        with refused_as(IN_USE, kind=ConfigError, pid=other.pid):
            RunDir.create(tmp_path / "r", shm)
        other.kill()
    again = RunDir.create(tmp_path / "r", shm)
    assert not memory.exists()
    assert again.memory.is_dir()
    again.remove()
    assert list(shm.iterdir()) == []


def test_a_folder_of_somebody_else_is_refused_and_nothing_in_it_goes(
    tmp_path: Path, shm: Path
) -> None:
    """As `up --run .` and `down --run .` in a project that has folders of the same names."""
    far = tmp_path / "far"
    for place in ("sockets/a", "pids/b", "previous/c", "learned/d", "jobs/one/sockets/e", "memory"):
        root = tmp_path / "project" / place.partition("/")[0]
        far.mkdir(exist_ok=True)
        (far / "thesis.txt").write_text("x")
        if place == "memory":
            root.mkdir(parents=True)
            (root / "memory").symlink_to(far)
        else:
            (root / place).parent.mkdir(parents=True)
            (root / place).write_text("x")
        before = sorted(tmp_path.rglob("*"))
        with refused_as(HOLDS_FOREIGN_FILES, kind=ConfigError):
            RunDir.create(root, shm)
        for keep_records in (True, False):
            RunDir(root).remove(keep_records=keep_records)
        assert sorted(tmp_path.rglob("*")) == before and (far / "thesis.txt").exists()
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "config.json").write_text('{"name": "my model"}')
    with refused_as(HOLDS_FOREIGN_FILES, kind=ConfigError, names=("config.json",)):
        RunDir.create(tmp_path / "own", shm)
    assert list(shm.iterdir()) == []


@pytest.mark.parametrize("keep_records", [True, False])
def test_a_run_directory_is_taken_again_after_each_end(
    tmp_path: Path, shm: Path, keep_records: bool
) -> None:
    job = tmp_path / "job.toml"
    job.write_text('[[source]]\nfile = "x"\n[optimizer]\nname = "sgd"\nlearning_rate = 0.1\n')
    for _ in range(3):
        run = RunDir.create(tmp_path / "r", shm)
        run.config.write_bytes(encode_config(load_job(job)))
        run.learned_job.write_text("{}")
        run.remove(keep_records=keep_records)
        assert run.config.exists() == keep_records
    crashed = RunDir.create(tmp_path / "r", shm)
    (crashed.memory / "ring-0").write_text("x")
    crashed.config.write_bytes(b"")
    memory = crashed.memory
    RunDir.create(tmp_path / "r", shm).remove()
    assert not memory.exists() and list(shm.iterdir()) == []


def test_a_reused_process_number_is_nobody_of_ours(tmp_path: Path, shm: Path) -> None:
    run = RunDir.create(tmp_path / "r", shm)
    (run.pids / "parse-0").write_text("1 1")  # process 1 lives, but was not started at tick 1
    assert "parse-0" not in run.stage_pids()
    run.remove()


def test_shared_memory_and_sockets_are_for_their_owner_alone(tmp_path: Path, shm: Path) -> None:
    run = RunDir.create(tmp_path / "r", shm)
    modes = {str(p): p.stat().st_mode & 0o077 for p in (run.memory, run.sockets)}
    assert set(modes.values()) == {0}
    run.remove()


def test_a_process_file_that_goes_while_it_is_looked_for_is_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(tmp_path)
    run.pids.mkdir()
    (run.pids / "supervisor").write_text("1 1\n")
    listed = list(run.pids.glob("*"))
    (run.pids / "supervisor").unlink()
    monkeypatch.setattr(Path, "glob", lambda *_: iter(listed))
    assert run.stage_pids() == {}


@pytest.mark.parametrize("flipped", [5, 6, 7])  # what remains is no other digit
def test_a_damaged_process_file_names_no_process(tmp_path: Path, flipped: int) -> None:
    run = RunDir(tmp_path)
    run.pids.mkdir()
    run.note_pid("supervisor", os.getpid())
    told = bytearray((run.pids / "supervisor").read_bytes())
    for at in range(len(told)):
        told[at] ^= 1 << flipped
        (run.pids / "supervisor").write_bytes(told)
        assert run.stage_pids() == {}
        told[at] ^= 1 << flipped
    (run.pids / "supervisor").write_bytes(told)
    assert run.stage_pids() == {"supervisor": os.getpid()}


@pytest.mark.parametrize("text", [b"", b'{"source": [', b'{"naees": 1}', b"\xff\xfe", b"[]"])
def test_damaged_settings_of_a_killed_run_are_refused_by_name(tmp_path: Path, text: bytes) -> None:
    run = RunDir(tmp_path)
    run.config.write_bytes(text)
    with refused_as(SETTINGS_DAMAGED, kind=ConfigError, value=re.compile(r"config\.json")):
        run.settings()
