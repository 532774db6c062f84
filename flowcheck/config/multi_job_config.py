"""Settings of several data-parallel jobs on the same mirror ports: the [[job]] tables and their
validation."""

from __future__ import annotations

from ipaddress import ip_address
from itertools import combinations

import msgspec

from flowcheck.config.config_decoding import ConfigSection
from flowcheck.config.model_config import ModelConfig
from flowcheck.config.optimizer_config import OptimizerConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_optimizers import (
    CLIP_OF_ONE_RING,
    CLIP_OF_OTHER_SETTINGS,
    CLIP_ORDER,
    CLIP_SCOPE,
)
from flowcheck.findings.catalog.refused_settings import (
    FROM_TO,
    HOST_ADDRESS,
    JOB_NAME,
    JOBS_ALIKE,
    JOBS_AND_TABLES,
    LAST_STEP,
)

JOBS_MAX = 64
"""Most jobs of a file: each is a reader of the ring, and a ring has room for so many readers
(fc_ring.h, FC_READERS_MAX)."""
ORDERS_MAX = 12
"""Most rings for which `clip_order` may be left out. FlowCheck then computes in each step the least
and the greatest sum that any order gives (replica/optimizer/gradient_clipping.py,
`float32_sum_bounds`), over about 3^n / 2 pairs of subsets: 270,000 for twelve rings, three times as
many for each further ring."""


class JobTableConfig(ConfigSection, frozen=True, kw_only=True):
    """Settings of one of several jobs. Keys that are left out have the value of the whole file."""

    name: str | None = None
    """Name of the job's checkpoint folder. None: the job's number."""
    hosts: tuple[str, ...] = ()
    """IP addresses that this job uses, as `flowcheck analyze` prints them. No other job may use
    all of them."""
    optimizer: OptimizerConfig | None = None
    model: ModelConfig | None = None
    last_step: int | None = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "hosts", addresses("job.hosts", self.hosts))


def addresses(key: str, hosts: tuple[str, ...]) -> tuple[str, ...]:
    """IP addresses in their standard spelling. Raises ConfigError that names `key` if one is
    invalid."""
    for host in hosts:
        try:
            ip_address(host)
        except ValueError as error:
            raise ConfigError(key, host, HOST_ADDRESS()) from error
    return tuple(str(ip_address(host)) for host in hosts)


def check_last(*stated: int | None) -> None:
    """Raises ConfigError if a stated last step is below 1."""
    for step in stated:
        if step is not None and step < 1:
            raise ConfigError("last_step", step, LAST_STEP())


def check_job_tables(jobs: int, own: tuple[JobTableConfig, ...]) -> None:
    """Raises ConfigError for a wrong number of jobs or a wrong or repeated job name."""
    if not 1 <= jobs <= JOBS_MAX:
        raise ConfigError("jobs", jobs, FROM_TO(least=1, most=JOBS_MAX))
    if own and jobs not in (1, len(own)):
        raise ConfigError("jobs", jobs, JOBS_AND_TABLES(len(own)))
    names = [each.name for each in own if each.name is not None]
    for name in names:
        if names.count(name) > 1 or not name.replace("-", "").replace("_", "").isalnum():
            raise ConfigError("job.name", name, JOB_NAME())


def check_clip_scope(
    optimizer: OptimizerConfig | None, jobs: int, own: tuple[JobTableConfig, ...]
) -> None:
    """Checks the scope of `clip_norm` of an optimizer, of which there are `jobs` jobs.

    Raises ConfigError where the trainer may compute the norm over more gradients than one job
    sends, and neither `clip_alone` nor `clip_together` says which.
    """
    if optimizer is None or optimizer.clip_norm is None:
        return
    if jobs == 1 and not optimizer.clip_together:
        return
    if optimizer.clip_together and (jobs < 2 or any(o.optimizer or o.model for o in own)):
        right = CLIP_OF_ONE_RING() if jobs < 2 else CLIP_OF_OTHER_SETTINGS()
        raise ConfigError("optimizer.clip_together", True, right)
    every = list(range(1, jobs + 1))
    wrong = optimizer.clip_order and sorted(optimizer.clip_order) != every
    if optimizer.clip_together and (wrong or (jobs > ORDERS_MAX and not optimizer.clip_order)):
        right = CLIP_ORDER(jobs)
        raise ConfigError("optimizer.clip_order", list(optimizer.clip_order), right)
    if not (optimizer.clip_alone or optimizer.clip_together):
        raise ConfigError("optimizer.clip_norm", optimizer.clip_norm, CLIP_SCOPE())


def check_jobs_distinguishable(own: tuple[JobTableConfig, ...]) -> None:
    """Raises ConfigError where two tables differ, and neither addresses nor parameter sizes show
    which job is which."""
    for one, two in combinations(own, 2):
        hosts = set(one.hosts), set(two.hosts)
        if (one.optimizer, one.model) == (two.optimizer, two.model) and not any(hosts):
            continue
        if all(hosts) and not (hosts[0] <= hosts[1] or hosts[1] <= hosts[0]):
            continue
        sizes = _sizes(one), _sizes(two)
        if all(sizes) and sizes[0] != sizes[1]:
            continue
        raise ConfigError("job", two.name or str(own.index(two) + 1), JOBS_ALIKE())


def _sizes(own: JobTableConfig) -> list[tuple[int, ...]]:
    return [p.sizes for p in own.model.parameters] if own.model is not None else []
