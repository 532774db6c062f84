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
from flowcheck.errors import DECODE_ERRORS, ConfigError, RunDirError, naming_file
from flowcheck.findings.catalog.run_directories import (
    IN_USE,
    NOT_ACCESSIBLE,
    SETTINGS_DAMAGED,
)
from flowcheck.plane.shared_memory.shard_size import ShardSize
from flowcheck.private_files import (
    check_not_shared,
    check_owner,
    make_folder,
    modes_for_new_entries,
    open_private,
    trust_user,
)
from flowcheck.stages.run_directory.process_liveness import (
    MEMORY_PREFIX,
    link_run_dir,
    live_pid,
    lock_folder,
    process_identity,
)
from flowcheck.stages.run_directory.run_dir_checks import (
    is_run,
    no_chain_finding,
    refuse_foreign_folder,
    refuse_two_owners,
)
from flowcheck.stages.run_directory.service_account import account
from flowcheck.stages.stage_table import SUPERVISOR

AUXILIARY_WEIGHTS = "beside.bin"
"""Name of the file with the frozen parameters and buffers that a job's start-up broadcast."""


class RecordFiles:
    """Paths of files below `root`; below `root`/previous they belong to the previous run."""

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
    def audit_files(self) -> Path:
        """One JSON line per file of a watched folder (job_state/audited_files.py)."""
        return self.root / "audit-files.jsonl"

    @property
    def anchors(self) -> Path:
        """One JSON line per checkpoint of the trainer that was given to the replica as a base."""
        return self.root / "anchors.jsonl"

    @property
    def heals(self) -> Path:
        """One JSON line per answer to values that tainted elements were to be replaced by."""
        return self.root / "heals.jsonl"

    @property
    def differing(self) -> Path:
        """One JSON line per step of which copies turned out to differ behind it
        (job_state/differing_steps.py)."""
        return self.root / "differing.jsonl"

    def differing_copies(self, step: int) -> Path:
        """Both copies of what differs in a step (stages/extraction/differing_report.py)."""
        return self.root / f"differing-{step}.json"

    @property
    def events(self) -> Path:
        """One JSON line per event (chain_events/event_log.py)."""
        return self.root / "events.jsonl"

    @property
    def heartbeat_file(self) -> Path:
        """Written regularly while the supervisor lives (chain_events/heartbeat.py)."""
        return self.root / "beat.json"

    @property
    def persisted(self) -> Path:
        """The status of [persist]: the durable checkpoint and the save in progress
        (save_status_file.py)."""
        return self.root / "persist.json"

    @property
    def kept_steps(self) -> Path:
        """What `[gradient_log] folder` keeps: JournalFigures as JSON (replica/step_journal)."""
        return self.root / "kept-steps.json"

    @property
    def served(self) -> Path:
        """The address of the step server while it runs: {"url"}."""
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
    def tainted_at_end(self) -> Path:
        """The ranges of the job's tainted elements when its chain ended
        (ops/watch/state/taint_of_models.py)."""
        return self.root / "tainted.json"

    @property
    def replay_options(self) -> Path:
        """What a replay was started with (ops/watch/state/replay_options_record.py)."""
        return self.root / "replay.json"

    @property
    def stop_request(self) -> Path:
        """Who asked the chain to end. The file exists from the request to the end."""
        return self.root / "asked"

    @property
    def previous(self) -> Path:
        """Folder with logs, events and steps of the previous run, which show why it ended."""
        return self.root / "previous"

    def log(self, stage: str) -> Path:
        return self.root / f"{stage}.log"

    def records(self) -> list[Path]:
        """The files that document a run, without the learned job and the trace."""
        own = (self.config, self.steps, self.events, self.unlearned, self.persisted)
        held = (self.kept_steps, self.audits, self.audit_files, self.anchors)
        copies = (self.root / name for name in ("copy.json", "copy-life.json", "copies.json"))
        held_too = (self.heals, self.differing, self.tainted_at_end)
        patterns = ("*.log", "steps-*.jsonl", "differing-*.json")
        named = (path for pattern in patterns for path in self.root.glob(pattern))
        return [
            *own,
            *held,
            *held_too,
            *copies,
            self.heartbeat_file,
            self.ended,
            self.replay_options,
            *named,
        ]


class LearnedFiles:
    """Paths of files below `root`/learned."""

    root: Path

    @property
    def learned_folder(self) -> Path:
        return self.root / "learned"

    @property
    def learned_job(self) -> Path:
        """The LearnedJob as JSON. The file appears complete, after the weights and the shard."""
        return self.learned_folder / "job.json"

    @property
    def training_spec(self) -> Path:
        """A TrainingSpec as JSON (wire/training_job/training_spec.py), in place of `learned_job`,
        for a job whose gradients come from other chains and whose connections are unknown."""
        return self.learned_folder / "training.json"

    @property
    def weights(self) -> Path:
        """Initial parameters from the job's packets, bytes in index order."""
        return self.learned_folder / "weights.bin"

    def read_weights(self, source: bytes | None) -> Path:
        """The same where a reading leaves them, before it is known that its job is followed.
        source: `Weights.sources` of those that are put together behind a reading."""
        named = "" if source is None else f"-{source.hex()[:16]}"
        return self.learned_folder / f".read-weights{named}.bin"

    def remove_read_weights(self) -> None:
        """Removes the weights that readings left, and what a kill left of one."""
        _remove_named(self.learned_folder, ".read-weights*.bin")

    @property
    def auxiliary_weights(self) -> Path:
        """Frozen parameters and buffers that the job broadcast with the parameters, back to back in
        the order of the stated model ([model] everything), bytes in index order."""
        return self.learned_folder / AUXILIARY_WEIGHTS

    @property
    def extract_record(self) -> Path:
        """The extractor's part of the lifecycle record (job_state/lifecycle_record_schema.py)."""
        return self.learned_folder / "extract.json"

    @property
    def update_record(self) -> Path:
        """The updater's part of the lifecycle record."""
        return self.learned_folder / "update.json"

    @property
    def request_record(self) -> Path:
        """The part of the lifecycle record that requests the use of a trainer's checkpoint."""
        return self.learned_folder / "request.json"

    @property
    def assumed(self) -> Path:
        """Assumptions without evidence on which steps were applied since the job was learned: a
        list of findings."""
        return self.learned_folder / "assumed.json"

    @property
    def gathered(self) -> Path:
        """How many steps were equal to what the trainers gathered behind them."""
        return self.learned_folder / "gathered.json"

    @property
    def scale(self) -> Path:
        """Changes of the loss scale that were seen in the gradients."""
        return self.learned_folder / "scale.json"

    @property
    def claimed(self) -> Path:
        """Indices of the job's flows, for several jobs on the same ports."""
        return self.learned_folder / "claimed.json"

    @property
    def no_job_found(self) -> Path:
        """The file exists if all frames were read and no job was learned."""
        return self.learned_folder / "none"

    def history(self, number: int) -> Path:
        """Folder with the learned files of an earlier incarnation of the job. number: from 1. Its
        folder `next` has the offered files of the following incarnation."""
        return self.learned_folder / str(number)


_RUNS = itertools.count()
_LOCKS: dict[Path, int] = {}
"""{folder of shared memory: descriptor that holds its lock}, for the folders of this process."""


class RunDir(LearnedFiles, RecordFiles):
    """The paths of one run: small files and sockets below `root`, shared memory below `memory`."""

    def __init__(self, root: Path) -> None:
        """Raises ConfigError if the folder belongs to an untrusted user or other users may write to
        it: its files name code to run, processes to end and memory to remove."""
        if os.geteuid() == 0:
            trust_user(account(None).user)  # the user of chains that root starts
        try:
            check_not_shared(root.stat(), root, "run")
        except PermissionError as error:
            raise ConfigError("run", str(root), NOT_ACCESSIBLE(os.geteuid())) from error
        except (FileNotFoundError, NotADirectoryError):
            pass
        self.root = root

    @classmethod
    def create(cls, root: Path, mount: Path) -> RunDir:
        """Creates a run directory, mode 0700, with a folder for shared memory below `mount`. Raises
        ConfigError if another run uses the folder, or if it holds files that are foreign or of
        another user."""
        run = cls(root)
        refuse_two_owners(root)
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
            root.chmod(modes_for_new_entries(root)[1])
            make_folder(memory, new=True)
            for gone in [held for held in _LOCKS if not held.exists()]:
                os.close(_LOCKS.pop(gone))
            _LOCKS[memory.resolve()] = lock_folder(memory)
            link_run_dir(root, memory)
            (root / "memory").symlink_to(memory)
            run.note_pid(SUPERVISOR.name, os.getpid())
        except BaseException:
            run.remove(keep_records=True)
            shutil.rmtree(memory, ignore_errors=True)  # where no link leads to it yet
            raise
        return run

    @property
    def memory(self) -> Path:
        """The folder of shared memory files (hugetlbfs or /dev/shm). Raises ConfigError if it
        belongs to an untrusted user."""
        folder = (self.root / "memory").resolve()
        check_owner(folder)
        return folder

    @property
    def has_shared_memory(self) -> bool:
        """Whether a chain runs here or was killed. A chain that ended has removed its memory."""
        return (self.root / "memory").is_symlink()

    @property
    def sockets(self) -> Path:
        return self.root / "sockets"

    @property
    def pids(self) -> Path:
        return self.root / "pids"

    def settings(self) -> JobConfig:
        """The settings of the chain that was started here. Raises ConfigError if no chain was
        started here, or if the settings are damaged."""
        if not self.config.exists():
            raise RunDirError(self.root, no_chain_finding(self.root))
        try:
            return decode_config(self.config.read_bytes())
        except DECODE_ERRORS as error:
            why = SETTINGS_DAMAGED(error=error, run=self.root)
            raise ConfigError("settings of the run", str(self.config), why) from error

    @property
    def units(self) -> Path:
        """The units into which torch shards the model of [sharded], as JSON."""
        return self.root / "units.json"

    @property
    def stated_start(self) -> Path:
        """The weights that the trainers begin with where these never cross the network, as the job
        file's factory and seed make them: bytes of all parameters, as `weights`."""
        return self.learned_folder / "stated-start.bin"

    @property
    def first_unused_step(self) -> Path:
        """Number of the first step that did not use a parameter that earlier steps used."""
        return self.root / "left-out.json"

    @property
    def gradients(self) -> Path:
        """The part in memory of the log of gradients that wait for a base."""
        return self.memory / "gradients"

    @property
    def waiting_steps(self) -> Path:
        """What waits to be written to `[gradient_log] folder` (replica/step_journal)."""
        return self.memory / "waiting-steps"

    @property
    def changes(self) -> Path:
        """The newest changes of the replica, for copies of it (stages/replica_copies)."""
        return self.memory / "changes"

    @property
    def name_of_saves(self) -> str:
        """The run's name in the ledger of a target of `[persist]`."""
        return str(self.root.resolve())

    def upload_staging_folder(self, stated: str | None) -> Path:
        """Folder for checkpoints on their way to a remote target. stated: the folder in the job
        file, in which each run has a folder of its own."""
        if stated is None:
            return self.root / "persist"
        return Path(stated) / hashlib.sha256(os.fsencode(self.root.resolve())).hexdigest()[:16]

    @property
    def unread(self) -> Path:
        """The file exists while staged messages wait to be read or are being read."""
        return self.memory / "unread"

    @property
    def shard(self) -> Path:
        return self.memory / "shard"

    def read_shard(self, size: ShardSize) -> Path:
        """The same where a reading leaves it, before it is known that its job is followed."""
        named = "-".join(map(str, size))
        return self.memory / f".read-shard-{named}"

    def remove_read_shards(self) -> None:
        """Removes the shards that readings left, and what a kill left of one."""
        _remove_named(self.memory, ".read-shard*")

    @property
    def replica(self) -> Path:
        return self.memory / "replica"

    @property
    def port(self) -> RunDir:
        """The run directory in which capture and parsing run: this one, or for a further job on the
        same ports the first job's."""
        link = self.root / "port"
        return RunDir(link.resolve()) if link.is_symlink() else self

    @property
    def reader(self) -> int:
        """The number of the job's extractor among the readers of the rings, from 0."""
        return int(self.root.name) - 1 if self.port is not self else 0

    def job_run_dir(self, number: int) -> RunDir:
        """The run directory of a job on the same ports, by its number; 1: this one. In the folder
        `previous`: the job's folder of the previous run."""
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
        """Writes the identity of the process that runs `stage`, so that another process with the
        same pid is not taken for it. Overwrites the file in place, which needs no disk space."""
        file, who = self.pids / stage, process_identity(pid).encode()
        with naming_file(file), FileIO(open_private(file, os.O_RDWR | os.O_CREAT), "r+b") as out:
            out.write(who)
            out.truncate(len(who))

    def stage_pids(self) -> dict[str, int]:
        """{stage: pid} of the living processes of this run, with the supervisor."""
        found = {file.name: self._pid_of(file.name) for file in self.pids.glob("*")}
        return {stage: pid for stage, pid in found.items() if pid is not None}

    def _pid_of(self, stage: str) -> int | None:
        try:
            # A damaged file names no process.
            return live_pid((self.pids / stage).read_text(errors="replace"))
        except FileNotFoundError:  # none was there, or it was taken away meanwhile
            return None

    def _set_records_aside(self) -> None:
        """Moves the records of the last run to `previous`, where they stay for one more run. If a
        kill interrupts this, the next call completes it and no record is lost."""
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
        """Removes the shared memory and small files of the run. Does nothing if the folder is not a
        run directory.

        keep_records: settings, logs, events, steps and the learned job stay.
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


def _remove_named(folder: Path, pattern: str) -> None:
    """Removes such files, and those that were to get such a name (atomic_write.py,
    `temporary_path`)."""
    for named in (pattern, f".{pattern}.tmp"):
        for left in folder.glob(named):
            left.unlink(missing_ok=True)
