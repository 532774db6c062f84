"""The two processes that start captures, with the kernel's own signals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from flowcheck.stages.privilege.capture_starter import SOURCES_VARIABLE

SUPERVISOR = """
import os, signal, socket, subprocess, sys
from flowcheck.stages.privilege import capture_starter_client
from flowcheck.stages.privilege.capture_starter_client import CaptureStarterClient

mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
module = "flowcheck.stages.privilege.capture_starter"
words = [str(its.fileno()), "no-run", str(os.getpid())]
starter = subprocess.Popen([sys.executable, "-m", module, *words], pass_fds=[its.fileno()])
its.close()
client = CaptureStarterClient(mine)
client.start(0, 2).wait(60)
starter.send_signal(signal.SIGSTOP)
capture_starter_client.HANGS_S = 0.5
client.start(0, 2).wait(60)
assert not os.path.exists(f"/proc/{starter.pid}"), "it is still there"
capture_starter_client.HANGS_S = 60.0
client.start(0, 2).wait(60)
"""
"""Its captures find no run directory and end; it asks for one, for another while whoever answered
is stopped, and for a third."""


def test_one_that_is_stopped_gives_its_place_to_the_other(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SUPERVISOR],
        env=os.environ | {SOURCES_VARIABLE: json.dumps([{"file": "0"}])},
        cwd=tmp_path,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
