"""What killed chains left: told to whom it belongs, removed where nobody can use it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from flowcheck.cli import app
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.earlier_files import earlier_finding
from flowcheck.findings.catalog.how_chains_end import (
    LEFT_BY_SEVERAL,
    LEFT_REMOVABLE,
    LEFT_WITH_REPLAY,
    LEFT_WITH_REPLICA,
)
from flowcheck.findings.catalog.refused_options import LEFTOVERS_ALONE
from flowcheck.ops.lifecycle import leftover_memory
from flowcheck.ops.lifecycle.status_command import print_state, read_chain
from flowcheck.ops.watch.state.chain_state import StageState
from flowcheck.ops.watch.state.replay_options_record import REPLAY_PREFIX
from flowcheck.stages.run_directory.process_liveness import (
    process_identity,
    run_dir_of_memory,
    stale_memory,
)
from flowcheck.stages.run_directory.run_dir import RunDir

MAKE = """
import os, signal, sys
from pathlib import Path
from flowcheck.stages.run_directory.run_dir import RunDir
run = RunDir.create(Path(sys.argv[1]), Path(sys.argv[2]))
if "bare" not in sys.argv:
    (run.memory / "ring-0").write_bytes(bytes(3 << 20))
if "replica" in sys.argv:
    (run.memory / "replica").write_bytes(b"weights")
print(run.memory, flush=True)
if "live" in sys.argv:
    sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def only_here(shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No other chain of this machine is looked at."""
    monkeypatch.setattr(leftover_memory, "SHM", shm)
    monkeypatch.setattr(leftover_memory, "hugetlbfs_mounts", list)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield


def killed(root: Path, shm: Path, *words: str) -> Path:
    """The shared memory of a run whose process was killed."""
    command = [sys.executable, "-c", MAKE, str(root), str(shm), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -9, done.stderr
    return Path(done.stdout.strip())


def cleared(elsewhere: Path, *, replicas: bool = False) -> leftover_memory.RemovedLeftovers:
    return leftover_memory.remove_leftovers(except_run=elsewhere, replicas=replicas)


def test_memory_of_a_killed_chain_is_left_and_told_with_its_run_directory(
    tmp_path: Path, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = killed(tmp_path / "r", shm, "replica")
    assert run_dir_of_memory(memory) == tmp_path / "r"
    (found,) = leftover_memory.find_leftover_memory()
    assert (found.memory, found.run, found.has_replica) == (memory, tmp_path / "r", True)
    assert 3 <= found.size_bytes >> 20 <= 4
    done = cleared(tmp_path / "other", replicas=True)
    assert done.removed == [] and memory.is_dir()
    (left,) = leftover_memory.summary_findings(done.kept)
    assert left == LEFT_WITH_REPLICA(run=tmp_path / "r", mib=3)
    assert f"flowcheck down --run {tmp_path / 'r'}" in str(left)
    assert cleared(tmp_path / "r").kept == [], "who looks after it does not tell of it too"
    monkeypatch.setattr(sys.modules["flowcheck.cli.main"], "DEFAULT_RUN", tmp_path / "other")
    down = CliRunner().invoke(app, ["down"])
    assert down.stdout == f"nothing runs in {tmp_path / 'other'}\n"  # that is for up and status


def test_what_several_chains_left_is_told_in_a_line_and_of_other_users_nothing(
    tmp_path: Path, shm: Path
) -> None:
    memories = {killed(tmp_path / name, shm) for name in ("a", "b", "c")}
    found = leftover_memory.find_leftover_memory()
    (left,) = leftover_memory.summary_findings(found)
    assert left.is_any_of(LEFT_BY_SEVERAL) and left.arguments["chains"] == 3
    assert "flowcheck status --leftovers" in str(left)
    told = CliRunner().invoke(app, ["status", "--leftovers"]).stdout.splitlines()
    assert [sum(f"--run {tmp_path / name}" in line for line in told) for name in "abc"] == [1] * 3
    for memory in memories:
        os.chown(memory, 12345, -1)
    assert leftover_memory.summary_findings(leftover_memory.find_leftover_memory()) == []


def pasted(line: str) -> list[str]:
    """The words of the first command that a line shows, as a shell reads them."""
    program, *words = shlex.split(line.split("`")[1])
    assert program == "flowcheck"
    return words


def test_the_command_that_status_prints_acts_on_that_run_alone(tmp_path: Path, shm: Path) -> None:
    memories = {name: killed(tmp_path / name, shm) for name in ("a b", "c")}
    told = CliRunner().invoke(app, ["status", "--leftovers"]).stdout.splitlines()
    (line,) = [one for one in told if f"the chain in {tmp_path}/a b was" in one]
    words = pasted(line)
    assert words == ["down", "--run", str(tmp_path / "a b")]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert not memories["a b"].exists() and memories["c"].is_dir()


def test_the_command_for_memory_of_no_run_stops_no_chain(
    tmp_path: Path, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, kept = killed(tmp_path / "r", shm, "replica"), killed(tmp_path / "kept", shm)
    (tmp_path / "r" / "memory").unlink()
    monkeypatch.setattr(sys.modules["flowcheck.cli.main"], "DEFAULT_RUN", tmp_path / "live")
    command = [sys.executable, "-c", MAKE, str(tmp_path / "live"), str(shm), "live"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as live:
        assert live.stdout is not None and live.stdin is not None
        of_live = Path(live.stdout.readline().strip())
        told = CliRunner().invoke(app, ["status", "--leftovers"]).stdout.splitlines()
        (line,) = [one for one in told if str(memory) in one]
        done = CliRunner().invoke(app, pasted(line))
        assert done.exit_code == 0 and str(memory) in done.stdout
        assert live.poll() is None and of_live.is_dir()
        assert not memory.exists() and kept.is_dir()
        (one,) = json.loads(CliRunner().invoke(app, [*pasted(line), "--json"]).stdout)["left"]
        assert one["arguments"]["run"] == str(tmp_path / "kept")
        live.stdin.close()
    refused = CliRunner().invoke(app, ["down", "--leftovers", "--run", str(tmp_path / "live")])
    assert isinstance(refused.exception, ConfigError)
    assert refused.exception.right == LEFTOVERS_ALONE()


def test_a_killed_replay_is_told_to_be_replayed(tmp_path: Path, shm: Path) -> None:
    """There is no job that `up` could follow again."""
    for name, source in (("replay", {"file": "/c.pcap"}), ("live", {"interface": "eth1"})):
        killed(tmp_path / name, shm, "replica")
        settings = {"source": [source], "optimizer": {"name": "sgd", "learning_rate": 0.1}}
        (tmp_path / name / "config.json").write_text(json.dumps(settings | {"ring": {}}))
    found = {one.run: one.finding for one in leftover_memory.find_leftover_memory()}
    replay, live = found[tmp_path / "replay"], found[tmp_path / "live"]
    assert replay.is_any_of(LEFT_WITH_REPLAY) and live.is_any_of(LEFT_WITH_REPLICA)
    assert f"flowcheck replay FILE... --run {tmp_path}/replay --out FOLDER" in replay.remedy
    assert f"flowcheck up JOB.toml --run {tmp_path}/live" in live.remedy
    assert "flowcheck up" not in replay.remedy


def test_jobs_of_one_killed_chain_are_one_leftover_and_the_chains_own_business(
    tmp_path: Path, shm: Path
) -> None:
    for root in (tmp_path / "r", tmp_path / "r" / "jobs" / "2"):
        killed(root, shm, "replica")
    (left,) = leftover_memory.summary_findings(leftover_memory.find_leftover_memory())
    assert left == LEFT_WITH_REPLICA(run=tmp_path / "r", mib=6)
    assert str(left).endswith(f"with its replica: `flowcheck down --run {tmp_path}/r`")
    assert cleared(tmp_path / "r").kept == [], "whoever asks looks after all of it"
    alone = tmp_path / "s" / "jobs" / "2"  # a chain's name may be anything
    killed(alone, shm)
    assert alone in {one.run for one in leftover_memory.find_leftover_memory()}
    (line,) = leftover_memory.summary_findings(leftover_memory.find_leftover_memory())
    assert line == LEFT_BY_SEVERAL(chains=2, mib=9)


def test_memory_no_run_directory_leads_to_is_removed(tmp_path: Path, shm: Path) -> None:
    memory = killed(tmp_path / "r", shm)
    (tmp_path / "r" / "memory").unlink()
    assert cleared(tmp_path / "other").removed == [str(memory)]
    assert not memory.exists()


def test_a_replica_no_run_directory_leads_to_goes_only_when_that_is_asked_for(
    tmp_path: Path, shm: Path
) -> None:
    memory = killed(tmp_path / "r", shm, "replica")
    (tmp_path / "r" / "memory").unlink()
    done = cleared(tmp_path / "other")
    assert done.removed == [] and done.kept[0].finding.is_any_of(LEFT_REMOVABLE)
    assert "`flowcheck down --leftovers` removes it" in str(done.kept[0].finding)
    assert cleared(tmp_path / "other", replicas=True).removed == [str(memory)]


def test_a_killed_replay_of_nobodys_goes_with_its_folder(tmp_path: Path, shm: Path) -> None:
    run = tmp_path / f"{REPLAY_PREFIX}x1"
    memory = killed(run, shm, "replica")
    kept = tmp_path / "flowcheck-mine"
    own = killed(kept, shm, "replica")
    assert cleared(tmp_path / "other").removed == [str(memory)]
    assert not memory.exists() and not run.exists()
    assert own.exists() and kept.exists()


def test_a_run_directory_of_any_name_is_found(tmp_path: Path, shm: Path) -> None:
    for name in ("with space", "ümlaut-é", "a" * 60, "../" + tmp_path.name + "/up"):
        run = RunDir.create(tmp_path / name, shm)
        assert run_dir_of_memory(run.memory) == (tmp_path / name).resolve()
        run.remove()
    (shm / "run-%%").touch()
    assert run_dir_of_memory(shm) is None


def test_what_another_user_put_there_ends_no_verb_and_is_obeyed_by_no_terminal(
    tmp_path: Path, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("flowcheck-\N{SUPERSCRIPT TWO}-1-1", "flowcheck-1-\N{SUPERSCRIPT ONE}-1"):
        (shm / name).mkdir()
    mine = shm / "flowcheck-4194305-1-\x1b]0;mine\x07"
    mine.mkdir()
    told = CliRunner().invoke(app, ["status", "--leftovers"]).stdout
    assert "mine" in told and told.strip("\n").isprintable()
    monkeypatch.setattr(
        leftover_memory.shutil, "rmtree", lambda *_, **__: None
    )  # of no right to it
    assert cleared(tmp_path / "other").removed == []
    monkeypatch.undo()
    monkeypatch.setattr(leftover_memory, "SHM", shm)
    monkeypatch.setattr(leftover_memory, "hugetlbfs_mounts", list)
    monkeypatch.setattr(sys.modules["flowcheck.cli.main"], "DEFAULT_RUN", tmp_path / "other")
    down = CliRunner().invoke(app, ["down"])
    assert "removed" in down.stdout and all(map(str.isprintable, down.stdout.splitlines()))


def test_status_says_names_as_they_are_and_no_terminal_obeys_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = read_chain(RunDir(tmp_path / "[red]run"))
    gone = StageState(name="supervisor", job=1, pid=None, started=True, restarts=0, gone_s=1.0)
    state = msgspec.structs.replace(state, stages=(gone,))
    print_state(
        msgspec.structs.replace(state, watched="\x1b]0;mine\x07"), [earlier_finding("\x9b2J")]
    )
    said = capsys.readouterr().out
    assert "watched at \\x1b]0;mine\\x07\n" in said and "\n\\x9b2J\n" in said
    assert f"--run {shlex.quote(f'{tmp_path}/[red]run')}` removes" in said


def test_memory_of_a_living_chain_is_nobodys_leftover(tmp_path: Path, shm: Path) -> None:
    run = RunDir.create(tmp_path / "r", shm)
    (shm / "flowcheck-notes").mkdir()
    (shm / "flowcheck-a-b-c").mkdir()
    assert stale_memory([shm]) == []
    assert cleared(tmp_path / "other", replicas=True) == leftover_memory.RemovedLeftovers()
    run.remove()
    assert stale_memory([shm]) == []


def test_an_owner_whose_number_is_another_containers_still_holds_its_memory(
    tmp_path: Path, shm: Path
) -> None:
    command = [sys.executable, "-c", MAKE, str(tmp_path / "r"), str(shm), "live"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None and owner.stdin is not None
        memory = Path(owner.stdout.readline().strip())
        # As this process would see it from a PID namespace of its own: a number that is nobody's.
        unknown = memory.rename(shm / "flowcheck-4194305-1-0")
        assert stale_memory([shm]) == []
        owner.stdin.close()
    assert stale_memory([shm]) == [unknown]


def test_an_identity_is_a_number_and_a_start() -> None:
    told = process_identity(os.getpid())
    stat = Path(f"/proc/{os.getpid()}/stat").read_text()
    assert told == f"{os.getpid()} {stat.rpartition(')')[2].split()[19]}"
    assert process_identity(4194305) == "0 0"


@pytest.mark.lab
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_run_on_huge_pages_is_made_found_and_removed_like_any(tmp_path: Path) -> None:
    """hugetlbfs refuses links and text; no page is needed to make folders in it."""
    mount = tmp_path / "huge"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "hugetlbfs", "none", mount], check=False).returncode:
        pytest.skip("hugetlbfs cannot be mounted here")
    try:
        run = RunDir.create(tmp_path / "r", mount)
        assert run.memory.parent == mount and run_dir_of_memory(run.memory) == tmp_path / "r"
        run.remove()
        assert list(mount.iterdir()) == []
        killed(tmp_path / "s", mount, "bare")
        (memory,) = stale_memory([mount])
        assert run_dir_of_memory(memory) == tmp_path / "s"
        RunDir(tmp_path / "s").remove()
        assert stale_memory([mount]) == []
    finally:
        subprocess.run(["umount", mount], check=True)
