"""A training script of a test's own on every host of the lab, to its end."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from flowcheck.lab import cluster
from flowcheck.lab.job_run.hang_detection import HangDetector
from flowcheck.lab.job_run.torchrun_trainers import TRAINER_ENVIRONMENT, Trainers

LOOK_S = 0.1
SCRIPTS = Path(__file__).resolve().parents[1] / "lab" / "scripts"


class Ranks:
    """One process for each GPU of a host: what Trainers are to those who watch them."""

    def __init__(
        self,
        hosts: cluster.Cluster,
        command: Sequence[str],
        environment: Mapping[str, str],
        logs: Path,
    ) -> None:
        """Launches them; what each says is a file in `logs`."""
        self.logs = [logs / f"host-{rank}.log" for rank in range(hosts.ranks)]
        self._processes: list[subprocess.Popen[bytes]] = []
        for rank, log in enumerate(self.logs):
            told = {"RANK": str(rank), "WORLD_SIZE": str(hosts.ranks)}
            told |= {"LOCAL_RANK": str(rank % hosts.gpus), "LOCAL_WORLD_SIZE": str(hosts.gpus)}
            with log.open("wb") as out:
                self._processes.append(
                    cluster.run_in(
                        hosts.host_namespace(rank // hosts.gpus),
                        command,
                        env={**os.environ, **TRAINER_ENVIRONMENT, **environment, **told},
                        stdout=out,
                        stderr=subprocess.STDOUT,
                    )
                )

    def pids(self) -> list[int]:
        """Of those that live."""
        return [process.pid for process in self._processes if process.poll() is None]

    def codes(self) -> list[int | None]:
        """How each ended; None: it goes on."""
        return [process.poll() for process in self._processes]

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def said(self) -> str:
        return "\n".join(f"{log.name}:\n{log.read_text(errors='replace')}" for log in self.logs)


def launch(hosts: cluster.Cluster, script: str, digests: str, *words: str) -> None:
    """The script on all hosts, to its end. words: its arguments, and NAME=VALUE for its
    environment. Fails where a rank does, or where they hang: time in which a busy machine gave
    them no processor is not counted as that."""
    arguments = [word for word in words if "=" not in word]
    environment = dict(word.split("=") for word in words if "=" in word) | {
        "MASTER_ADDR": hosts.address(0),
        "MASTER_PORT": "29577",
        "FLOWCHECK_LAB_INTERFACE": ",".join(hosts.interfaces),
    }
    command = [sys.executable, str(SCRIPTS / script), digests, *arguments]
    with tempfile.TemporaryDirectory() as logs:
        ranks = Ranks(hosts, command, environment, Path(logs))
        moving = HangDetector(script, cast(Trainers, ranks))
        try:
            while None in (codes := ranks.codes()) and not any(codes):
                moving.check(_written(Path(digests)))
                time.sleep(LOOK_S)
            assert not any(codes), f"{script} ended with {codes}\n{ranks.said()}"
        finally:
            ranks.kill()


def _written(digests: Path) -> int:
    """Bytes of accounts: another number after a step."""
    return sum(one.stat().st_size for one in digests.parent.glob(f"{digests.name}*"))
