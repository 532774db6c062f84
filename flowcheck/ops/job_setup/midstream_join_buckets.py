"""The gradient buckets and broadcasts that DDP makes of a stated model, for a chain that joins
a job midstream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowcheck.config import JobConfig
from flowcheck.findings.catalog.plan_figures import REVERSE_ORDER
from flowcheck.ops.job_setup.job_file_references import factory_model
from flowcheck.ops.job_setup.multi_job_setup import job_settings
from flowcheck.stages.run_directory.job_run_dirs import job_count
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind

if TYPE_CHECKING:
    from flowcheck.wire.learn.jobs.late.amid import Expected

MIB = 1 << 20


def expected_buckets_of_jobs(config: JobConfig) -> list[Expected | None]:
    """[job] of each; see `expected_of`."""
    made: dict[str, Expected | None] = {}
    found = []
    for number in range(1, job_count(config) + 1):
        own = job_settings(config, number)
        key = repr(own.model)
        if key not in made:
            made[key] = expected_of(own)
        found.append(made[key])
    return found


def expected_of(config: JobConfig) -> Expected | None:
    """By DistributedDataParallel's rules; None where no factory is stated, or no job is to be
    joined."""
    model = config.model
    if model.factory is None or not config.late_join:
        return None
    from flowcheck.ops.planning.ddp_collectives import DdpOptions, ddp_traffic
    from flowcheck.wire.ddp_startup import ddp_messages
    from flowcheck.wire.learn.jobs.late.amid import Expected

    made = factory_model(model)
    cap = None if model.bucket_cap_mb is None else int(model.bucket_cap_mb * MIB)
    options = DdpOptions(cap_bytes=cap, find_unused_parameters=model.find_unused_parameters)
    traffic = ddp_traffic(made, options)
    trained = tuple(tensor.wire for tensor in made.trained)
    if options.find_unused_parameters:
        caps = tuple(dict.fromkeys(options.caps_bytes))
        buckets = (*ddp_messages.find_unused_buckets(trained, caps), (len(trained),))
    else:
        buckets = ddp_messages.rebuilt_buckets(trained, made.ready, options.caps_bytes)
    return Expected(
        parameters=trained,
        buckets=buckets,
        buffer_bytes=tuple(
            one.work_bytes for one in traffic.each if one.kind is CollectiveKind.BROADCAST
        ),
        mapped=options.find_unused_parameters,
        assumed=(REVERSE_ORDER(),) if traffic.assumed else (),
    )
