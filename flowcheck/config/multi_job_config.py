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

JOBS_MAX = 64
"""Readers that a ring has room for (fc_ring.h, FC_READERS_MAX)."""
CLIP = (
    "with several jobs the norm may be over all of them: state clip_alone = true if each job is "
    "clipped by its own norm, or clip_together = true if they are rings of one job, clipped by the "
    "norm over all, as Megatron-LM does"
)
CLIP_RINGS = "needs several rings of one job (jobs = N, same settings), but there {}"
ORDERS_MAX = 12
"""Rings. The least and most that any order of a sum gives is found in each step
(replica/optimizer/gradient_clipping.py, `bounds`), over about 3^n / 2 pairs of subsets: 270,000 for
twelve, three times as many with each ring more."""
CLIP_ORDER = (
    "must name each of the {} jobs once, by number, in the order in which the trainers' ranks sum "
    "their squares: the last bit of the norm depends on it"
)


class JobTableConfig(ConfigSection, frozen=True, kw_only=True):
    """One of several jobs; what it does not state, the file states for all."""

    name: str | None = None
    """Of its checkpoints' folder; by default its number."""
    hosts: tuple[str, ...] = ()
    """Addresses it uses, as `flowcheck analyze` prints them, all of which no other job uses."""
    optimizer: OptimizerConfig | None = None
    model: ModelConfig | None = None
    last_step: int | None = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "hosts", addresses("job.hosts", self.hosts))


def addresses(key: str, hosts: tuple[str, ...]) -> tuple[str, ...]:
    """In the form that addresses of frames have. Raises ConfigError for an invalid address."""
    for host in hosts:
        try:
            ip_address(host)
        except ValueError as error:
            right = (
                "is not an IP address: state one that flowcheck analyze prints, such as 10.0.0.1"
            )
            raise ConfigError(key, host, right) from error
    return tuple(str(ip_address(host)) for host in hosts)


def check_last(*stated: int | None) -> None:
    """Raises ConfigError for a step below 1."""
    for step in stated:
        if step is not None and step < 1:
            raise ConfigError("last_step", step, "must be 1 or more: the trainer's last step")


def check_job_tables(jobs: int, own: tuple[JobTableConfig, ...]) -> None:
    """Raises ConfigError for what no port carries."""
    if not 1 <= jobs <= JOBS_MAX:
        raise ConfigError("jobs", jobs, f"must be from 1 to {JOBS_MAX}")
    if own and jobs not in (1, len(own)):
        raise ConfigError("jobs", jobs, f"there are {len(own)} [[job]] tables: leave jobs out")
    names = [each.name for each in own if each.name is not None]
    for name in names:
        if names.count(name) > 1 or not name.replace("-", "").replace("_", "").isalnum():
            right = "must be letters, digits, - and _, and no other job may have it"
            raise ConfigError("job.name", name, right)


def check_clip_scope(
    optimizer: OptimizerConfig | None, jobs: int, own: tuple[JobTableConfig, ...]
) -> None:
    """Of one of so many jobs. Raises ConfigError where its norm may be over more than it sends."""
    if optimizer is None or optimizer.clip_norm is None:
        return
    if jobs == 1 and not optimizer.clip_together:
        return
    if optimizer.clip_together and (jobs < 2 or any(o.optimizer or o.model for o in own)):
        told = "is only one" if jobs < 2 else "are some with settings of their own"
        raise ConfigError("optimizer.clip_together", True, CLIP_RINGS.format(told))
    every = list(range(1, jobs + 1))
    wrong = optimizer.clip_order and sorted(optimizer.clip_order) != every
    if optimizer.clip_together and (wrong or (jobs > ORDERS_MAX and not optimizer.clip_order)):
        right = CLIP_ORDER.format(jobs)
        raise ConfigError("optimizer.clip_order", list(optimizer.clip_order), right)
    if not (optimizer.clip_alone or optimizer.clip_together):
        raise ConfigError("optimizer.clip_norm", optimizer.clip_norm, CLIP)


def check_jobs_distinguishable(own: tuple[JobTableConfig, ...]) -> None:
    """Raises ConfigError where two tables differ and nothing on the wire shows which is which."""
    for one, two in combinations(own, 2):
        hosts = set(one.hosts), set(two.hosts)
        if (one.optimizer, one.model) == (two.optimizer, two.model) and not any(hosts):
            continue
        if all(hosts) and not (hosts[0] <= hosts[1] or hosts[1] <= hosts[0]):
            continue
        sizes = _sizes(one), _sizes(two)
        if all(sizes) and sizes[0] != sizes[1]:
            continue
        raise ConfigError(
            "job",
            two.name or str(own.index(two) + 1),
            "nothing on the wire shows which of the jobs this is: state hosts for both, with "
            "addresses of its own, or a [job.model] with other sizes",
        )


def _sizes(own: JobTableConfig) -> list[tuple[int, ...]]:
    return [p.sizes for p in own.model.parameters] if own.model is not None else []
