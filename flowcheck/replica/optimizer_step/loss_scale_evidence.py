"""Compares the loss scale that the stated GradScaler predicts with the size of the gradients on
the wire. Each growth or backoff multiplies all gradients from one step to the next. Other changes
from step to step are noise; its size is estimated from the steps between. Only a change well above
the noise counts, and several are needed. The scale itself cannot be observed: a constant factor on
all gradients looks the same."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from pathlib import Path
from statistics import median

import msgspec

from flowcheck.findings.catalog.step_arithmetic import SCALE_CHANGES
from flowcheck.findings.finding import Finding

STEPS_PER_SIDE = 8
"""Steps on each side of a change; the medians of their levels are compared. A choice: more are
less noisy, and leave fewer changes that are isolated."""
NOISE_SAMPLES = 64
"""Number of newest level changes without a change of scale that estimate the noise. A choice: more
are steadier, fewer adapt sooner."""
NOISE_SAMPLES_LEAST = 16
"""Least number of such level changes before a change of scale is judged. A choice: more judge
later."""
CHANGE_SIGMAS_LEAST = 8.0
"""Standard deviations of the noise that a change must exceed to count. A choice on the safe side:
a wrong contradiction would discredit a correct job file, a missed one is found at the next change.
"""
EQUAL_SIGMAS_MAX = 4.0
"""Standard deviations within which a level equals a prediction: half of FAR, so that it never
equals both predictions."""
NOISE_LEAST = 0.01
"""Least standard deviation of the noise, in log2. A choice: a smaller estimate is chance."""
CONTRADICTIONS_LEAST = 3
"""Changes against the prediction before it counts as contradicted. A choice: one is not enough;
more report it later."""


class ScaleEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Number of changes of scale since the job is followed, by result."""

    shown: int = 0
    """Predicted, and visible in the gradients."""
    missing: int = 0
    """Predicted, but not visible in the gradients."""
    unclear: int = 0
    """Predicted, but hidden by noise or by other changes nearby."""
    unpredicted: int = 0
    """Growths that are visible in the gradients but not predicted."""

    @property
    def contradicted(self) -> bool:
        """Whether the observations contradict the stated GradScaler too often for chance."""
        against = self.missing + self.unpredicted
        return against >= CONTRADICTIONS_LEAST and against > self.shown

    @property
    def summary(self) -> Finding:
        """The counts as a finding."""
        return SCALE_CHANGES(
            predicted=self.shown + self.missing + self.unclear,
            shown=self.shown,
            missing=self.missing,
            unclear=self.unclear,
            unpredicted=self.unpredicted,
        )


def read_scale_evidence(file: Path) -> ScaleEvidence | None:
    """The counts in a file; None: no file yet. Raises msgspec.DecodeError for a file of another
    kind."""
    with suppress(FileNotFoundError):
        return msgspec.json.decode(file.read_bytes(), type=ScaleEvidence)
    return None


class ScaleObserver:
    """Takes the steps with finite gradients in order and counts changes of scale."""

    def __init__(self, growth_log2: float, tally: ScaleEvidence | None = None) -> None:
        """growth_log2: of the factor a scale grows by; tally: of a process before."""
        self._growth_log2 = growth_log2
        self._levels: deque[tuple[float, float]] = deque(maxlen=2 * STEPS_PER_SIDE)
        """(level without the scale, by how much that had changed before it), log2."""
        self._scale_log2: float | None = None
        self._noises: deque[float] = deque(maxlen=NOISE_SAMPLES)
        self._quiet = 0
        self.tally = tally or ScaleEvidence()

    def add(self, level_log2: float, scale_log2: float) -> bool:
        """Adds a step; returns whether the counts changed. level_log2: log2 of the size of its
        gradients as reduced; scale_log2: log2 of the predicted scale."""
        changed = 0.0 if self._scale_log2 is None else scale_log2 - self._scale_log2
        self._scale_log2 = scale_log2
        self._levels.append((level_log2 - scale_log2, changed))
        self._quiet = max(0, self._quiet - 1)
        if len(self._levels) < 2 * STEPS_PER_SIDE:
            return False
        before, was = self.tally, [level for level, _ in self._levels]
        moved = median(was[STEPS_PER_SIDE:]) - median(was[:STEPS_PER_SIDE])
        changes = [change for _, change in self._levels]
        if changes[STEPS_PER_SIDE]:
            alone = not any(changes[1:STEPS_PER_SIDE]) and not any(changes[STEPS_PER_SIDE + 1 :])
            self._judge(moved, changes[STEPS_PER_SIDE], alone=alone)
        elif not any(changes[1:]):
            self._between(moved)
        return self.tally != before

    def _judge(self, moved: float, change: float, *, alone: bool) -> None:
        """moved: what is left of the change where the scale that is predicted is divided out."""
        noise = self._noise()
        kind = "unclear"
        if alone and noise is not None and abs(change) > CHANGE_SIGMAS_LEAST * noise:
            if abs(moved) < EQUAL_SIGMAS_MAX * noise:
                kind = "shown"
            elif abs(moved + change) < EQUAL_SIGMAS_MAX * noise:
                kind = "missing"
        self._count(kind)

    def _between(self, moved: float) -> None:
        """No change is predicted near."""
        noise, growth = self._noise(), self._growth_log2
        if (
            noise is not None
            and growth > CHANGE_SIGMAS_LEAST * noise
            and abs(moved - growth) < EQUAL_SIGMAS_MAX * noise
        ):
            if not self._quiet:
                self._count("unpredicted")
            self._quiet = 2 * STEPS_PER_SIDE  # the steps beside it see it as well
        self._noises.append(moved)

    def _noise(self) -> float | None:
        """Standard deviation, as the median of what is without a sign has it; None: too few."""
        if len(self._noises) < NOISE_SAMPLES_LEAST:
            return None
        return max(NOISE_LEAST, 1.4826 * median(map(abs, self._noises)))

    def _count(self, kind: str) -> None:
        self.tally = msgspec.structs.replace(self.tally, **{kind: getattr(self.tally, kind) + 1})
