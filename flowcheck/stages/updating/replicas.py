"""The updater's replica: opened, or made from what the job began with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flowcheck.config import JobConfig
from flowcheck.replica.parting.units import Placing
from flowcheck.replica.replica import Replica
from flowcheck.replica.workers import Workers
from flowcheck.stages.following.gathered import placing_of
from flowcheck.stages.rundir import RunDir
from flowcheck.stages.updating.assumed import assume
from flowcheck.stages.updating.beside import keep_sent
from flowcheck.stages.updating.model import layout_of, names_fit, optimizer_of, unlike_stated
from flowcheck.stages.updating.needed import check_needed
from flowcheck.wire.job import Follows, Job
from flowcheck.wire.logged import of_another_job

WHOLE_GRADIENTS = (
    "[sharded] is stated, and the trainers sum whole gradients in a ring of {} ranks, as "
    "DistributedDataParallel does: these are followed, and [sharded] is left aside"
)


def open_replica(
    run: RunDir, config: JobConfig, job: Job, *, leaves_out: bool, say: Callable[[str], None]
) -> tuple[Replica, Placing | None]:
    """The replica of a learned job, and of sharded training how its parameters are taken from what
    is gathered. leaves_out: as Replica.create takes it; say: tells the operator.

    Raises StateError where the job file does not fit the job.
    """
    optimizer = optimizer_of(job, config)
    workers = Workers(config.replica.threads, config.replica.cpus)
    placing = None
    if job.kind is Follows.PARAMETERS:
        placing, rests = placing_of(run, job, config)
        for sentence in rests:
            assume(run, sentence)
    if run.replica.exists():
        return _resting(run, Replica.open(run.replica, optimizer, workers=workers)), placing
    if config.model.factory and (unlike := unlike_stated(job, config.model.parameters)):
        say(unlike)
    if config.sharded is not None and job.kind is Follows.GRADIENTS:
        say(WHOLE_GRADIENTS.format(job.communicators[0].ranks))
    ranks = [communicator.ranks for communicator in job.communicators]
    if other := of_another_job(config.ring_orders, ranks):
        say(other)
    if placing is not None:
        layout, leaves_out = placing.layout, True
        gathered = placing.parameters(np.fromfile(run.weights, np.uint8))
        weights = layout.memory_order(gathered.view(layout.stored_as))
    else:
        layout = layout_of(job, config)
        if config.model.names and not names_fit(job, config):
            say(
                f"[model] names has {len(config.model.names)} names for {len(job.parameters)} "
                "parameters: they are called param.0, param.1, ... instead"
            )
        known = not job.joined  # else they are nobody's, and the base takes their place
        raw = np.fromfile(run.weights, np.uint8) if known else np.zeros(job.state_bytes, np.uint8)
        weights = layout.memory_order(raw.view(layout.stored_as))
    check_needed(run, config, job, layout, optimizer, leaves_out=leaves_out)
    if placing is None:
        keep_sent(run, config, job, run.beside_weights)  # first: who finds a replica finds these
    made = Replica.create(
        run.replica,
        layout,
        optimizer,
        weights,
        keep_bytes=config.replica.keep_bytes,
        leaves_out=leaves_out,
        workers=workers,
    )
    return _resting(run, made), placing


def _resting(run: RunDir, replica: Replica) -> Replica:
    for sentence in replica.rests_on:
        assume(run, sentence)
    replica.prepare()
    return replica
