"""What the iterations of a stated model reduce, for a chain that did not see its job begin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowcheck.config import JobConfig
from flowcheck.ops.running.several import own_settings
from flowcheck.ops.running.stated import made_in
from flowcheck.stages.jobs import count
from flowcheck.wire.terms import Kind

if TYPE_CHECKING:
    from flowcheck.wire.learn.jobs.late.amid import Expected

MIB = 1 << 20


def expected_of_each(config: JobConfig) -> list[Expected | None]:
    """[job] of each; see `expected_of`."""
    made: dict[str, Expected | None] = {}
    found = []
    for number in range(1, count(config) + 1):
        own = own_settings(config, number)
        key = repr(own.model)
        if key not in made:
            made[key] = expected_of(own)
        found.append(made[key])
    return found


def expected_of(config: JobConfig) -> Expected | None:
    """By DistributedDataParallel's rules; None where no factory is stated, or no job is to be
    joined."""
    model = config.model
    if model.factory is None or not config.joins:
        return None
    from flowcheck.ops.planning.traffic import REVERSE, Options, traffic_of
    from flowcheck.wire import ddp
    from flowcheck.wire.learn.jobs.late.amid import Expected

    made = made_in(model)
    cap = None if model.bucket_cap_mb is None else int(model.bucket_cap_mb * MIB)
    options = Options(cap_bytes=cap, find_unused_parameters=model.find_unused_parameters)
    traffic = traffic_of(made, options)
    trained = tuple(tensor.wire for tensor in made.trained)
    if options.find_unused_parameters:
        caps = tuple(dict.fromkeys(options.caps_bytes))
        buckets = (*ddp.unused_buckets(trained, caps), (len(trained),))
    else:
        buckets = ddp.rebuilt_buckets(trained, made.ready, options.caps_bytes)
    return Expected(
        parameters=trained,
        buckets=buckets,
        buffer_bytes=tuple(one.work_bytes for one in traffic.each if one.kind is Kind.BROADCAST),
        mapped=options.find_unused_parameters,
        assumed=(REVERSE,) if traffic.assumed else (),
    )
