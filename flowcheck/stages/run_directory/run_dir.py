"""The run directory: paths of all files of a run, its shared memory, pids, creation and
removal."""

from __future__ import annotations

import hashlib
import itertools
import os
import secrets
import shutil
from io import FileIO
from pathlib import Path

from flowcheck.atomic_write import temporary_path
from flowcheck.config import JobConfig, decode_config
from flowcheck.errors import DECODE_ERRORS, ConfigError, naming_file
from flowcheck.findings.catalog.run_directories import (
    IN_USE,
    NO_CHAIN_STARTED,
    NOT_ACCESSIBLE,
    SETTINGS_DAMAGED,
)
from flowcheck.private_files import (
    check_not_shared,
    check_owner,
    make_folder,
    modes_in,
    open_private,
    trust,
)
from flowcheck.stages.run_directory.process_liveness import (
    MEMORY_PREFIX,
    lead_to,
    live_pid,
    locked,
    process_identity,
)
from flowcheck.stages.run_directory.run_dir_checks import is_run, refuse_foreign_folder
from flowcheck.stages.run_directory.service_account import account
from flowcheck.stages.stage_table import SUPERVISOR

AUXILIARY_WEIGHTS = "beside.bin"
"""Name of the file with the frozen parameters and buffers that a job's start-up broadcast."""


class RecordFiles:
    """Paths below `root`, and below `root`/previous of the run before."""

    root: Path

    @property
    def config(self) -> Path:
        """The resolved job configuration, JSON."""
        return self.root / "config.json"

    @property
    def steps(self) -> Path:
        """One JSON line per applied step."""
        return self.root / "steps.jsonl"

    @property
    def trace(self) -> Path:
        """Digests of every tensor at every step (replica/state_file/digest_log.py)."""
        return self.root / "trace"

    @property
    def audits(self) -> Path:
        """One JSON line per audit."""
        return self.root / "audits.jsonl"

    @property
    def anchors(self) -> Path:
        """One JSON line per file of the trainer's that the replica was to go on from."""
        return self.root / "anchors.jsonl"

    @property
    def events(self) -> Path:
        """One JSON line per event (chain_events/event_log.py)."""
        return self.root / "events.jsonl"

    @property
    def heartbeat_file(self) -> Path:
        """That the supervisor is alive (chain_events/heartbeat.py)."""
        return self.root / "beat.json"

    @property
    def persisted(self) -> Path:
        """What is durable at the target, and what is under way (save_status_file.py)."""
        return self.root / "persist.json"

    @property
    def served(self) -> Path:
        """Where steps are served, while they are: {"url"}."""
        return self.root / "serve.json"

    @property
    def unlearned(self) -> Path:
        """Why no job is learned yet: a list of findings."""
        return self.root / "unlearned.json"

    @property
    def ended(self) -> Path:
        """Why the chain ended, and its last step (ops/watch/state/shutdown_record.py)."""
        return self.root / "ended.json"

    @property
    def stop_request(self) -> Path:
        """Who asked it to end; exists from the request to the end."""
        return self.root / "asked"

    @property
    def previous(self) -> Path:
        """Logs, events and steps of the run before: they tell the reason of its end."""
        return self.root / "previous"

    def log(self, stage: str) -> Path:
        return self.root / f"{stage}.log"

    def records(self) -> list[Path]:
        """What tells how it went, but for the learned job and the trace."""
        own = (self.config, self.steps, self.events, self.unlearned, self.persisted)
        held = (self.audits, self.anchors, self.heartbeat_file, self.ended)
        patterns = ("*.log", "steps-*.jsonl")
        return [*own, *held, *(path for pattern in patterns for path in self.root.glob(pattern))]


class LearnedFiles:
    """Paths below `root`/learned."""

    root: Path

    @property
    def learned_folder(self) -> Path:
        return self.root / "learned"

    @property
    def learned_job(self) -> Path:
        """JSON of a LearnedJob; appears whole, after the weights and the shard."""
        return self.learned_folder / "job.json"

    @property
    def training_spec(self) -> Path:
        """JSON of TrainingSpec (wire/training_job/training_spec.py): what is known of a job whose
        gradients come without its connections, in the place of `learned_job`."""
        return self.learned_folder / "training.json"

    @property
    def weights(self) -> Path:
        """Initial parameters off the wire, bytes in index order."""
        return self.learned_folder / "weights.bin"

    @property
    def read_weights(self) -> Path:
        """The same where a reading leaves them, before it is known that its job is followed."""
        return self.learned_folder / ".read-weights.bin"

    @property
    def auxiliary_weights(self) -> Path:
        """Frozen parameters and buffers that were broadcast with them, back to back in the order
        of the stated model ([model] everything), bytes in index order."""
        return self.learned_folder / AUXILIARY_WEIGHTS

    @property
    def extract_record(self) -> Path:
        """The extractor's part of the lifecycle record (job_state/lifecycle_record_schema.py)."""
        return self.learned_folder / "extract.json"

    @property
    def update_record(self) -> Path:
        """The updater's part of it."""
        return self.learned_folder / "update.json"

    @property
    def request_record(self) -> Path:
        """The part of whoever gives the updater a trainer's checkpoint."""
        return self.learned_folder / "request.json"

    @property
    def assumed(self) -> Path:
        """What steps were applied on without evidence since the job was learned: a list of
        findings."""
        return self.learned_folder / "assumed.json"

    @property
    def scale(self) -> Path:
        """Which changes of the stated loss scale were seen in the gradients."""
        return self.learned_folder / "scale.json"

    @property
    def claimed(self) -> Path:
        """Indices of the job's flows, where several jobs pass the same ports."""
        return self.learned_folder / "claimed.json"

    @property
    def no_job_found(self) -> Path:
        """Is there once everything was read and no job was learned."""
        return self.learned_folder / "none"

    def history(self, number: int) -> Path:
        """What was learned of incarnation `number`, from 1, which is over; in it `next`, the files
        of the one behind it as they were offered."""
        return self.learned_folder / str(number)


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
            check_not_shared(root.stat(), root, "run")
        except PermissionError as error:
            raise ConfigError("run", str(root), NOT_ACCESSIBLE(os.geteuid())) from error
        except (FileNotFoundError, NotADirectoryError):
            pass
        self.root = root

    @classmethod
    def create(cls, root: Path, mount: Path) -> RunDir:
        """A fresh run directory, mode 0700, with a folder for shared memory below `mount`. Raises
        ConfigError when another run lives there, or somebody keeps something."""
        run = cls(root)
        if (owner := run._pid_of(SUPERVISOR.name)) not in (None, os.getpid()):
            raise ConfigError("run", str(root), IN_USE(pid=owner, run=root))
        refuse_foreign_folder(root)
        run.remove(keep_records=True)
        run._set_records_aside()
        mine = process_identity(os.getpid()).replace(" ", "-")
        memory = mount / f"{MEMORY_PREFIX}{mine}-{next(_RUNS)}-{secrets.token_hex(4)}"
        try:
            for folder in (root, run.sockets, run.learned_folder, run.pids):
                make_folder(folder)
            root.chmod(modes_in(root)[1])
            make_folder(memory, new=True)
            _LOCKS[memory.resolve()] = locked(memory)
            lead_to(root, memory)
            (root / "memory").symlink_to(memory)
            run.note_pid(SUPERVISOR.name, os.getpid())
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
        check_owner(folder)
        return folder

    @property
    def has_shared_memory(self) -> bool:
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
            raise ConfigError("run", str(self.root), NO_CHAIN_STARTED())
        try:
            return decode_config(self.config.read_bytes())
        except DECODE_ERRORS as error:
            why = SETTINGS_DAMAGED(error=error, run=self.root)
            raise ConfigError("settings of the run", str(self.config), why) from error

    @property
    def units(self) -> Path:
        """The sharded model that the job file names, as torch cuts it."""
        return self.root / "units.json"

    @property
    def first_unused_step(self) -> Path:
        """The first step that left out a parameter which was used before: a number."""
        return self.root / "left-out.json"

    @property
    def gradients(self) -> Path:
        """Gradients that wait for a base, the part in memory."""
        return self.memory / "gradients"

    def upload_staging_folder(self, stated: str | None) -> Path:
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

    def job_run_dir(self, number: int) -> RunDir:
        """Of a further job on the same ports, by its number from 2 on; 1: this one. Of what is left
        of the run before: what is left of that job's."""
        if number == 1:
            return self
        if self.root.name == self.previous.name and not (self.root / "jobs").exists():
            return RunDir(RunDir(self.root.parent).job_run_dir(number).previous)
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
        file, who = self.pids / stage, process_identity(pid).encode()
        with naming_file(file), FileIO(open_private(file, os.O_RDWR | os.O_CREAT), "r+b") as out:
            out.write(who)
            out.truncate(len(who))

    def stage_pids(self) -> dict[str, int]:
        """{stage: pid} of the processes of this run that live, the supervisor among them."""
        found = {file.name: self._pid_of(file.name) for file in self.pids.glob("*")}
        return {stage: pid for stage, pid in found.items() if pid is not None}

    def _pid_of(self, stage: str) -> int | None:
        try:
            return live_pid((self.pids / stage).read_text())
        except FileNotFoundError:  # none was there, or it was taken away meanwhile
            return None

    def _set_records_aside(self) -> None:
        """Makes room for the records of a new run; those of the run before stay for one more: all
        of them, also where a kill came amid of it."""
        there = [path for path in self.records() if path.exists()]
        coming = temporary_path(self.previous)
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
        if link.is_symlink() and (memory := self.memory).name.startswith(MEMORY_PREFIX):
            shutil.rmtree(memory, ignore_errors=True)
            if memory in _LOCKS:
                os.close(_LOCKS.pop(memory))
            link.unlink(missing_ok=True)
        self.stop_request.unlink(missing_ok=True)
        folders = [self.sockets, self.pids]
        if not keep_records:
            folders += [self.learned_folder, self.previous, temporary_path(self.previous)]
            for item in (self.trace, *self.records()):
                item.unlink(missing_ok=True)
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
