"""`flowcheck replay`: sends capture files through the whole multi-process chain, up to a
checkpoint."""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from flowcheck.config import (
    JobConfig,
    OptimizerConfig,
    RingConfig,
    SourceConfig,
    StagingConfig,
    check_job_tables,
)
from flowcheck.errors import CaptureError, ConfigError
from flowcheck.findings.catalog.how_chains_end import CAPTURES_READ
from flowcheck.findings.catalog.refused_commands import (
    COMMA_IN_PATH,
    OPTIMIZER_STATED,
    REPLAY_SOURCE,
)
from flowcheck.findings.catalog.starting_a_chain import LEARNING_RATE_ASSUMED, OPTIMIZER_ASSUMED
from flowcheck.findings.finding import Finding
from flowcheck.findings.named_run import set_named_run
from flowcheck.ops.console_output import SentenceConsole
from flowcheck.ops.job_setup.checked_job_file import load_checked_job
from flowcheck.ops.job_setup.multi_job_setup import with_factory_models
from flowcheck.ops.lifecycle import chain_runner
from flowcheck.ops.lifecycle.leftover_memory import remove_leftovers
from flowcheck.ops.lifecycle.progress_messages import ReplayProgress
from flowcheck.ops.lifecycle.replay_result import (
    ReplayResult,
    is_complete,
    job_end_of_replay,
    result_without_run,
    show,
)
from flowcheck.ops.lifecycle.shutdown_cleanup import rescue_killed_chain
from flowcheck.ops.lifecycle.shutdown_record_writer import (
    failure_finding,
    record_end,
    record_failed_end,
    stopped_by,
)
from flowcheck.ops.watch.state.chain_state import EndKind, ReplayOptions
from flowcheck.ops.watch.state.replay_options_record import (
    REPLAY_PREFIX,
    repeating_command,
    write_replay_options,
)
from flowcheck.optimizer_rules.torch_optimizers import REPLAY_DEFAULT
from flowcheck.plane.frame_sources.dpdk_eal import dpdk
from flowcheck.plane.frame_sources.pcap_source import PcapSource
from flowcheck.private_files import make_folder
from flowcheck.replica.preflight.optimizer_preflight import check_optimizer_name
from flowcheck.stages.privilege.drop_privileges import kept_rights_notes
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.service_loop import Signals
from flowcheck.untrusted_text import printable

RING_SLOTS = 1 << 12
"""Slots of the ring of a replay. A choice: a file source waits while the ring is full, so a small
ring loses nothing and stays in the CPU's cache."""
STAGING_BYTES_MAX = 1 << 30
"""Largest staging of a replay, bytes. A choice: up to this limit staging has twice the file's size
and can hold all of it; a larger capture must be learned before its end."""
AUTO = "auto"
"""The source of a replay that does not state one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """Options of the command line."""

    files: tuple[Path, ...]
    optimizer: str | None = None
    learning_rate: float | None = None
    job: Path | None = None
    output: Path | None = None
    speed: float | None = None
    source: str = AUTO
    digests: bool = False
    run: Path | None = None
    as_json: bool = False
    jobs: int | None = None


def run(request: ReplayRequest) -> int:
    """Replays the captures. Returns 0 only if every step of the stream was applied to the replica
    and none was lost, else 1."""
    counts = [_count(path) for path in request.files]
    config, assumed = _config(request, counts)
    if request.output is not None:
        make_folder(request.output)  # now, not after all the work
    console = SentenceConsole(stderr=True, quiet=request.as_json)
    for note in kept_rights_notes():
        console.print(printable(str(note)), markup=False)
    for assumption in assumed:
        console.print_finding(assumption, "[yellow]assumed[/] ")
    root = request.run or Path(tempfile.mkdtemp(prefix=REPLAY_PREFIX))
    set_named_run(root)
    rescued = rescue_killed_chain(RunDir(root), "flowcheck replay")
    if rescued is not None:
        console.print(printable(str(rescued)), markup=False)
    for removed in remove_leftovers(except_run=root, replicas=False).findings:
        console.print(printable(str(removed)), markup=False)
    where, memory = chain_runner.create_run(config, root)
    write_replay_options(where, _options(request))
    console.print(str(memory), markup=False)
    # To the end: a signal while the checkpoint is being written must not be the end of that.
    with (
        Signals() as signals,
        chain_runner.removed_at_end(where, keep_records=request.run is not None),
    ):
        result = _replay(request, config, where, console, sum(counts), signals)
    if request.run is None:
        shutil.rmtree(root, ignore_errors=True)
        result = result_without_run(result, repeating_command(root, _options(request)))
    if request.as_json:
        result["assumed"] = [*assumed, *result["assumed"]]
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(result), indent=1).decode() + "\n")
    else:
        show(result, console)
    return 0 if all(map(is_complete, (result, *result["beside"]))) else 1


def _count(path: Path) -> int:
    with PcapSource(path) as source:
        return source.count()


def _config(request: ReplayRequest, counts: list[int]) -> tuple[JobConfig, list[Finding]]:
    """The chain's settings, and what nobody stated."""
    assumed: list[Finding] = []
    sources = _sources(request, counts)
    if request.job is not None:
        if request.optimizer is not None or request.learning_rate is not None:
            raise ConfigError("--job", str(request.job), OPTIMIZER_STATED())
        base = load_checked_job(request.job, sources=sources)
        if request.jobs is not None:
            check_job_tables(request.jobs, base.job)
            base = with_factory_models(msgspec.structs.replace(base, jobs=request.jobs))
        whole = request.digests or base.digests
        # A live job's folder of checkpoints is nothing to write to; --out is.
        alone = msgspec.structs.replace(
            base, digests=whole, persist=None, serve=None, checkpoint=None
        )
        return alone, assumed
    name, rate = request.optimizer, request.learning_rate
    if name is None:
        name = REPLAY_DEFAULT
        assumed.append(OPTIMIZER_ASSUMED(name))
    if rate is None:
        rate = 0.01
        assumed.append(LEARNING_RATE_ASSUMED(rate))
    optimizer = msgspec.convert({"name": name, "learning_rate": rate}, OptimizerConfig)
    check_optimizer_name("--optimizer", optimizer)
    size = sum(path.stat().st_size for path in request.files)
    staging = min(STAGING_BYTES_MAX, max(64 << 20, 2 * size))
    return JobConfig(
        source=sources,
        optimizer=optimizer,
        digests=request.digests,
        jobs=request.jobs or 1,
        ring=RingConfig(slots=RING_SLOTS),
        staging=StagingConfig(size_bytes=staging),
    ), assumed


def _sources(request: ReplayRequest, counts: list[int]) -> tuple[SourceConfig, ...]:
    kind = request.source
    if kind not in (AUTO, "dpdk", "file"):
        raise ConfigError("--source", kind, REPLAY_SOURCE())
    if kind == AUTO:
        kind = "dpdk" if _dpdk_reads(request.files) else "file"
    if kind == "dpdk":
        for path in request.files:
            if "," in str(path.resolve()):
                raise ConfigError("FILE", str(path), COMMA_IN_PATH())
    return tuple(
        SourceConfig(
            vdev=f"net_pcap0,rx_pcap={path.resolve()}" if kind == "dpdk" else None,
            file=str(path.resolve()) if kind == "file" else None,
            speed=request.speed,
            frames=frames,
        )
        for path, frames in zip(request.files, counts, strict=True)
    )


def _dpdk_reads(files: tuple[Path, ...]) -> bool:
    """Whether the DPDK path can be taken: the module is built; commas would split the vdev."""
    try:
        dpdk()
    except CaptureError:
        return False
    return not any("," in str(path.resolve()) for path in files)


def _replay(
    request: ReplayRequest,
    config: JobConfig,
    where: RunDir,
    console: Console,
    frames: int,
    signals: Signals,
) -> dict[str, Any]:
    try:
        with ReplayProgress(where, config, console, frames) as watch:
            supervisor = chain_runner.supervise(
                config,
                where,
                until_drained=True,
                will_save=request.output is not None,
                signals=signals,
                watch=watch,
            )
            stopped = bool(signals.received)
        result = ReplayResult(request.output, frames, stopped).collect(supervisor)
    except BaseException as error:
        given = _options(request)
        record_failed_end(where, failure_finding(error), (), replay=True, options=given)
        raise
    each = (result, *result["beside"])
    if any(one["interrupted"] for one in each):
        how, by = EndKind.ASKED, stopped_by(where, signals.received)
    else:
        how, by = EndKind.DRAINED, CAPTURES_READ()
    jobs = [job_end_of_replay(one) for one in each]
    record_end(where, how, by, jobs, replay=True, options=_options(request))
    return result


def _options(request: ReplayRequest) -> ReplayOptions:
    """As its records have them, for the command that repeats the replay."""
    job, out = request.job, request.output
    return ReplayOptions(
        files=tuple(str(file.absolute()) for file in request.files),
        job=None if job is None else str(job.absolute()),
        out=None if out is None else str(out.absolute()),
        optimizer=request.optimizer,
        lr=request.learning_rate,
        speed=request.speed,
        source=None if request.source == AUTO else request.source,
        jobs=request.jobs,
        digests=request.digests,
    )
