"""Runs a program that outlives the one that asks for it, and everything that one belongs to.

`python -m flowcheck.ops.fleet.detached_process LOG FOLDER WORD...`: a child of it, in a session of
its own, becomes the program; this process ends at once, so that the program is nobody's child but
init's. A worker of Ray's that ends has its children killed (kill_child_processes_on_worker_exit of
ray/common/ray_config_def.h), and is started nicer and dearer to the out-of-memory killer than its
raylet (worker_niceness, worker_oom_score_adjustment there): none of that goes to the program.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

START_LIMIT_S = 30.0
"""Seconds for the short process that starts the program. A choice: far above what it takes."""
OF_RAY = ("RAY_", "OMP_NUM_THREADS")
"""Beginnings of environment variables that a worker of Ray's has and its program does not get: of
one thread (as ray/_private/utils.py states it where nobody does) sums may be other ones."""


def start_detached(words: Sequence[str], log: Path, folder: str) -> int:
    """Starts a program; what it prints goes to the end of `log`. folder: its working directory.
    Returns its pid when it is being started. Raises OSError where it cannot be."""
    own = [sys.executable, "-m", __name__, str(log), folder, *words]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(OF_RAY)}
    done = subprocess.run(
        own,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=START_LIMIT_S,
        check=False,
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise OSError(errno.ECHILD, said[-1] if said else str(done.returncode), folder)
    return int(done.stdout)


def _become(log: str, folder: str, words: Sequence[str]) -> None:
    os.chdir(folder)
    own = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():  # no leader of its session: it never gets a terminal
        os._exit(0)
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("0")
    os.write(1, str(os.getpid()).encode())
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (own, 1), (own, 2)):
        os.dup2(source, target)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.execv(words[0], list(words))


if __name__ == "__main__":
    _become(sys.argv[1], sys.argv[2], sys.argv[3:])
