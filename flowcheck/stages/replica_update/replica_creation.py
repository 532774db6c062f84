"""The replica of a learned job: memory checked, then opened or created from the initial
weights. Gradients that arrive meanwhile wait in their source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from flowcheck.config import JobConfig, OptimizerConfig
from flowcheck.findings.catalog.distributed_optimizers import FUSED_PARTS, NORM_ORDER
from flowcheck.findings.catalog.hybrid_jobs import ONE_SHARD
from flowcheck.findings.catalog.replica_update_notes import (
    NAME_COUNT,
    START_LACKS_BYTES,
    WHOLE_GRADIENTS,
    WHOLE_STATE,
)
from flowcheck.findings.finding import Finding
from flowcheck.replica.element_ranges import no_ranges
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.optimizer.state_sections import describe_sections
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.sharding.gather_units import UnitSplitter
from flowcheck.replica.state_file.concurrent_reader import SPARE_COPIES
from flowcheck.replica.state_file.file_header import COPIES_MAX
from flowcheck.replica.state_file.free_space import FreeSpace, check_space, free_space_of
from flowcheck.replica.step_journal.waiting_sizes import waiting_bytes
from flowcheck.replica.taint import missing_of_weights, tainted_finding
from flowcheck.replica.worker_threads import WorkerThreads
from flowcheck.stages.job_state.assumptions import add_assumption
from flowcheck.stages.job_state.gathered_parameters import parameter_placement
from flowcheck.stages.job_state.model_layout import (
    layout_of,
    names_fit,
    optimizer_of,
    stated_model_mismatch,
)
from flowcheck.stages.replica_copies.change_ring_sizes import ring_bytes
from flowcheck.stages.replica_update.gradient_logs import applied_log_bytes
from flowcheck.stages.replica_update.model_buffers import store_broadcast_buffers
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.wire.collectives.nccl_debug_log import other_job_finding
from flowcheck.wire.training_job.learned_job import FollowedData
from flowcheck.wire.training_job.operator_statements import ShardingStyle
from flowcheck.wire.training_job.training_spec import TrainingFacts

COPIES_LEAST = 2
"""The newest step, and the one being made."""


def check_replica_memory(
    run: RunDir,
    config: JobConfig,
    job: TrainingFacts,
    layout: Layout,
    optimizer: OptimizerConfig,
    *,
    leaves_out: bool,
) -> None:
    """Raises StateError, with the sum of what is needed, where memory is too small. leaves_out: as
    Replica.create takes it."""
    step = max(1, sum(s.size_bytes for s in describe_sections(layout, optimizer, leaves_out)))
    copies = min(COPIES_MAX, COPIES_LEAST + config.replica.keep_bytes // step)
    logged = applied_log_bytes(config.gradient_log.taken_steps, job.gradient_bytes)
    kept = config.gradient_log.folder is not None and job.kind is FollowedData.GRADIENTS
    waiting = waiting_bytes(layout.gradient_bytes) if kept else 0
    given = 0
    if config.copies is not None and job.kind is FollowedData.GRADIENTS:
        given = ring_bytes(layout.gradient_bytes, config.copies.memory_bytes)
    needed, account = (
        copies * step + logged + waiting + given,
        [f"{copies} steps of {step:,} bytes"],
    )
    if logged:
        account.append(f"{logged:,} of gradients of applied steps")
    if waiting:
        account.append(f"{waiting:,} of gradients on their way to `[gradient_log] folder`")
    if given:
        account.append(f"{given:,} of gradients for copies")
    space = free_space_of(run.replica.parent)
    check_space(run.replica.parent, needed, " and ".join(account), space)
    read = {"saved": config.persist is not None, "served": config.serve is not None}
    readers = [word for word, asked in read.items() if asked and copies < SPARE_COPIES]
    if readers and space.memory is not None:
        # They copy into memory of their own, which the file system's bound is not of.
        account += [f"a copy of a step that is {word}, {step:,} bytes," for word in readers]
        whole = needed + len(readers) * step
        own = FreeSpace(max(space.file_system, whole), space.memory)
        check_space(run.replica.parent, whole, " and ".join(account), own)


def open_replica(
    run: RunDir,
    config: JobConfig,
    job: TrainingFacts,
    *,
    leaves_out: bool,
    say: Callable[[Finding], None],
) -> tuple[Replica, UnitSplitter | None]:
    """Opens or creates the replica of a learned job. For sharded training also returns how its
    parameters are cut out of the gathered units.

    leaves_out: as Replica.create takes it; say: tells the operator. Raises StateError where the job
    file does not fit the job.
    """
    optimizer = optimizer_of(job, config)
    workers = WorkerThreads(config.replica.threads, config.replica.cpus)
    placing, missing = None, no_ranges()
    if job.kind is FollowedData.PARAMETERS:
        placing, rests = parameter_placement(run, job, config)
        for found in rests:
            add_assumption(run, found)
    if run.replica.exists():
        return _resting(run, Replica.open(run.replica, optimizer, workers=workers)), placing
    if config.model.factory and (unlike := stated_model_mismatch(job, config.model.parameters)):
        say(unlike)
    gathers = config.sharded is not None and config.sharded.style is not ShardingStyle.HYBRID
    if gathers and job.kind is FollowedData.GRADIENTS:
        whole = WHOLE_STATE if config.whole_zero else WHOLE_GRADIENTS
        say(whole(job.communicator_ranks[0]))
        for found in _zero_assumptions(config, optimizer):
            add_assumption(run, found)
    if config.sharded is not None and (of := config.sharded.one_of_shards) is not None:
        add_assumption(run, ONE_SHARD(shard=of[0], shards=of[1]))
    if other := other_job_finding(config.ring_orders, job.communicator_ranks):
        say(other)
    if placing is not None:
        layout, leaves_out = placing.layout, True
        gathered = placing.parameters(np.fromfile(run.weights, np.uint8))
        weights = layout.memory_order(gathered.view(layout.numpy_dtype))
    else:
        layout = layout_of(job, config)
        if config.model.names and not names_fit(job, config):
            names, parameters = len(config.model.names), len(job.parameters)
            say(NAME_COUNT(names=names, parameters=parameters))
        known = not job.awaits_base  # else they are nobody's, and the base takes their place
        raw = np.fromfile(run.weights, np.uint8) if known else np.zeros(job.state_bytes, np.uint8)
        weights = layout.memory_order(raw.view(layout.numpy_dtype))
        missing = missing_of_weights(layout, job.weights_missing if known else ())
    check_replica_memory(run, config, job, layout, optimizer, leaves_out=leaves_out)
    if placing is None:
        store_broadcast_buffers(
            run, config, job, run.auxiliary_weights
        )  # first: who finds a replica finds these
    made = Replica.create(
        run.replica,
        layout,
        optimizer,
        weights,
        keep_bytes=config.replica.keep_bytes,
        may_skip_parameters=leaves_out,
        workers=workers,
        missing=missing,
    )
    if made.tainted:
        say(START_LACKS_BYTES(tainted_finding(made.tainted, layout)))
    return _resting(run, made), placing


def _zero_assumptions(config: JobConfig, optimizer: OptimizerConfig) -> Iterator[Finding]:
    """What the steps of a ZeRO job's whole state rest on."""
    if not config.whole_zero:
        return
    if any(group.ranks > 2 for group in optimizer.sharded_groups):
        yield NORM_ORDER()
    if any(o.implementation == "fused" and o.device != "cuda" for o in optimizer.per_optimizer):
        yield FUSED_PARTS()


def _resting(run: RunDir, replica: Replica) -> Replica:
    for found in replica.assumptions:
        add_assumption(run, found)
    replica.prepare()
    return replica
