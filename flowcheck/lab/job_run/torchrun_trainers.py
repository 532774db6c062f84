"""torchrun on every host of the lab: launch, progress, kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.lab_runs import TRAINER_ENDED
from flowcheck.lab.cluster import Cluster, command_prefix_in
from flowcheck.step_numbers import START, Step

END_LIMIT_S = 20.0
"""Seconds for a killed torchrun to disappear. A choice: a longer limit delays the end of a run on
a machine that is stuck."""
TRAINER_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
"""Environment of all trainers. With PYTHONFAULTHANDLER a rank that gets SIGABRT writes the stacks
of its threads to its log."""

TRAINER_UMASK = 0o022
"""The usual one of a user who starts a trainer, in place of FlowCheck's own, which lets nobody read
what it writes."""


@dataclass(frozen=True, slots=True)
class Script:
    """A training script with its arguments, independent of FlowCheck."""

    path: Path
    arguments: tuple[str, ...]


class Trainers:
    """One torchrun per host with a rank for each of its GPUs."""

    def __init__(
        self,
        script: Script,
        cluster: Cluster,
        *,
        port: int,
        environment: Mapping[str, str],
        logs: Path,
        cpus: str | None = None,
        hosts: Sequence[int] | None = None,
    ) -> None:
        """Launches it. port: of the first host, where they meet; logs: folder for one file per
        host; cpus: where all of them run, in taskset's words; hosts: by default all."""
        hosts = range(cluster.hosts) if hosts is None else hosts
        self.logs = [logs / f"host-{host}.log" for host in hosts]
        pin = ["taskset", "-c", cpus] if cpus else []
        self._processes: list[subprocess.Popen[bytes]] = []
        for rank, (host, log) in enumerate(zip(hosts, self.logs, strict=True)):
            command = [
                *command_prefix_in(cluster.host_namespace(host)),
                *pin,
                sys.executable,
                *("-m", "torch.distributed.run"),
                *("--nnodes", str(len(hosts)), "--nproc-per-node", str(cluster.gpus)),
                *("--node-rank", str(rank)),
                *("--master-addr", cluster.address(hosts[0]), "--master-port", str(port)),
                str(script.path),
                *script.arguments,
            ]
            with log.open("wb") as out:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **TRAINER_ENVIRONMENT, **environment},
                    start_new_session=True,
                    umask=TRAINER_UMASK,
                )
            self._processes.append(process)

    def ended(self) -> bool:
        """Whether all torchruns have ended without error. Raises FlowCheckError with the end of
        its log if one failed."""
        codes = [process.poll() for process in self._processes]
        for code, log in zip(codes, self.logs, strict=True):
            if code:
                raise FlowCheckError(TRAINER_ENDED(code=code, log=_tail(log)))
        return all(code == 0 for code in codes)

    def lines(self) -> list[dict[str, object]]:
        """The JSON lines that rank 0 printed, one per step."""
        found = []
        for line in self.logs[0].read_text(errors="replace").splitlines():
            if line.startswith("{"):
                with suppress(json.JSONDecodeError):
                    found.append(json.loads(line))
        return found

    def step(self) -> Step:
        """The last step that rank 0 printed; 0 before the first."""
        steps = [line["step"] for line in self.lines() if isinstance(line.get("step"), int)]
        return Step(int(str(steps[-1]))) if steps else START

    def pids(self) -> list[int]:
        """Pids of all running processes of all hosts."""
        return [pid for process in self._processes for pid in process_tree(process.pid)]

    def kill(self) -> None:
        """Sends SIGKILL to all processes of all hosts, as if the rack lost power."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_LIMIT_S)


def process_tree(pid: int) -> list[int]:
    """Pids of a process and all its descendants; torchrun's workers are in sessions of their
    own."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            with suppress(OSError):
                found += map(int, task.read_text().split())
    return found


def _tail(log: Path, lines: int = 15) -> str:
    """What a rank raised, if it did; torchrun's own account of it names no cause."""
    told = log.read_text(errors="replace").splitlines()
    raised = [line for line in told if line.startswith("[rank")]
    return "\n".join((raised or told)[-lines:])
