"""subprocess.Popen and subprocess.run for FlowCheck's command line."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.preloaded.asked import as_bytes
from support.preloaded.command_server import Wanted, forked
from support.preloaded.request import environment_of_c

Words = Sequence[str | Path]
NOT_SAID = {
    "executable": None, "preexec_fn": None, "close_fds": True, "shell": False, "gid": None,
    "gids": None, "uid": None, "umask": -1, "process_group": -1, "restore_signals": True,
}  # fmt: skip
"""Arguments of subprocess.Popen that only an executed program has."""


class Popen(subprocess.Popen[Any]):
    """`python -m flowcheck WORDS`; the arguments are those of subprocess.Popen. It is a child of
    this process in any case. Where it cannot be forked as it would be executed it is executed."""

    module = "flowcheck"
    is_forked = False

    def __init__(self, words: Words, **options: Any) -> None:
        command = [sys.executable, "-m", self.module, *(os.fspath(word) for word in words)]
        super().__init__(command, **options)

    def _execute_child(self, *told: Any) -> None:
        execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]
        asked = inspect.signature(execute).bind(self, *told).arguments
        wanted = _wanted(asked)
        pid = forked(wanted) if wanted is not None else None
        if pid is None:
            execute(self, *told)
            return
        self.pid, self.is_forked = pid, True
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(asked[end] for end in ends))  # type: ignore[attr-defined]


def _wanted(asked: Mapping[str, Any]) -> Wanted | None:
    if any(asked.get(name, usual) != usual for name, usual in NOT_SAID.items()):
        return None
    standard = [asked[end] for end in ("p2cread", "c2pwrite", "errwrite")]
    files = {number: at if at != -1 else number for number, at in enumerate(standard)}
    stated = asked["env"]
    return Wanted(
        words=[os.fspath(word) for word in asked["args"][1:]],
        environment=environment_of_c() if stated is None else as_bytes(stated),
        folder=os.fspath(asked["cwd"] or "."),
        files=files | {number: number for number in asked["pass_fds"]},
        new_session=asked["start_new_session"],
    )


def run(
    words: Words,
    *,
    input: str | bytes | None = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """As subprocess.run."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(words, **options) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            process.wait()
            raise
        code = process.wait()
    if check and code:
        raise subprocess.CalledProcessError(code, process.args, out, err)
    return subprocess.CompletedProcess(process.args, code, out, err)


def output(words: Words, **options: Any) -> Any:
    """As subprocess.check_output."""
    return run(words, stdout=subprocess.PIPE, check=True, **options).stdout
