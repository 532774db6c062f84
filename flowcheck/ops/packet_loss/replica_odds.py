"""How long a replica stays exact, given how often a step is lost. Pure.

Two replicas: today's, which stays before the first step that is lost; and a planned one that goes
on with elements that are not exact (taint) until something heals them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.packet_loss_plan import SHARE
from flowcheck.findings.catalog.refused_settings import FROM_TO
from flowcheck.ops.packet_loss.loss_odds import at_least_once

DAY_S = 86_400
MOST_STEPS = 10_000_000
"""Steps of an interval or a delay, and of a day. A choice: their sums are made term by term."""
_AT_ONCE = 1 << 20
"""Terms in memory at a time."""


class Healing(msgspec.Struct, frozen=True, kw_only=True):
    """What makes tainted elements exact again. Construction raises ConfigError for an invalid
    value."""

    checkpoint_every: int
    """Steps from one checkpoint file of the trainer to the next."""
    heal_delay: int = 1
    """Steps from the end of a file's step until the replica has taken it."""
    hook_delay: int | None = None
    """Steps from a lost one until a hook in the trainer has sent the tainted ranges; None: there
    is no hook."""
    hook_success: float = 1.0
    """Probability that the hook answers; where it does not, the next checkpoint heals."""

    def __post_init__(self) -> None:
        for option, value, least in (
            ("--checkpoint-every", self.checkpoint_every, 1),
            ("--heal-delay", self.heal_delay, 0),
            ("--hook-delay", self.hook_delay, 1),
        ):
            if value is not None and not least <= value <= MOST_STEPS:
                raise ConfigError(option, value, FROM_TO(least=least, most=MOST_STEPS))
        if not 0 <= self.hook_success <= 1:
            raise ConfigError("--hook-success", self.hook_success, SHARE())

    def tainted_share(self, lost: float) -> float:
        """Expected share of steps whose state is not exact, over a long run; lost: probability
        that a step is lost, below 1.

        A step is exact if no loss of the last e steps is still unhealed. The newest file that was
        taken is e steps old; e goes from heal_delay to heal_delay + checkpoint_every - 1, evenly.
        """
        every, answered = math.log1p(-lost), self.hook_success
        past = math.log1p(-lost * (1 - answered))
        total = 0.0
        for ages in self._ages():
            young = ages if self.hook_delay is None else np.minimum(ages, self.hook_delay)
            total += float(np.sum(-np.expm1(young * every + (ages - young) * past)))
        return total / self.checkpoint_every

    def mean_wait_steps(self) -> float:
        """Mean number of steps whose state has the elements of one lost packet not exact: a loss
        is as likely in each step between two checkpoints."""
        answered = 0.0 if self.hook_delay is None else self.hook_success
        total = 0.0
        for ages in self._ages():
            young = ages if self.hook_delay is None else np.minimum(ages, self.hook_delay)
            total += float(np.sum(answered * young + (1 - answered) * ages))
        return total / self.checkpoint_every

    @property
    def most_wait_steps(self) -> int:
        """The longest such wait."""
        file = self.heal_delay + self.checkpoint_every - 1
        sure = self.hook_delay is not None and self.hook_success == 1
        return min(self.hook_delay or file, file) if sure else file

    def checkpoint_heals(self, lost: float) -> float:
        """Probability that a file of the trainer finds something to heal: a loss since the file
        before it that no hook healed."""
        unhooked = lost if self.hook_delay is None else lost * (1 - self.hook_success)
        # What the hook would heal later than the file comes, the file heals.
        late = 0 if self.hook_delay is None else max(0, self.hook_delay - self.heal_delay)
        late = min(late, self.checkpoint_every)
        calm = late * math.log1p(-lost)
        calm += (self.checkpoint_every - late) * math.log1p(-unhooked)
        return -math.expm1(calm)

    def _ages(self) -> Iterator[NDArray[np.float64]]:
        first, stop = self.heal_delay, self.heal_delay + self.checkpoint_every
        for start in range(first, stop, _AT_ONCE):
            yield np.arange(start, min(stop, start + _AT_ONCE), dtype=np.float64)


def steps_of_day(step_s: float) -> int:
    """Whole steps in 86,400 s; raises ConfigError where there is none, or too many."""
    least, most = DAY_S / MOST_STEPS, float(DAY_S)
    if not least <= step_s <= most:
        raise ConfigError("--step-seconds", step_s, FROM_TO(least=f"{least:g}", most=f"{most:g}"))
    return int(DAY_S / step_s)


def stopped_share(lost: float, steps: int) -> float:
    """Expected share of the next `steps` that a replica which stays before the first lost one does
    not have: the mean of 1 - (1 - lost)^i over i = 1 .. steps."""
    if lost >= 1:
        return 1.0
    total, log = 0.0, math.log1p(-lost)
    for start in range(1, steps + 1, _AT_ONCE):
        several = np.arange(start, min(steps + 1, start + _AT_ONCE), dtype=np.float64)
        total += float(np.sum(-np.expm1(several * log)))
    return total / steps


def steps_until(lost: float) -> float:
    """Expected number of steps up to and with the first lost one; infinite where none is lost."""
    return 1 / lost if lost else math.inf


def base_wait_steps(checkpoint_every: int) -> float:
    """Mean number of steps from a lost one to the second checkpoint of the trainer behind it, with
    which `flowcheck base FILE --then LATER` makes today's replica go on."""
    return (3 * checkpoint_every - 1) / 2


def healing_of_day(healing: Healing, lost: float, steps: int) -> tuple[float, float]:
    """(expected healings by checkpoints in a day, probability of at least one), of whole intervals
    between checkpoints; of a day without a checkpoint, nothing."""
    files = steps // healing.checkpoint_every
    each = healing.checkpoint_heals(lost)
    return files * each, at_least_once(each, files)
