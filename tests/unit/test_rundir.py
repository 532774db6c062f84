"""The run directory: whose it is, and that nobody takes what another uses."""

import subprocess
from pathlib import Path

import pytest

from flowcheck.errors import ConfigError
from flowcheck.stages.rundir import RunDir


def test_a_run_directory_in_use_is_refused_and_one_left_behind_is_taken(
    tmp_path: Path, shm: Path
) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        run = RunDir.create(tmp_path / "r", shm)
        memory = run.memory
        (memory / "ring-0").write_text("left behind")
        run.note_pid("supervisor", other.pid)
        with pytest.raises(ConfigError, match=f"in use by process {other.pid}: flowcheck down"):
            RunDir.create(tmp_path / "r", shm)
        other.kill()
    again = RunDir.create(tmp_path / "r", shm)
    assert not memory.exists()
    assert again.memory.is_dir()
    again.remove()
    assert list(shm.iterdir()) == []


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
