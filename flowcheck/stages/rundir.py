"""The run directory: where a chain's files are, so that any process finds the others' by name."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from flowcheck.errors import ConfigError


class RunDir:
    """Paths of one run. Small files and sockets under `root`, shared memory under `memory`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def create(cls, root: Path, memory: Path) -> RunDir:
        """A fresh run directory, mode 0700. Raises ConfigError when another run lives there."""
        run = cls(root)
        if run.owner_lives():
            raise ConfigError(
                "run", str(root), f"is in use by process {run.owner()}: flowcheck down --run {root}"
            )
        run.remove()
        for folder in (root, run.sockets, run.learned_folder, run.pids, memory):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (root / "memory").symlink_to(memory)
        run.pid_file("supervisor").write_text(str(os.getpid()))
        return run

    @property
    def memory(self) -> Path:
        """The folder of shared memory files (hugetlbfs or /dev/shm)."""
        return (self.root / "memory").resolve()

    @property
    def sockets(self) -> Path:
        return self.root / "sockets"

    @property
    def pids(self) -> Path:
        return self.root / "pids"

    @property
    def config(self) -> Path:
        """The resolved job configuration, JSON."""
        return self.root / "config.json"

    @property
    def learned_folder(self) -> Path:
        return self.root / "learned"

    @property
    def learned_job(self) -> Path:
        """JSON of wire.job.Job; appears whole, after the weights."""
        return self.learned_folder / "job.json"

    @property
    def weights(self) -> Path:
        """Initial parameters off the wire, bytes in index order."""
        return self.learned_folder / "weights.bin"

    @property
    def steps(self) -> Path:
        """One JSON line per step taken."""
        return self.root / "steps.jsonl"

    @property
    def events(self) -> Path:
        """One JSON line per event the supervisor heard."""
        return self.root / "events.jsonl"

    @property
    def shard(self) -> Path:
        return self.memory / "shard"

    @property
    def replica(self) -> Path:
        return self.memory / "replica"

    def ring(self, number: int) -> Path:
        return self.memory / f"ring-{number}"

    def flows(self, number: int) -> Path:
        return self.memory / f"flows-{number}"

    def staging(self, number: int) -> Path:
        return self.memory / f"staging-{number}"

    def pid_file(self, stage: str) -> Path:
        return self.pids / stage

    def log(self, stage: str) -> Path:
        return self.root / f"{stage}.log"

    def stage_pids(self) -> dict[str, int]:
        """{stage: pid} of the processes that run and are ours, by their command line."""
        found = {}
        for file in self.pids.glob("*"):
            pid = int(file.read_text() or 0)
            if _is_ours(pid):
                found[file.name] = pid
        return found

    def owner(self) -> int | None:
        """The supervisor's pid as written; None without a run."""
        file = self.pid_file("supervisor")
        return int(file.read_text() or 0) if file.exists() else None

    def owner_lives(self) -> bool:
        owner = self.owner()
        return owner is not None and owner != os.getpid() and _is_ours(owner)

    def remove(self) -> None:
        """Takes shared memory and small files away; nothing of another run is touched."""
        link = self.root / "memory"
        if link.is_symlink():
            shutil.rmtree(link.resolve(), ignore_errors=True)
        for item in (link, self.config, self.steps, self.events, *self.root.glob("*.log")):
            item.unlink(missing_ok=True)
        for folder in (self.sockets, self.pids, self.learned_folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_ours(pid: int) -> bool:
    """Whether `pid` runs and is a FlowCheck process: a reused number is another's."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"flowcheck" in command or pid == os.getpid()
