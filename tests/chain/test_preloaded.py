"""A command that is forked from a loaded process is as one that is executed, in all that a test can
see of it. Probes are tried in both ways."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from support import preloaded
from support.chain import wait_until
from support.preloaded import command_server

from flowcheck.stages.privilege import privilege_syscalls

FACTS = """
import json, locale, os, resource, signal, sys, tempfile, time
from pathlib import Path
told = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
kernel = ("Uid", "Gid", "Groups", "Umask", "SigBlk", "SigIgn", "SigCgt", "NoNewPrivs", "Threads",
          "CapPrm", "CapEff", "CapInh", "CapBnd", "CapAmb", "Cpus_allowed", "Seccomp", "Name")
own = os.getpid()
streams = (sys.stdin, sys.stdout, sys.stderr)
print(json.dumps({
    "kernel": {name: told[name].strip() for name in kernel},
    "limits": Path("/proc/self/limits").read_text(),
    "words": Path("/proc/self/cmdline").read_text().replace("\\0", " ").split(),
    "spaces": {n: os.readlink(f"/proc/self/ns/{n}") for n in sorted(os.listdir("/proc/self/ns"))},
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "flags": str(sys.flags),
    "environ": dict(os.environ), "parent": os.getppid(), "folder": os.getcwd(),
    "main": [__name__, __file__, __spec__.name, sys.modules["__main__"].__file__],
    "session": [{own: "own"}.get(of(0), of(0)) for of in (os.getsid, os.getpgid)],
    "handlers": {n: str(signal.getsignal(n)) for n in sorted(signal.valid_signals())},
    "files": {n: os.path.exists(f"/proc/self/fd/{n}") for n in range(64)},
    "nice": os.getpriority(os.PRIO_PROCESS, 0), "children": Path(
        f"/proc/self/task/{own}/children").read_text(),
    "stdin": sys.stdin.read(), "temporary": tempfile.gettempdir(), "zone": time.tzname,
    "streams": [[s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through,
                 s.newlines, s.isatty(), s is getattr(sys, f"__{s.name[1:-1]}__")]
                for s in streams],
    "locale": locale.setlocale(locale.LC_ALL), "tracing": repr(sys.gettrace()),
    "support": sorted(n for n in sys.modules if n.startswith("support")),
}, default=lambda _: None, sort_keys=True))
"""
LIMIT_S = 60


class Probe(preloaded.Popen):
    """`python -m probe`, of the working directory."""

    module = "probe"


def executed(words: list[str], **options: Any) -> subprocess.Popen[Any]:
    return subprocess.Popen([sys.executable, "-m", "probe", *words], **options)


def both(folder: Path, script: str, *words: str, say: str = "", **options: Any) -> list[Any]:
    """(exit code, stdout, stderr) of the script executed, and of it forked."""
    (folder / "probe.py").write_text(script)
    found = []
    ways: list[Callable[..., Any]] = [executed, Probe]
    for way in ways:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with way([*words], text=True, **({"cwd": folder} | pipes | options)) as process:
            out, err = process.communicate(say, timeout=LIMIT_S)
        found.append((process.returncode, out, err))
    assert process.is_forked
    return found


@pytest.mark.parametrize("session", [False, True])
def test_it_has_the_same_surroundings(
    tmp_path: Path, session: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "other"))
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("ÄÖ", "a=\udcff")
    monkeypatch.delenv("HOME", raising=False)
    umask, before = os.umask(0o027), signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        words = ("--a", "b c", "", "ü")
        one, other = both(tmp_path, FACTS, *words, say="in\n", start_new_session=session)
    finally:
        os.umask(umask)
        signal.signal(signal.SIGUSR2, before)
    assert one[0] == 0, one
    assert other[0] == 0, other
    its, own = json.loads(other[1]), json.loads(one[1])
    assert {name: its[name] for name in own if its[name] != own[name]} == {}
    assert other[2] == one[2] == ""
    assert (own["session"] == ["own", "own"]) == session


ENDS = {
    "three": "import sys; print('out'); sys.exit(3)",
    "words": "import sys; print('out'); sys.exit('words')",
    "wraps": "import sys; sys.exit(256 + 7)",
    "none": "import sys; print('no newline', end=''); sys.exit()",
    "falls off": "print('ä')",
    "error": "def f():\n    raise ValueError('odd')\nf()",
    "interrupted": "import os, signal; print('x'); os.kill(os.getpid(), signal.SIGINT)",
    "terminated": "import os, signal; print('x'); os.kill(os.getpid(), signal.SIGTERM)",
    "killed": "import os; print('x', flush=True); print('y'); os.kill(os.getpid(), 9)",
    "at once": "import os; print('lost'); os._exit(9)",
    "aborts": "import os, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.abort()",
    "exit handlers": "import atexit, sys; atexit.register(print, 'a'); atexit.register(print, 'b')",
    "thread": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.3), print('later'))).start()\nprint('first')",
    "its child": "import os\nif os.fork() == 0:\n    raise SystemExit(4)\n"
    "print(os.waitstatus_to_exitcode(os.wait()[1]))",
    "order": "import sys\nfor n in range(50):\n    print(n)\n    print(n, file=sys.stderr)",
    "closed": "import os, sys; print('x'); os.close(1); sys.exit(5)",
    "echo": "import sys\nfor line in sys.stdin: print(line[::-1], end='')",
    "not found": "import nosuch",
    "warns": "import warnings; warnings.warn('odd', UserWarning); warnings.warn('twice')",
    "another": "import os, sys\nprint('lost')\nos.execv(sys.executable, ['p', '-c', 'print(2)'])",
}


@pytest.mark.parametrize("how", ENDS)
def test_it_ends_alike(tmp_path: Path, how: str) -> None:
    one, other = both(tmp_path, ENDS[how], say="abc\ndef\n" * 3)
    assert other == one


def test_both_streams_in_one_file_keep_their_order(tmp_path: Path) -> None:
    one, other = both(tmp_path, ENDS["order"], stderr=subprocess.STDOUT)
    assert other == one


def test_a_terminal_is_one(tmp_path: Path) -> None:
    script = "import sys; print([s.isatty() for s in (sys.stdin, sys.stdout, sys.stderr)])\n"
    script += "print(sys.stdout.line_buffering); print('prompt', end=''); input()"
    (tmp_path / "probe.py").write_text(script)
    seen = []
    for way in (executed, Probe):
        parent, child = os.openpty()
        with way([], cwd=tmp_path, stdin=child, stdout=child, stderr=child) as process:
            os.close(child)
            told = b""
            while b"prompt" not in told and select.select([parent], [], [], LIMIT_S)[0]:
                told += os.read(parent, 4096)
            os.write(parent, b"\n")
            assert process.wait(LIMIT_S) == 0
        os.close(parent)
        seen.append(told)
    assert seen[0] == seen[1]


def test_much_passes_in_all_directions(tmp_path: Path) -> None:
    script = "import sys\ntold = sys.stdin.read()\nsys.stdout.write(told)\nsys.stderr.write(told)"
    text = "0123456789abcdef" * 200_000
    for result in both(tmp_path, script, say=text):
        assert result == (0, text, text)


SLEEPS = (
    "import signal, sys, time\n"
    # Below nohup, or in a shell's background, they would be ignored.
    "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "print('up', flush=True)\ntime.sleep(600)"
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_signals_reach_it_alike(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "probe.py").write_text(SLEEPS)
    found = []
    for way in (executed, Probe):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with way([], cwd=tmp_path, text=True, start_new_session=True, **pipes) as process:
            assert process.stdout.readline() == "up\n"
            time.sleep(0.3)  # so that it sleeps
            assert process.poll() is None
            os.killpg(process.pid, number)
            found.append((*process.communicate(timeout=LIMIT_S), process.returncode))
    assert found[0] == found[1]
    assert found[0][2] == -number


def test_one_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(SLEEPS)
    with Probe([], cwd=tmp_path, stdout=subprocess.PIPE) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.communicate(timeout=0.2)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_files_are_passed_and_others_are_not(tmp_path: Path) -> None:
    script = (
        "import os, sys\nprint(os.write(int(sys.argv[1]), b'word'), *os.listdir('/proc/self/fd'))"
    )
    (tmp_path / "probe.py").write_text(script)
    read, write = os.pipe()
    os.set_inheritable(read, True)
    for way in (executed, Probe):
        with way([str(write)], cwd=tmp_path, pass_fds=[write], stdout=subprocess.PIPE) as process:
            told = process.communicate(timeout=LIMIT_S)[0].split()
            assert told[0] == b"4" and len(told) == 6  # one is of the folder it looks into
        assert os.read(read, 64) == b"word"
    os.close(read)
    os.close(write)


def test_a_folder_that_is_not_there_is_the_same_error(tmp_path: Path) -> None:
    for way in (executed, Probe):
        with pytest.raises(FileNotFoundError) as error:
            way([], cwd=tmp_path / "none")
        assert error.value.filename == tmp_path / "none"


def test_no_two_draw_the_same(tmp_path: Path) -> None:
    script = "import random, numpy, tempfile\n"
    script += "print(random.random(), numpy.random.rand(), tempfile.mktemp())"
    drawn = [both(tmp_path, script)[1][1] for _ in range(2)]
    assert all(one != other for one, other in zip(*map(str.split, drawn), strict=True))


@pytest.mark.parametrize("name", ["PYTHONPATH", "OMP_NUM_THREADS", "LANG", "FLOWCHECK_HOOK_X"])
def test_what_is_read_while_it_loads_is_no_others(name: str, tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(f"import os; print(os.environ[{name!r}])")
    own = os.environ | {name: f"{tmp_path}"}
    with Probe([], cwd=tmp_path, env=own, stdout=subprocess.PIPE, text=True) as process:
        assert process.communicate(timeout=LIMIT_S)[0] == f"{tmp_path}\n"
    assert not process.is_forked


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces")
def test_it_is_in_its_askers_network(tmp_path: Path) -> None:
    from flowcheck.lab.cluster.network_namespaces import in_namespace

    name = f"fcp{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        with in_namespace(name):
            one, other = both(tmp_path, FACTS + "import socket; print(socket.if_nameindex())")
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)
    assert other == one


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces")
def test_it_sees_what_its_asker_has_mounted(tmp_path: Path) -> None:
    found: list[Any] = []

    def apart() -> None:
        privilege_syscalls.own_mounts()  # of this thread
        (tmp_path / "mounted").mkdir()
        privilege_syscalls.mount("none", str(tmp_path / "mounted"), "tmpfs", 0)
        (tmp_path / "mounted/file").touch()
        found.extend(both(tmp_path, "import os; print(os.listdir('mounted'))\n" + FACTS))

    thread = Thread(target=apart)
    thread.start()
    thread.join()
    assert not list((tmp_path / "mounted").iterdir())
    assert found[0][1].startswith("['file']\n")
    assert found[1] == found[0]


HOLDS = """
import sys, time
from support import preloaded
from support.preloaded import command_server
preloaded.run(["switch", "list"], stdout=-3)
print(command_server._servers[0].process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.nightly
def test_its_server_ends_with_who_asks_it_however_that_ends() -> None:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    held = subprocess.Popen([sys.executable, "-c", HOLDS], stdout=subprocess.PIPE, env=env)
    assert held.stdout is not None
    server = Path(f"/proc/{int(held.stdout.readline())}")
    assert server.exists()
    held.kill()
    held.communicate()
    wait_until(lambda: not server.exists(), LIMIT_S, "the server ends")


@pytest.mark.nightly
def test_a_killed_server_is_followed_by_another(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(SLEEPS)
    with Probe([], cwd=tmp_path, stdout=subprocess.PIPE) as process:
        assert process.is_forked
        process.stdout.readline()
        first = command_server._servers[-1]
        first.process.send_signal(signal.SIGSTOP)
        os.kill(first.process.pid, signal.SIGKILL)
        time.sleep(0.1)
        assert process.poll() is None, "the command goes on"
        process.terminate()
        assert process.wait(LIMIT_S) == -signal.SIGTERM
    one, other = both(tmp_path, ENDS["three"])
    assert one == other and command_server._servers[-1] is not first
