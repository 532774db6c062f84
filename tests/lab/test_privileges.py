"""Whom a chain's processes are when root starts it, as the kernel tells it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from support.chain import ExecutedCommand as Command
from support.chain import wait_until
from support.veth import veth

from flowcheck.stages.privilege import privilege_syscalls
from flowcheck.stages.privilege.capture_capabilities import INTERFACE_CAPABILITIES
from flowcheck.stages.run_directory.run_dir import RunDir

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to give up")

SMALL = Path(__file__).resolve().parents[1] / "data" / "two-ranks-ll.pcapng"
FACTORY = """
import os, torch
told = []
def attempt(what):
    try:
        what()
        told.append("done")
    except OSError as error:
        told.append(type(error).__name__)
def write():
    open("/etc/flowcheck-was-here", "w").close()
def make():
    attempt(lambda: os.setuid(0))
    attempt(lambda: open("/etc/shadow").read())
    attempt(write)
    status = open("/proc/self/status").read()
    rights = [line.split()[1] for line in status.splitlines()
              if line.startswith(("Uid", "CapPrm", "CapEff", "CapInh", "CapAmb", "CapBnd"))]
    raise RuntimeError(" ".join(told + rights))
"""


def test_code_of_the_user_has_no_rights_to_use_or_to_take(tmp_path: Path) -> None:
    """Its file lies in a folder of root's alone, as home and temporary folders are."""
    (tmp_path / "net.py").write_text(FACTORY)
    with Command("plan", f"{tmp_path}/net.py:make") as command:
        code, _, said = command.result()
    assert code == 2
    told = said.replace("\n", " ")
    assert "PermissionError PermissionError PermissionError" in told
    user = told.partition("PermissionError PermissionError PermissionError ")[2]
    user = re.split(r"[\s,]+", user)
    assert user[0] != "0"
    assert set(user[1:6]) == {"0" * 16}
    assert not Path("/etc/flowcheck-was-here").exists()


def starters(supervisor: int) -> list[int]:
    """Those of a chain, first the one that answers: its parent is the supervisor."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if b"flowcheck.stages.privilege.capture_starter" in words and words[-2] == (
                str(supervisor).encode()
            ):
                told = (process / "stat").read_text().rpartition(")")[2].split()
                if told[0] != "Z":
                    found[int(process.name)] = int(told[1])
    return sorted(found, key=lambda pid: found[pid] != supervisor)


def test_each_stage_of_a_live_chain_has_what_it_needs_and_no_more(tmp_path: Path) -> None:
    """So has what takes the place of a killed one, be it the process that starts captures. Where
    nothing can, as both of these are gone, the chain ends, and its end tells just that."""
    run = RunDir(tmp_path / "run")
    stages = {"supervisor", "update", "extract", "parse-0", "capture-0", "watch"}
    with veth() as cable:
        (tmp_path / "job.toml").write_text(
            f'run = "{run.root}"\n[[source]]\ninterface = "{cable.tap}"\n'
            '[watch]\nlisten = "127.0.0.1:0"\n[ring]\nslots = 4096\n'
            "[staging]\nsize_bytes = 16_777_216\n"
            '[optimizer]\nname = "adamw"\nlearning_rate = 0.001\n'
        )
        words = ["ip", "netns", "exec", cable.namespace, sys.executable, "-m", "flowcheck", "up"]
        chain = subprocess.Popen([*words, str(tmp_path / "job.toml")], stderr=subprocess.PIPE)
        try:
            wait_until(lambda: set(run.stage_pids()) >= stages, 60.0, "every stage runs")
            wait_until(
                lambda: '"capture-0"' in (run.events.read_text() if run.events.exists() else ""),
                60.0,
                "capture greets",
            )
            found = {
                name: privilege_syscalls.rights_of(pid) for name, pid in run.stage_pids().items()
            }
            supervisor = run.stage_pids()["supervisor"]

            def kill_and_await_another(which: int) -> None:
                """Of the two that start captures, then of a capture, which one of these starts."""
                # One that a capture is just made from has these words as well.
                wait_until(lambda: len(starters(supervisor)) == 2, 60.0, "there are two")
                two, capture = starters(supervisor), run.stage_pids()["capture-0"]
                os.kill(two.pop(which), 9)
                wait_until(
                    lambda: len({*starters(supervisor)} - {*two}) == 1, 60.0, "there are two again"
                )
                os.kill(capture, 9)
                wait_until(
                    lambda: run.stage_pids().get("capture-0") not in (None, capture),
                    60.0,
                    "capture is started again",
                )
                found["capture again"] = privilege_syscalls.rights_of(run.stage_pids()["capture-0"])

            for which in (0, 1):  # the one that answers, the one beside it
                kill_and_await_another(which)
            wait_until(lambda: len(starters(supervisor)) == 2, 60.0, "there are two")
            for number, pid in enumerate(starters(supervisor)):
                found[f"capture's starter {number}"] = privilege_syscalls.rights_of(pid)
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for pid in starters(supervisor):
                    os.kill(pid, number)
            os.kill(run.stage_pids()["capture-0"], 9)
            said = chain.communicate(timeout=60)[1].decode()
        finally:
            chain.kill()
            chain.communicate()
    assert chain.returncode == 2
    with Command("status", "--run", run.root, "--json") as command:
        ended = json.loads(command.result()[1])
    assert "processes that start captures are gone" in " ".join(said.split())
    assert "flowcheck up" in said and "flowcheck down" not in said
    assert ended["event_counts"]["restart"] == 2
    users = {user for rights in found.values() for user in rights.users}
    assert len(users) == 1 and 0 not in users
    assert all(rights.no_new for rights in found.values())
    for name, rights in found.items():
        own = (
            privilege_syscalls.capability_mask(INTERFACE_CAPABILITIES)
            if name.startswith("capture")
            else 0
        )
        sets = (rights.permitted, rights.effective, rights.inheritable, rights.ambient)
        assert set(sets) | {rights.bounding} == {own}, name


@pytest.mark.parametrize(
    "name", ["new.svg", pytest.param("old.svg", marks=pytest.mark.nightly), "notes.txt"]
)
def test_a_picture_of_a_capture_lies_where_root_asked_for_it(tmp_path: Path, name: str) -> None:
    """In a folder of root's alone: it takes the place of a picture, and of nothing else."""
    before = {"old.svg": "<svg/>", "notes.txt": "mine"}
    if name in before:
        (tmp_path / name).write_text(before[name])
    capture = tmp_path / "capture.pcapng"
    capture.write_bytes(SMALL.read_bytes())
    with Command("analyze", capture, "--svg", tmp_path / name) as command:
        code, _, said = command.result()
    refused = name == "notes.txt"
    assert code == (2 if refused else 0), said
    assert ("not a picture of FlowCheck's" in said) == refused
    written = (tmp_path / name).read_text()
    assert written == "mine" if refused else written.startswith("<svg ")
    assert (tmp_path / name).stat().st_uid == 0
    assert {path.name for path in tmp_path.iterdir()} == {"capture.pcapng", name}


def test_a_capture_is_not_read_with_roots_rights(tmp_path: Path) -> None:
    """Whoever sent its frames made it."""
    users: set[tuple[int, ...]] = set()
    with Command("analyze", SMALL) as command:
        while command.process.poll() is None:
            with suppress(OSError, IndexError, KeyError):
                users.add(privilege_syscalls.rights_of(command.process.pid).users)
        assert command.result()[0] == 0
    assert any(0 not in own for own in users), users


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["pipe", "/dev/zero", "pids/pipe"])
def test_root_waits_for_nothing_that_a_chains_user_put_among_its_records(
    tmp_path: Path, kind: str
) -> None:
    run = tmp_path / "run"
    (run / "pids").mkdir(parents=True)
    if kind.startswith("/"):
        (run / "config.json").symlink_to(kind)
    else:
        os.mkfifo(run / ("pids/update" if "/" in kind else "steps.jsonl"))
    os.chown(run, 61000, 61000)
    run.chmod(0o700)
    for verb in ("status", "top"):
        with Command(verb, "--run", run, "--json") as command:
            code, _, said = command.result(30)
        assert code == 2 and "which is no file or folder of a chain" in said, said


@pytest.mark.parametrize("folder", [pytest.param("made", marks=pytest.mark.nightly), "there"])
def test_the_log_of_gradients_of_a_replay_goes_where_the_job_file_names_it(
    tmp_path: Path, folder: str
) -> None:
    """In a folder that is not there, or is root's and empty: the chain's user writes it."""
    if folder == "there":
        (tmp_path / folder).mkdir(mode=0o700)
    log = tmp_path / folder / "gradients"
    (tmp_path / "job.toml").write_text(
        f'[optimizer]\nname = "sgd"\nlearning_rate = 0.1\n[replica]\nawaits_base = true\n'
        f'[gradient_log]\nfile = "{log}"\nmemory_bytes = 1024\nfile_bytes = 1_048_576\n'
    )
    words = ("--job", tmp_path / "job.toml", "--out", tmp_path / "out", "--source", "file")
    with Command("replay", SMALL, *words) as command:
        _, out, said = command.result()
    assert "0 steps applied" in out, out + said
    assert log.stat().st_uid not in (0, os.geteuid())
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_chain_leaves_nothing_below_tmp_whose_name_others_know(shm: Path) -> None:
    """Who makes such a name before, owns what libraries read there."""
    pytest.importorskip("flowcheck._dpdk", reason="libdpdk is not here")
    look = 'mount -t tmpfs -o mode=1777 none /tmp && "$@" && echo "left: $(ls -A /tmp)."'
    chain = [sys.executable, "-m", "flowcheck", "replay", str(SMALL), "--source", "dpdk"]
    chain += ["--optimizer", "sgd", "--lr", "0.1", "--out", str(shm / "out")]
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", look, "sh", *chain]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert "4 steps applied" in done.stdout, done.stdout + done.stderr
    assert done.stdout.endswith("left: .\n"), done.stdout


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run and a checkpoint of the chain's user, in a folder that only root may write in."""
    folder = tmp_path_factory.mktemp("of-root")
    words = ("--lr", "0.0003", "--run", folder / "run", "--out", folder / "kept")
    with Command("replay", SMALL, *words) as command:
        assert command.result(120)[0] == 0
    assert (folder / "kept").stat().st_uid != 0
    return folder


def restored(folder: Path, form: str, out: str, *more: str) -> tuple[int, str]:
    (kept,) = (folder / "kept").glob("step-*")
    words = ("--run", folder / "run", "--checkpoint", kept, "--format", form, *more)
    with Command("restore", *words, "--out", folder / out) as command:
        code, _, said = command.result(120)
    return code, said.replace("\n", " ")


@pytest.mark.parametrize("form", ["torch", pytest.param("dcp", marks=pytest.mark.nightly)])
def test_what_root_has_restored_lies_where_it_was_asked_for_and_may_be_replaced(
    replayed: Path, form: str
) -> None:
    out = f"out-{form}"
    assert restored(replayed, form, out)[0] == 0
    first = (replayed / out).stat()
    assert first.st_uid == 0
    code, said = restored(replayed, form, out)
    assert code == 2 and "already exists" in said
    assert (replayed / out).stat().st_ino == first.st_ino
    assert restored(replayed, form, out, "--force")[0] == 0
    again = (replayed / out).stat()
    assert again.st_ino != first.st_ino and again.st_uid == 0
    with Command("verify", replayed / out) as command:
        assert command.result(60)[0] == 0
    assert not [path for path in replayed.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("form", ["torch", pytest.param("dcp", marks=pytest.mark.nightly)])
def test_what_root_replaces_stays_its_owners(replayed: Path, form: str) -> None:
    """Written by the chain's user, and put there by root."""
    out = replayed / f"theirs-{form}"
    assert restored(replayed, form, out.name)[0] == 0
    held = [out, *out.rglob("*"), *replayed.glob(f"{out.name}.manifest.json")]
    for path in held:
        os.chown(path, 4321, 4322)
    assert restored(replayed, form, out.name, "--force")[0] == 0
    assert {(path.stat().st_uid, path.stat().st_gid) for path in held} == {(4321, 4322)}


@pytest.mark.parametrize("form", [pytest.param("dcp", marks=pytest.mark.nightly), "torch"])
def test_roots_own_result_is_replaced_where_the_chains_user_may_write_too(
    replayed: Path, form: str
) -> None:
    """As below /tmp: the user may neither read the earlier one nor rename it."""
    shared = replayed / f"shared-{form}"
    shared.mkdir()
    shared.chmod(0o1777)
    out = shared / "out"
    words = ("--checkpoint", replayed / "kept", "--format", form, "--out", out)
    with Command("restore", *words) as command:
        assert command.result(60)[0] == 0
    first = out.stat()
    assert first.st_uid == 0
    code, said = restored(replayed, form, f"{shared.name}/out")
    assert code == 2 and "already exists" in said
    assert restored(replayed, form, f"{shared.name}/out", "--force")[0] == 0
    again = out.stat()
    assert again.st_ino != first.st_ino and again.st_uid == 0
    with Command("verify", out) as command:
        assert command.result(60)[0] == 0
    assert not [path for path in shared.iterdir() if path.name.startswith(".")]


def test_a_reader_that_closes_the_pipe_costs_no_result(replayed: Path) -> None:
    """As `| head -1`: the exit code is that of every command."""
    words = ["--run", replayed / "run", "--checkpoint", replayed / "kept", "--format", "torch"]
    read, write = os.pipe()
    os.close(read)
    program = [sys.executable, "-m", "flowcheck"]
    restore = ["restore", *map(str, words), "--out", str(replayed / "unread")]
    codes = []
    for command in (restore, ["switch", "list"]):
        done = subprocess.run(
            [*program, *command], stdout=write, stderr=subprocess.PIPE, timeout=120, check=False
        )
        assert done.stderr == b""
        codes.append(done.returncode)
    os.close(write)
    assert codes[0] == codes[1]
    with Command("verify", replayed / "unread") as command:
        assert command.result(60)[0] == 0


@pytest.mark.parametrize("form", [pytest.param("torch", marks=pytest.mark.nightly), "dcp"])
def test_root_replaces_nothing_that_no_restore_of_ours_wrote(replayed: Path, form: str) -> None:
    """Not with --force either; a link that leads nowhere is something too."""
    mine = replayed / f"mine-{form}"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    code, said = restored(replayed, form, mine.name, "--force")
    assert code == 2 and "--out" in said
    assert (mine / "notes.txt").read_text() == "mine"
    (replayed / "file").write_text("mine")
    if form == "dcp":
        code, said = restored(replayed, form, "file", "--force")
        assert code == 2 and "tensors" not in said, "told as written before it is refused"
    link = replayed / f"link-{form}"
    link.symlink_to("nowhere")
    for more in ((), ("--force",)):
        code, said = restored(replayed, form, link.name, *more)
        assert code == 2 and "--out" in said
        assert link.is_symlink() and not (replayed / "nowhere").exists()


def test_an_empty_folder_may_become_a_folder_of_results_and_no_file(replayed: Path) -> None:
    (replayed / "empty").mkdir()
    assert restored(replayed, "torch", "empty")[0] == 2
    assert restored(replayed, "dcp", "empty")[0] == 0
    assert (replayed / "empty/.metadata").exists()


@pytest.mark.parametrize("verb", ["restore", "audit", "replay"])
def test_a_command_that_cannot_run_as_a_runs_owner_leaves_the_run_to_it(
    replayed: Path, verb: str
) -> None:
    """It may be a live chain's: root's command is given a file that can be shown to nobody."""
    run, odd = replayed / "run", "/proc/self/mem"
    words = {
        "restore": ("--run", run, "--template", odd, "--out", replayed / "never.pt"),
        "audit": (odd, "--run", run),
        "replay": (odd, "--run", run, "--lr", "0.1"),
    }[verb]
    before = run.stat()
    with Command(verb, *words) as command:
        code, _, said = command.result(60)
    assert code == 2 and odd in said
    assert (run.stat().st_uid, run.stat().st_gid) == (before.st_uid, before.st_gid) != (0, 0)
