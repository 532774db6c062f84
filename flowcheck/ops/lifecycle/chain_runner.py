"""Runs a chain: loads the job file, creates the run directory and shared memory, supervises the
stages, and removes the memory at the end."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from flowcheck.config import JobConfig, RingConfig, check_clip_scope, encode_config
from flowcheck.errors import ConfigError, LearnError, RingError, naming_file
from flowcheck.findings.catalog.refused_commands import LEARNED_MISSING
from flowcheck.findings.catalog.shared_memory_files import HUGE_PAGES_TAKEN, NO_RINGS
from flowcheck.findings.catalog.starting_a_chain import RINGS_TOO_LARGE
from flowcheck.findings.finding import Finding
from flowcheck.ops.job_setup.multi_job_setup import create_further_run_dirs, job_settings
from flowcheck.ops.job_setup.prior_job_files import PriorJob, prior_jobs, write_prior_job
from flowcheck.plane.shared_memory.flow_table import FlowTable
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.plane.shared_memory.shared_memory_location import (
    SHM,
    MemoryFolder,
    available_bytes,
    choose_memory_folder,
)
from flowcheck.plane.shared_memory.staging_file import Staging
from flowcheck.private_files import write_private
from flowcheck.stages.replica_update.gradient_sources.log_file_source import write_log_record
from flowcheck.stages.run_directory.job_run_dirs import all_run_dirs, job_count
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.service_loop import Signals, run_until_stopped
from flowcheck.stages.supervisor.chain_progress import ChainProgress
from flowcheck.stages.supervisor.sd_notify import SdNotifier
from flowcheck.stages.supervisor.stage_starter_client import end_starter
from flowcheck.stages.supervisor.supervisor import Supervisor
from flowcheck.stages.zmq_sockets import StageSockets
from flowcheck.wire.training_job.learned_job import decode_job

if TYPE_CHECKING:
    from flowcheck.wire.learn.jobs.late.amid import Expected

RING_HEADER_BYTES = 2 << 20
"""Bytes of a ring's header: one 2 MiB page (fc_ring.h)."""
FLOW_TABLE_BYTES = 16 << 20
"""Approximate bytes of a flow table without its message pool. Used only to choose where shared
memory is placed."""
STAGING_TABLES_BYTES = 48 << 20
"""Approximate bytes of the staging tables without the staged payload. Used only to choose where
shared memory is placed."""
EarlierJobFiles = tuple[bytes, bytes, bytes | None]
"""(job, weights, other broadcast tensors) of a job that was learned in an earlier run, each as the
bytes of its file."""


def shared_memory_need(config: JobConfig) -> int:
    """Bytes of shared memory that a chain needs before the model is known: rings, flow tables,
    staging."""
    return len(config.rings) * (_ring_bytes(config) + _staging_bytes(config))


def _ring_bytes(config: JobConfig) -> int:
    ring = RING_HEADER_BYTES + config.ring.slots * config.ring.slot_bytes * 9 // 8
    return ring + FLOW_TABLE_BYTES + 2 * config.ring.slots * 192


def _staging_bytes(config: JobConfig) -> int:
    return job_count(config) * (config.staging.size_bytes + STAGING_TABLES_BYTES)


def _largest_setting(config: JobConfig) -> tuple[str, int]:
    """(key, value) of the setting to which a chain's shared memory is due most."""
    if _staging_bytes(config) > _ring_bytes(config):
        return "staging.size_bytes", config.staging.size_bytes
    if config.ring.slots <= RingConfig().slots:
        return "ring.slot_bytes", config.ring.slot_bytes
    return "ring.slots", config.ring.slots


def ordinary_bytes_free() -> int:
    """Bytes that /dev/shm can still hold without the machine running out of memory."""
    shm = os.statvfs(SHM)
    return min(shm.f_bavail * shm.f_frsize, available_bytes())


def create_run(
    config: JobConfig, root: Path, expected: Sequence[Expected | None] = ()
) -> tuple[RunDir, Finding]:
    """Creates the run directory and its shared memory; returns both it and a finding about where
    the memory lies.

    expected: [job] the gradients that its model reduces, as `prior_jobs` takes it; empty: unknown.

    Raises ConfigError for a setting that does not work on this machine, OSError or RingError where
    memory cannot be created.
    """
    learned = _learned(Path(config.learned)) if config.learned is not None else None
    own = [job_settings(config, number) for number in range(1, job_count(config) + 1)]
    for each in own if not config.all_shards else ():
        check_clip_scope(each.optimizer, len(own), config.job)
    known = prior_jobs(own, root, expected)
    need = shared_memory_need(config)
    place = choose_memory_folder(need) if config.source else MemoryFolder(SHM, False, NO_RINGS(SHM))
    if place.huge_pages:
        try:
            return _create_in(place, config, root, learned, known)
        except RingError as error:
            if error.errno != errno.ENOSPC:
                raise
        # Somebody took the pages between the look and the making.
        place = MemoryFolder(SHM, False, HUGE_PAGES_TAKEN(SHM))
    if need > ordinary_bytes_free():
        right = RINGS_TOO_LARGE(need_mib=need >> 20, free_mib=ordinary_bytes_free() >> 20)
        key, value = _largest_setting(config)
        raise ConfigError(key, value, right)
    return _create_in(place, config, root, learned, known)


def _create_in(
    place: MemoryFolder,
    config: JobConfig,
    root: Path,
    learned: EarlierJobFiles | None,
    known: Sequence[PriorJob],
) -> tuple[RunDir, Finding]:
    run = RunDir.create(root, place.folder)
    try:
        with naming_file(run.root):
            write_private(run.config, encode_config(job_settings(config, 1)))
            write_prior_job(run, job_settings(config, 1), known[0])
            if learned is not None:
                write_private(run.weights, learned[1])
                if learned[2] is not None:
                    write_private(run.auxiliary_weights, learned[2])
                write_private(run.learned_job, learned[0])
            if config.gradients is not None and config.gradients.logs:
                write_log_record(run, [Path(file) for file in config.gradients.logs])
        for number, (source, _) in enumerate(config.rings):
            ring = FrameRing.create(
                run.ring(number),
                slots=config.ring.slots,
                slot_bytes=config.ring.slot_bytes,
                live_source=config.source[source].live,
                readers=job_count(config),
            )
            messages = 2 * config.ring.slots
            flows = FlowTable.create(run.flows(number), messages=messages)
            Staging.create(
                run.staging(number), messages=messages, data_bytes=config.staging.size_bytes
            ).close()
            flows.close()
            ring.close()
        create_further_run_dirs(config, run, place.folder, known)
    except BaseException:
        run.remove()
        raise
    return run, place.why


def _learned(job: Path) -> EarlierJobFiles:
    """Read before anything is made, for it may lie in the very run directory that is made anew."""
    weights = job.with_name(RunDir(job.parent).weights.name)
    for path in (job, weights):
        if not path.exists():
            raise ConfigError("learned", str(path), LEARNED_MISSING())
    try:
        decode_job(job.read_bytes())
    except LearnError as error:
        raise ConfigError("learned", str(job), error.finding) from error
    others = job.with_name(RunDir(job.parent).auxiliary_weights.name)
    rest = others.read_bytes() if others.exists() else None
    return job.read_bytes(), weights.read_bytes(), rest


def supervise(
    config: JobConfig,
    run: RunDir,
    *,
    until_drained: bool,
    will_save: bool,
    signals: Signals,
    watch: Callable[[ChainProgress], None] | None = None,
    manager: SdNotifier | None = None,
) -> Supervisor:
    """Runs the chain until it ends. Raises the error that ended it, if there was one.

    until_drained: end once all sources are read and everything from them is processed.
    will_save: checkpoints will be written afterwards, by the updater's process (checkpoint
    helper).
    signals: a signal ends the chain; the received signals stay recorded there.
    watch: called with the progress in every turn of the supervisor.
    manager: systemd notifier, polled in every turn.
    """

    def turned(progress: ChainProgress) -> None:
        if watch is not None:
            watch(progress)
        up = supervisor.all_up()
        if manager is not None:
            manager.poll(up=up)
        # What is persisted is persisted here: torch takes seconds, and an end has few.
        if up and will_save and config.persist is not None and loading.ident is None:
            loading.start()

    loading = threading.Thread(target=_load_checkpoint)
    further = all_run_dirs(run)[1:]
    supervisor = Supervisor(
        run,
        config,
        watch=turned,
        hurried=lambda: signals.hard,
        other_jobs=further,
        serves_checkpoints=will_save,
    )
    links = StageSockets(run.sockets, StageSockets.EVENTS)
    try:
        run_until_stopped(supervisor, links, until_drained=until_drained, signals=signals)
    except BaseException:
        if supervisor.checkpoint_helper is not None:
            supervisor.checkpoint_helper.close()
        raise
    finally:
        end_starter()
        if loading.ident is not None:
            loading.join()
    return supervisor


def _load_checkpoint() -> None:
    from flowcheck.replica.checkpoint import checkpoint_save  # noqa: F401
    from flowcheck.replica.torch_without_compiler import load_torch

    load_torch()


@contextmanager
def removed_at_end(run: RunDir, *, keep_records: bool = False) -> Iterator[None]:
    """Context manager that removes the run at its end. Logs and records stay if `keep_records` is
    set, and after an exception, because its message names a log file."""
    try:
        yield
    except BaseException:
        run.remove(keep_records=True)
        raise
    run.remove(keep_records=keep_records)
