"""Whether a learned job is one that the job file states, by its addresses and parameter sizes.
addresses of its connections and the sizes of its parameters."""

from __future__ import annotations

from collections.abc import Sequence

from flowcheck.config import JobTableConfig
from flowcheck.wire.training_job.learned_job import LearnedJob

WRONG_HOSTS = (
    "hosts = {} are stated, and {} uses {}: it has no connection to {}, as far as the mirrored "
    "ports show (state addresses that analyze prints for it)"
)
WRONG_SIZES = "a job was read whose parameters have other sizes than those of the model stated"


def addresses_of(job: LearnedJob) -> list[str]:
    """Of the ports that its connections were seen at."""
    keys = [key for edge in job.edges for key in edge.every_flow]
    return sorted({address for key in keys for address in (key.source, key.destination)})


def stated_alike(one: JobTableConfig, two: JobTableConfig) -> bool:
    """Nothing that is stated tells them apart."""
    return one.hosts == two.hosts and _sizes(one) == _sizes(two)


def fits_stated_job(own: JobTableConfig, job: LearnedJob) -> bool:
    """Nothing that is stated of a job contradicts that this is it."""
    return not misfit(own, job)


def misfit(own: JobTableConfig, job: LearnedJob) -> str:
    """What of it does; empty: nothing."""
    seen, sizes = addresses_of(job), _sizes(own)
    if lacking := [host for host in own.hosts if host not in seen]:
        return _wrong_hosts(own, "the job that was read", seen, lacking)
    return "" if sizes in ((), tuple(p.sizes for p in job.parameters)) else WRONG_SIZES


def unlike_hosts(stated: Sequence[JobTableConfig], found: Sequence[LearnedJob]) -> list[str]:
    """A sentence for each stated job whose hosts none of those found uses."""
    told = []
    for own in stated:
        every = [set(addresses_of(job)) for job in found]
        if not own.hosts or not every or any(seen.issuperset(own.hosts) for seen in every):
            continue
        best = max(every, key=lambda seen: len(seen.intersection(own.hosts)))
        lacking = [host for host in own.hosts if host not in best]
        whose = "the data-parallel job seen" if len(found) == 1 else "the nearest of those seen"
        told.append(_wrong_hosts(own, whose, sorted(best), lacking))
    return told


def _wrong_hosts(
    own: JobTableConfig, whose: str, seen: Sequence[str], lacking: Sequence[str]
) -> str:
    named = [", ".join(addresses) for addresses in (seen, lacking)]
    return WRONG_HOSTS.format(list(own.hosts), whose, *named)


def _sizes(own: JobTableConfig) -> tuple[tuple[int, ...], ...]:
    return tuple(p.sizes for p in own.model.parameters) if own.model is not None else ()
