"""The run directory: where a chain's files are, so that any process finds the others' by name."""

from __future__ import annotations

import hashlib
import itertools
import os
import secrets
import shutil
from io import FileIO
from pathlib import Path

from flowcheck.config import JobConfig, decode_config
from flowcheck.errors import MALFORMED, ConfigError, naming
from flowcheck.private_files import (
    check_own,
    make_folder,
    modes_in,
    open_own,
    refuse_shared,
    trust,
)
from flowcheck.stages.chain.living import PREFIX, identity, lead_to, living, locked
from flowcheck.stages.learning.learned_files import LearnedFiles
from flowcheck.stages.privilege.account import account
from flowcheck.stages.records import RecordFiles
from flowcheck.stages.strangers import is_run, refuse_strangers
from flowcheck.whole import place_of

_RUNS = itertools.count()
_LOCKS: dict[Path, int] = {}
"""Of this process's folders of shared memory, open until they are removed or it ends."""


class RunDir(LearnedFiles, RecordFiles):
    """Paths of one run. Small files and sockets under `root`, shared memory under `memory`."""

    def __init__(self, root: Path) -> None:
        """Raises ConfigError where the folder is somebody else's, or others may write to it: its
        files name code that is run, processes that are ended and memory that is removed."""
        if os.geteuid() == 0:
            trust(account(None).user)  # whom chains run as that root starts
        try:
            refuse_shared(root.stat(), root, "run")
        except PermissionError as error:
            right = f"is in a folder that user {os.geteuid()} may not look into"
            raise ConfigError("run", str(root), right) from error
        except (FileNotFoundError, NotADirectoryError):
            pass
        self.root = root

    @classmethod
    def create(cls, root: Path, mount: Path) -> RunDir:
        """A fresh run directory, mode 0700, with a folder for shared memory below `mount`. Raises
        ConfigError when another run lives there, or somebody keeps something."""
        run = cls(root)
        if (owner := run._pid_of("supervisor")) not in (None, os.getpid()):
            right = f"is in use by process {owner}: flowcheck down --run {root}"
            raise ConfigError("run", str(root), right)
        refuse_strangers(root)
        run.remove(keep_records=True)
        run._set_records_aside()
        mine = identity(os.getpid()).replace(" ", "-")
        memory = mount / f"{PREFIX}{mine}-{next(_RUNS)}-{secrets.token_hex(4)}"
        try:
            for folder in (root, run.sockets, run.learned_folder, run.pids):
                make_folder(folder)
            root.chmod(modes_in(root)[1])
            make_folder(memory, new=True)
            _LOCKS[memory.resolve()] = locked(memory)
            lead_to(root, memory)
            (root / "memory").symlink_to(memory)
            run.note_pid("supervisor", os.getpid())
        except BaseException:
            run.remove(keep_records=True)
            shutil.rmtree(memory, ignore_errors=True)  # where no link leads to it yet
            raise
        return run

    @property
    def memory(self) -> Path:
        """The folder of shared memory files (hugetlbfs or /dev/shm). Raises ConfigError where it is
        somebody else's."""
        folder = (self.root / "memory").resolve()
        check_own(folder)
        return folder

    @property
    def holds_memory(self) -> bool:
        """A chain runs here, or was killed; one that ended has given its memory back."""
        return (self.root / "memory").is_symlink()

    @property
    def sockets(self) -> Path:
        return self.root / "sockets"

    @property
    def pids(self) -> Path:
        return self.root / "pids"

    def settings(self) -> JobConfig:
        """Of the chain that was started here. Raises ConfigError where none was, or where they are
        damaged: without them nobody knows what of a run is where."""
        if not self.config.exists():
            why = "no chain was started there: flowcheck up JOB.toml"
            raise ConfigError("run", str(self.root), why)
        try:
            return decode_config(self.config.read_bytes())
        except MALFORMED as error:
            why = f"is damaged ({error}): keep what you need of {self.root}, then remove it"
            raise ConfigError("settings of the run", str(self.config), why) from error

    @property
    def units(self) -> Path:
        """The sharded model that the job file names, as torch cuts it."""
        return self.root / "units.json"

    @property
    def left_out(self) -> Path:
        """The first step that left out a parameter which was used before: a number."""
        return self.root / "left-out.json"

    @property
    def gradients(self) -> Path:
        """Gradients that wait for a base, the part in memory."""
        return self.memory / "gradients"

    def staged(self, stated: str | None) -> Path:
        """Of checkpoints that are sent elsewhere; stated: in the job file, for several runs."""
        if stated is None:
            return self.root / "persist"
        return Path(stated) / hashlib.sha256(os.fsencode(self.root.resolve())).hexdigest()[:16]

    @property
    def unread(self) -> Path:
        """Is there while staged messages wait to be read, or are being read."""
        return self.memory / "unread"

    @property
    def shard(self) -> Path:
        return self.memory / "shard"

    @property
    def replica(self) -> Path:
        return self.memory / "replica"

    @property
    def port(self) -> RunDir:
        """Where capture and parsing run: here, or of a further job on the same ports elsewhere."""
        link = self.root / "port"
        return RunDir(link.resolve()) if link.is_symlink() else self

    @property
    def reader(self) -> int:
        """Which reader of the rings its extractor is."""
        return int(self.root.name) - 1 if self.port is not self else 0

    def beside(self, number: int) -> RunDir:
        """Of a further job on the same ports, by its number from 2 on; 1: this one. Of what is left
        of the run before: what is left of that job's."""
        if number == 1:
            return self
        if self.root.name == self.previous.name and not (self.root / "jobs").exists():
            return RunDir(RunDir(self.root.parent).beside(number).previous)
        return RunDir(self.root / "jobs" / str(number))

    def ring(self, number: int) -> Path:
        return self.port.memory / f"ring-{number}"

    def flows(self, number: int) -> Path:
        return self.port.memory / f"flows-{number}"

    def staging(self, number: int) -> Path:
        return self.memory / f"staging-{number}"

    def note_pid(self, stage: str, pid: int) -> None:
        """Writes who runs `stage`, so that a reused process number is not taken for it. Of one that
        is started again in place: that takes no room."""
        file, who = self.pids / stage, identity(pid).encode()
        with naming(file), FileIO(open_own(file, os.O_RDWR | os.O_CREAT), "r+b") as out:
            out.write(who)
            out.truncate(len(who))

    def stage_pids(self) -> dict[str, int]:
        """{stage: pid} of the processes of this run that live, the supervisor among them."""
        found = {file.name: self._pid_of(file.name) for file in self.pids.glob("*")}
        return {stage: pid for stage, pid in found.items() if pid is not None}

    def _pid_of(self, stage: str) -> int | None:
        try:
            return living((self.pids / stage).read_text())
        except FileNotFoundError:  # none was there, or it was taken away meanwhile
            return None

    def _set_records_aside(self) -> None:
        """Makes room for the records of a new run; those of the run before stay for one more: all
        of them, also where a kill came amid of it."""
        there = [path for path in self.records() if path.exists()]
        coming = place_of(self.previous)
        if there or coming.exists():
            make_folder(coming)
            for path in there:
                path.rename(coming / path.name)
            shutil.rmtree(self.previous, ignore_errors=True)
            coming.rename(self.previous)
        self.trace.unlink(missing_ok=True)
        shutil.rmtree(self.learned_folder, ignore_errors=True)

    def remove(self, *, keep_records: bool = False) -> None:
        """Takes shared memory and small files away; of another run, or of none, nothing.

        keep_records: what tells how it went stays: settings, logs, events, steps, learned job.
        """
        if not is_run(self.root):
            return
        for folder in (self.root / "jobs").glob("*"):
            RunDir(folder).remove(keep_records=keep_records)
        link = self.root / "memory"
        if link.is_symlink() and (memory := self.memory).name.startswith(PREFIX):
            shutil.rmtree(memory, ignore_errors=True)
            if memory in _LOCKS:
                os.close(_LOCKS.pop(memory))
            link.unlink(missing_ok=True)
        self.asked.unlink(missing_ok=True)
        folders = [self.sockets, self.pids]
        if not keep_records:
            folders += [self.learned_folder, self.previous, place_of(self.previous)]
            for item in (self.trace, *self.records()):
                item.unlink(missing_ok=True)
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
