"""subprocess.run for the programs that FlowCheck tries a user's code in, forked from the server of
commands: to load torch takes most of the time of each."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from support.preloaded.commands import Popen

HIDES_GPUS = "CUDA_VISIBLE_DEVICES"


class _Program(Popen):
    """`python -m MODULE WORDS` as a command of subprocess has it."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        _, flag, self.module, *words = command
        assert flag == "-m", command
        super().__init__(words, **options)


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout: float,
    capture_output: bool,
    check: bool,
    input: bytes | None = None,
    text: bool = False,
) -> subprocess.CompletedProcess[Any]:
    """As subprocess.run, of what the probes ask of it."""
    assert capture_output and not check
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    told = dict(env)
    if not any(Path("/dev").glob("nvidia*")) and HIDES_GPUS not in os.environ:
        told.pop(HIDES_GPUS, None)  # Torch, which is loaded already, has none to hide.
    with _Program(command, env=told, text=text, **pipes) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            process.wait()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def fork_probes(monkeypatch: pytest.MonkeyPatch, owner: ModuleType) -> None:
    """Whatever `owner` runs is forked, as far as it would be the same as executed."""
    own = SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(owner, "subprocess", own)
