"""Figures of a job and of its model: for bandwidth and memory, nothing is decided by them."""

from __future__ import annotations

from flowcheck.config.strict import Section, at_least
from flowcheck.errors import ConfigError

MOST = 1 << 50
"""Bytes or numbers: more is a slip of the pen."""


class Traffic(Section, frozen=True):
    """Figures of the job, for bandwidth; none of them decides what fits."""

    gradient_bytes: int
    """That one rank gives to its data-parallel all-reduces in a step."""
    step_s: float
    bucket_bytes: int = 25 << 20
    """torch DistributedDataParallel's bucket_cap_mb."""
    element_bytes: int = 4
    other_gbps: float = 0.0
    """Tensor, pipeline and expert parallel, storage: mean on each direction of a port."""

    def __post_init__(self) -> None:
        at_least("traffic.gradient_bytes", self.gradient_bytes, 1)
        at_least("traffic.bucket_bytes", self.bucket_bytes, self.element_bytes)
        _at_most("traffic.gradient_bytes", self.gradient_bytes)
        if self.element_bytes not in (1, 2, 4, 8):
            raise ConfigError("traffic.element_bytes", self.element_bytes, "is 1, 2, 4 or 8")
        check_speed("traffic.step_s", self.step_s, 1e6)
        if self.other_gbps:
            check_speed("traffic.other_gbps", self.other_gbps)


class Replica(Section, frozen=True):
    """What is kept of each data-parallel group, for memory."""

    parameters: int | None = None
    """Numbers that one group trains."""
    job: str | None = None
    """In place of these: the job file of each machine, with [model] factory."""
    optimizer: str = "adamw"
    element_bytes: int = 4

    def __post_init__(self) -> None:
        if (self.parameters is None) == (self.job is None):
            why = "state it, or job, and not both"
            raise ConfigError("replica.parameters", self.parameters, why)
        at_least("replica.parameters", 1 if self.parameters is None else self.parameters, 1)
        _at_most("replica.parameters", self.parameters or 1)
        if self.element_bytes not in (2, 4, 8):
            raise ConfigError("replica.element_bytes", self.element_bytes, "is 2, 4 or 8")


def _at_most(key: str, value: int) -> None:
    if value > MOST:
        raise ConfigError(key, value, f"must be {MOST:,} at most")


def check_speed(key: str, value: float, most: float = 1e5) -> None:
    """Raises ConfigError for what is no speed in Gb/s, or no time in seconds."""
    if not 0 < value <= most:  # NaN is neither
        raise ConfigError(key, value, f"must be above 0, and at most {most:g}")
