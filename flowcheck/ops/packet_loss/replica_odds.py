"""How long a replica stays exact, given how often a step is lost. Pure.

Two rules: one over all gradients at once, by which the replica waits before a step that is lost;
and one that steps each element by itself, by which it goes on with elements that are not exact
(taint) until something heals them.
"""

from __future__ import annotations

import math

import msgspec

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.packet_loss_plan import NEEDED_BY, SHARE
from flowcheck.findings.catalog.refused_settings import FROM_TO
from flowcheck.ops.packet_loss.loss_odds import at_least_once

DAY_S = 86_400
MOST_STEPS = 10_000_000
"""Steps of an interval or a delay, and of a day. A choice that stops slips of the pen."""
CANCELS_BELOW = 1e-3
"""Exponent below which a geometric sum loses more than four of sixteen digits."""


class Healing(msgspec.Struct, frozen=True, kw_only=True):
    """What makes tainted elements exact again. Construction raises ConfigError for an invalid
    value."""

    checkpoint_every: int | None
    """Steps from one checkpoint file of the trainer to the next; None: it writes none, and a hook
    answers every request."""
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
        if self.checkpoint_every is None and (self.hook_delay is None or self.hook_success < 1):
            other = "--heal" if self.hook_delay is None else "--hook-success"
            raise ConfigError("--checkpoint-every", None, NEEDED_BY(other))

    def without_hook(self) -> Healing | None:
        """The files alone; None: there are none."""
        none = self.checkpoint_every is None
        return None if none else msgspec.structs.replace(self, hook_delay=None)

    def tainted_share(self, lost: float) -> float:
        """Expected share of steps whose state is not exact, over a long run; lost: probability
        that a step is lost, below 1.

        A step is exact if no loss of the last e steps is still unhealed. The newest file that was
        taken is e steps old; e goes from heal_delay to heal_delay + checkpoint_every - 1, evenly.
        """
        if self.checkpoint_every is None:
            return -math.expm1((self.hook_delay or 0) * math.log1p(-lost))
        every, past = math.log1p(-lost), math.log1p(-lost * (1 - self.hook_success))
        young, old = self._ages(self.checkpoint_every)
        total = sum_of_losses(young.start, len(young), every)
        if self.hook_delay is not None:
            # 1 - ab = (1 - a) + a (1 - b): a of the steps that the hook may still answer
            pending, beyond = every * self.hook_delay, old.start - self.hook_delay
            total += len(old) * -math.expm1(pending)
            total += math.exp(pending) * sum_of_losses(beyond, len(old), past)
        return total / self.checkpoint_every

    def mean_wait_steps(self) -> float:
        """Mean number of steps whose state has the elements of one lost packet not exact: a loss
        is as likely in each step between two checkpoints."""
        if self.checkpoint_every is None:
            return float(self.hook_delay or 0)
        young, old = self._ages(self.checkpoint_every)
        answered = 0.0 if self.hook_delay is None else self.hook_success
        of_young = len(young) * (young.start + young.stop - 1) / 2
        of_old = len(old) * (old.start + old.stop - 1) / 2
        hooked = len(old) * (self.hook_delay or 0)
        total = of_young + answered * hooked + (1 - answered) * of_old
        return total / self.checkpoint_every

    @property
    def most_wait_steps(self) -> int:
        """The longest such wait."""
        if self.checkpoint_every is None:
            return self.hook_delay or 0
        file = self.heal_delay + self.checkpoint_every - 1
        sure = self.hook_delay is not None and self.hook_success == 1
        return min(self.hook_delay or file, file) if sure else file

    def checkpoint_heals(self, lost: float) -> float:
        """Probability that a file of the trainer finds something to heal: a loss since the file
        before it that no hook healed."""
        if self.checkpoint_every is None:
            return 0.0
        unhooked = lost if self.hook_delay is None else lost * (1 - self.hook_success)
        late = self._steps_before_file(self.checkpoint_every)
        calm = late * math.log1p(-lost)
        calm += (self.checkpoint_every - late) * math.log1p(-unhooked)
        return 0.0 - math.expm1(calm)

    def hook_heals(self, lost: float) -> float:
        """Probability of a step that it is lost and a hook heals it: its answer comes no later than
        the next file."""
        if self.hook_delay is None:
            return 0.0
        every = self.checkpoint_every
        in_time = 1.0 if every is None else 1 - self._steps_before_file(every) / every
        return lost * self.hook_success * in_time

    def hooked_steps(self, steps: int) -> int:
        """Of the next `steps` after a checkpoint: those whose loss a hook answers in time."""
        every = self.checkpoint_every
        if self.hook_delay is None:
            return 0
        if every is None:
            return steps
        # The first steps after a checkpoint wait longest for the next one.
        in_time = every - self._steps_before_file(every)
        return steps // every * in_time + min(steps % every, in_time)

    def _steps_before_file(self, checkpoint_every: int) -> int:
        """The last steps up to a checkpoint whose losses its file heals before the hook would."""
        if self.hook_delay is None:
            return 0
        return min(max(0, self.hook_delay - self.heal_delay), checkpoint_every)

    def _ages(self, checkpoint_every: int) -> tuple[range, range]:
        """Steps since the newest file that was taken, each as likely: up to the hook's delay, and
        beyond."""
        first, stop = self.heal_delay, self.heal_delay + checkpoint_every
        if self.hook_delay is None:
            return range(first, stop), range(stop, stop)
        middle = min(max(first, self.hook_delay + 1), stop)
        if first <= self.hook_delay:
            return range(first, middle), range(middle, stop)
        return range(first, first), range(first, stop)


def sum_of_losses(first: int, count: int, log: float) -> float:
    """Sum of 1 - exp(i x log) over i = first .. first + count - 1; log: 0 or less. To about twelve
    digits, however small: as a geometric sum, or where that would cancel as a power series."""
    last = first + count - 1
    if not count or not log:
        return 0.0
    if -log * last >= CANCELS_BELOW:
        return count - math.exp(first * log) * math.expm1(count * log) / math.expm1(log)
    sums = zip(_power_sums(last), _power_sums(first - 1), strict=True)
    # The fifth term is CANCELS_BELOW^4 / 120 of the first.
    return -math.fsum(
        log**power * (upto - before) / math.factorial(power)
        for power, (upto, before) in enumerate(sums, 1)
    )


def _power_sums(last: int) -> tuple[int, int, int, int]:
    """Sums of i, i^2, i^3 and i^4 over i = 0 .. last (Faulhaber)."""
    n = max(last, 0)
    one = n * (n + 1) // 2
    two = n * (n + 1) * (2 * n + 1) // 6
    return one, two, one * one, two * (3 * n * n + 3 * n - 1) // 5


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
    return sum_of_losses(1, steps, math.log1p(-lost)) / steps


def steps_until(lost: float) -> float:
    """Expected number of steps up to and with the first lost one; infinite where none is lost."""
    return 1 / lost if lost else math.inf


def files_at_once(checkpoint_every: int | None) -> Healing:
    """The trainer's files alone, each taken as its step ends: what a replica waits for that stays
    before a lost step."""
    return Healing(checkpoint_every=checkpoint_every, heal_delay=0)


def kept_share(lost: float, checkpoint_every: int) -> float:
    """Expected share of all steps, over a long run, that a replica has which waits at each lost one
    for the trainer's next checkpoint: those between are in none of its states. lost: probability
    that a step is lost, below 1."""
    return 1 - files_at_once(checkpoint_every).tainted_share(lost)


def healing_of_day(healing: Healing, lost: float, steps: int) -> tuple[float, float]:
    """(expected healings by checkpoints in a day, probability of at least one), of whole intervals
    between checkpoints; of a day without a checkpoint, nothing."""
    if healing.checkpoint_every is None:
        return 0.0, 0.0
    files = steps // healing.checkpoint_every
    each = healing.checkpoint_heals(lost)
    return files * each, at_least_once(each, files)
