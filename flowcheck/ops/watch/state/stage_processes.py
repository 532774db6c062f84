"""The processes of a chain: pid, restarts, work done and rates."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from flowcheck.config import JobConfig
from flowcheck.ops.watch.state.chain_state import RingState, StageState
from flowcheck.ops.watch.state.ring_reader import CAPTURE_BYTES, CAPTURE_FRAMES
from flowcheck.stages.chain_events.heartbeat import read_beat
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.stage_table import SUPERVISOR, Position, stage_named, stage_names
from flowcheck.step_numbers import Step

FRAMES, STEPS = "frames", "steps"


class StageProcesses:
    """Reads the processes of all jobs of a chain, and keeps what rates and ages need."""

    def __init__(self) -> None:
        self._rates: dict[int, CounterRates] = defaultdict(CounterRates)
        self._gone: dict[tuple[int, str], float] = {}
        """Since when a stage that was there is seen to be gone; monotonic."""

    def read(
        self,
        run: RunDir,
        rings: Sequence[RingState],
        captured: Sequence[Mapping[str, int]],
        step: Step,
    ) -> list[StageState]:
        """The processes of one job.

        rings: the rings that could be read.
        captured: [ring] capture counters; empty for a ring that could not be read.
        step: the replica's step.
        """
        config, pids, beat = run.settings(), run.stage_pids(), read_beat(run.heartbeat_file)
        restarts = beat.restarts if beat is not None else {}
        named = stage_names(config, run.reader)
        work = StageWork(config, run.reader, rings, captured, step)
        done = {name: count for name in named if (count := work.done(name)) is not None}
        wire = {name: size for name in named if (size := work.received_bytes(name)) is not None}
        counters = {name: value for name, (value, _) in done.items()}
        rates = self._rates[run.reader].rates(counters | {f"{n} bytes": b for n, b in wire.items()})
        first = [] if run.reader else [SUPERVISOR.name]
        return [
            StageState(
                name=name,
                job=run.reader + 1,
                pid=pids.get(name),
                started=(run.pids / name).exists(),
                restarts=restarts.get(name, 0),
                gone_s=self._gone_s(run, name, lives=name in pids),
                done=done[name][0] if name in done else None,
                rate=rates.get(name),
                unit=done[name][1] if name in done else "",
                bytes_s=rates.get(f"{name} bytes"),
            )
            for name in [*first, *named]
        ]

    def _gone_s(self, run: RunDir, name: str, *, lives: bool) -> float | None:
        key = (run.reader, name)
        if lives or not (run.pids / name).exists():
            self._gone.pop(key, None)
            return None
        now_s = time.monotonic()
        return round(now_s - self._gone.setdefault(key, now_s), 3)


@dataclass(frozen=True, slots=True)
class StageWork:
    """Work done so far by the stages of one job."""

    config: JobConfig
    reader: int
    rings: Sequence[RingState]
    """The rings that could be read."""
    captured: Sequence[Mapping[str, int]]
    """[ring] capture counters; empty for a ring that could not be read."""
    step: Step
    """The replica's step."""

    def done(self, stage: str) -> tuple[int, str] | None:
        """(number, unit) of the work of a stage so far; None: it has no counter, or the counter
        could not be read."""
        spec, number = stage_named(stage)
        if spec.position is Position.STEP:
            return self.step, STEPS
        mine = set(spec.rings(self.config, number))
        rings = [ring for ring in self.rings if ring.number in mine]
        frames: int | None = None
        if spec.position is Position.HEAD:
            frames = self._received(mine, CAPTURE_FRAMES)
        elif spec.position is Position.PARSED and rings:
            frames = sum(ring.parsed for ring in rings)
        elif spec.position is Position.TAIL and rings and not self.reader:
            # What the extractor of a further job has read is told by a tail of its own.
            frames = sum(ring.tail for ring in rings)
        return None if frames is None else (frames, FRAMES)

    def received_bytes(self, stage: str) -> int | None:
        """Captured bytes so far; None: not a capture stage."""
        spec, number = stage_named(stage)
        if not spec.brings_frames:
            return None
        return self._received(spec.rings(self.config, number), CAPTURE_BYTES)

    def _received(self, rings: Container[int], counter: str) -> int | None:
        """The counter's sum over the stage's queues."""
        own = [counters for ring, counters in enumerate(self.captured) if ring in rings]
        found = [counters[counter] for counters in own if counter in counters]
        return sum(found) if found else None


RATE_SPAN_S = 5.0
"""Seconds over which a rate is averaged. A choice: a longer time is smoother, a shorter one shows
changes sooner."""
LEAST_S = 0.2
"""Least time for a rate, seconds. A choice: over a shorter time one burst of frames would
dominate."""


class CounterRates:
    """Rates of counters: compares each reading with one about RATE_SPAN_S earlier."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, dict[str, int]]] = deque()

    def rates(self, counters: dict[str, int], now_s: float | None = None) -> dict[str, float]:
        """{name: change per second} for counters that have been read for at least LEAST_S and did
        not decrease; they decrease when a chain is restarted. now_s: monotonic seconds; None: now.
        """
        at_s = time.monotonic() if now_s is None else now_s
        self._looks.append((at_s, dict(counters)))
        while len(self._looks) > 2 and at_s - self._looks[1][0] >= RATE_SPAN_S:
            self._looks.popleft()
        began_s, before = self._looks[0]
        span_s = at_s - began_s
        if span_s < LEAST_S:
            return {}
        return {
            name: (value - before[name]) / span_s
            for name, value in counters.items()
            if name in before and value >= before[name]
        }
