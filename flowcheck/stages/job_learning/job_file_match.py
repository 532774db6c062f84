"""Whether a learned job is one that the job file states, by the addresses of its connections and
the sizes of its parameters."""

from __future__ import annotations

from collections.abc import Sequence

from flowcheck.config import JobTableConfig
from flowcheck.findings.catalog.job_selection_reasons import (
    HOSTS_NOT_USED,
    JOB_READ,
    NEAREST_JOB,
    ONLY_JOB,
    OTHER_SIZES,
)
from flowcheck.findings.finding import Finding
from flowcheck.wire.training_job.learned_job import LearnedJob


def addresses_of(job: LearnedJob) -> list[str]:
    """Of the ports that its connections were seen at."""
    keys = [key for edge in job.edges for key in edge.every_flow]
    return sorted({address for key in keys for address in (key.source, key.destination)})


def stated_alike(one: JobTableConfig, two: JobTableConfig) -> bool:
    """Nothing that is stated tells them apart."""
    return one.hosts == two.hosts and _sizes(one) == _sizes(two)


def fits_stated_job(own: JobTableConfig, job: LearnedJob) -> bool:
    """Nothing that is stated of a job contradicts that this is it."""
    return misfit(own, job) is None


def misfit(own: JobTableConfig, job: LearnedJob) -> Finding | None:
    """What is stated of a job and contradicts that this is it; None: nothing."""
    seen, sizes = addresses_of(job), _sizes(own)
    if missing := [host for host in own.hosts if host not in seen]:
        return _hosts_not_used(own, JOB_READ(), seen, missing)
    return None if sizes in ((), tuple(p.sizes for p in job.parameters)) else OTHER_SIZES()


def unlike_hosts(stated: Sequence[JobTableConfig], found: Sequence[LearnedJob]) -> list[Finding]:
    """One for each stated job whose hosts none of those found uses."""
    told = []
    for own in stated:
        every = [set(addresses_of(job)) for job in found]
        if not own.hosts or not every or any(seen.issuperset(own.hosts) for seen in every):
            continue
        best = max(every, key=lambda seen: len(seen.intersection(own.hosts)))
        missing = [host for host in own.hosts if host not in best]
        nearest = ONLY_JOB() if len(found) == 1 else NEAREST_JOB()
        told.append(_hosts_not_used(own, nearest, sorted(best), missing))
    return told


def _hosts_not_used(
    own: JobTableConfig, job: Finding, seen: Sequence[str], missing: Sequence[str]
) -> Finding:
    return HOSTS_NOT_USED(hosts=own.hosts, job=job, addresses=seen, missing=missing)


def _sizes(own: JobTableConfig) -> tuple[tuple[int, ...], ...]:
    return tuple(p.sizes for p in own.model.parameters) if own.model is not None else ()
