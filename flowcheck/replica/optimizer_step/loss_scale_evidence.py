"""Whether the loss scale that a stated GradScaler predicts shows in the gradients' size.

A growth or a backoff multiplies all gradients from one step to the next; what the model does to
them from step to step is noise, whose size the steps between tell. Only a change that stands far
out of it says anything, and no single one decides. The scale itself is not told: all gradients
multiplied by one number look as well.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from pathlib import Path
from statistics import median

import msgspec

from flowcheck.findings.catalog.step_arithmetic import SCALE_CHANGES
from flowcheck.findings.finding import Finding

SIDE = 8
"""Steps on either side of a change whose levels are compared, by their medians. A choice: more is
less noisy, and leaves fewer changes that stand alone."""
NOISES = 64
"""Newest changes of level without a change of scale that tell the noise. A choice: more is
steadier, fewer follow the training sooner."""
NOISES_LEAST = 16
"""Of them that must be there before a change is judged. A choice: more judges later."""
FAR = 8.0
"""Standard deviations of that noise that a change must exceed, to be told from none. A choice on
the safe side: a wrong contradiction would discredit a right job file, a missed one waits for the
next change."""
NEAR = 4.0
"""Standard deviations within which a level counts as predicted: half of FAR, so that a change is
never near both of two predictions."""
NOISE_LEAST = 0.01
"""Least standard deviation of the noise that is believed, in the levels' own unit (logarithm to
base 2). A choice: quieter samples are chance."""
ENOUGH = 3
"""Changes that contradict the rule, before it is said. A choice: no single one decides; more says
it later."""


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen since the job is followed."""

    shown: int = 0
    """Changes of scale that the rule predicts and the gradients have."""
    missing: int = 0
    """That they have not."""
    unclear: int = 0
    """That noise or other changes beside them hide."""
    unpredicted: int = 0
    """Growths that the gradients have and the rule does not predict."""

    @property
    def contradicted(self) -> bool:
        """Too often to be chance."""
        against = self.missing + self.unpredicted
        return against >= ENOUGH and against > self.shown

    @property
    def told(self) -> Finding:
        """The counts."""
        return SCALE_CHANGES(
            predicted=self.shown + self.missing + self.unclear,
            shown=self.shown,
            missing=self.missing,
            unclear=self.unclear,
            unpredicted=self.unpredicted,
        )


def read_scale_evidence(file: Path) -> Tally | None:
    """What was counted there; None: nothing yet."""
    with suppress(FileNotFoundError):
        return msgspec.json.decode(file.read_bytes(), type=Tally)
    return None


class ScaleObserver:
    """Steps whose gradients were finite, in order."""

    def __init__(self, growth_log2: float, tally: Tally | None = None) -> None:
        """growth_log2: of the factor a scale grows by; tally: of a process before."""
        self._growth_log2 = growth_log2
        self._levels: deque[tuple[float, float]] = deque(maxlen=2 * SIDE)
        """(level without the scale, by how much that had changed before it), log2."""
        self._scale_log2: float | None = None
        self._noises: deque[float] = deque(maxlen=NOISES)
        self._quiet = 0
        self.tally = tally or Tally()

    def add(self, level_log2: float, scale_log2: float) -> bool:
        """A step: how large its gradients are, as they were reduced, and their scale as predicted.
        Whether the tally is another now."""
        changed = 0.0 if self._scale_log2 is None else scale_log2 - self._scale_log2
        self._scale_log2 = scale_log2
        self._levels.append((level_log2 - scale_log2, changed))
        self._quiet = max(0, self._quiet - 1)
        if len(self._levels) < 2 * SIDE:
            return False
        before, was = self.tally, [level for level, _ in self._levels]
        moved = median(was[SIDE:]) - median(was[:SIDE])
        changes = [change for _, change in self._levels]
        if changes[SIDE]:
            alone = not any(changes[1:SIDE]) and not any(changes[SIDE + 1 :])
            self._judge(moved, changes[SIDE], alone=alone)
        elif not any(changes[1:]):
            self._between(moved)
        return self.tally != before

    def _judge(self, moved: float, change: float, *, alone: bool) -> None:
        """moved: what is left of the change where the scale that is predicted is divided out."""
        noise = self._noise()
        kind = "unclear"
        if alone and noise is not None and abs(change) > FAR * noise:
            if abs(moved) < NEAR * noise:
                kind = "shown"
            elif abs(moved + change) < NEAR * noise:
                kind = "missing"
        self._count(kind)

    def _between(self, moved: float) -> None:
        """No change is predicted near."""
        noise, growth = self._noise(), self._growth_log2
        if noise is not None and growth > FAR * noise and abs(moved - growth) < NEAR * noise:
            if not self._quiet:
                self._count("unpredicted")
            self._quiet = 2 * SIDE  # the steps beside it see it as well
        self._noises.append(moved)

    def _noise(self) -> float | None:
        """Standard deviation, as the median of what is without a sign has it; None: too few."""
        if len(self._noises) < NOISES_LEAST:
            return None
        return max(NOISE_LEAST, 1.4826 * median(map(abs, self._noises)))

    def _count(self, kind: str) -> None:
        self.tally = msgspec.structs.replace(self.tally, **{kind: getattr(self.tally, kind) + 1})
