"""What is wrong with the bytes of an iteration although all of them came."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flowcheck.stages.learning.averaged import averaged
from flowcheck.stages.learning.steady import Steady
from flowcheck.stages.updating.used import Map
from flowcheck.wire.job import Follows, Job


class Scrutiny:
    """Judges each iteration of one job by what it holds."""

    def __init__(self, job: Job, each: int, replica: Path) -> None:
        """each: all-reduced backward passes per step; replica: the state file they step."""
        self._job, self._replica = job, replica
        self._map, self._steady = Map(job, each), Steady(job)

    def problem(self, whole: NDArray[np.uint8]) -> str:
        """Why the bytes of an iteration must not be taken; empty: they may."""
        if self._job.kind is Follows.PARAMETERS:
            return self._steady.problem(whole)
        gradient, _ = self._map.split(whole)
        return self._map.problem(whole) or averaged(self._replica, gradient, self._job)
