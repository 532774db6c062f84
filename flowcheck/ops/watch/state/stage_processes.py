"""The processes of a chain: pid, restarts, work done and rates."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence

from flowcheck.config import JobConfig
from flowcheck.ops.watch.state.chain_state import RingState, StageState
from flowcheck.ops.watch.state.ring_reader import CAPTURE_BYTES, CAPTURE_FRAMES
from flowcheck.stages.chain_events.heartbeat import read_beat
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.supervisor.stage_process import stage_arguments

FRAMES, STEPS = "frames", "steps"
SHARED = ("supervisor", "capture", "parse")
"""Of all jobs behind the same ports, by the first word of their names."""


def is_shared(stage: str) -> bool:
    return stage.split("-", maxsplit=1)[0] in SHARED


class StageProcesses:
    """Of all jobs of a chain."""

    def __init__(self) -> None:
        self._rates: dict[int, CounterRates] = defaultdict(CounterRates)
        self._gone: dict[tuple[int, str], float] = {}
        """Since when a stage that was there is seen to be gone; monotonic."""

    def read(
        self,
        run: RunDir,
        rings: Sequence[RingState],
        captured: Sequence[Mapping[str, int]],
        step: int,
    ) -> list[StageState]:
        """Of one job. captured: [ring] capture counters, empty where a ring could not be read;
        step: of its replica."""
        config, pids, beat = run.settings(), run.stage_pids(), read_beat(run.beat)
        restarts = beat.restarts if beat is not None else {}
        done = _done(config, rings, captured, step, first=not run.reader)
        wire = {} if run.reader else _of_sources(config, captured, CAPTURE_BYTES)
        counters = {name: value for name, (value, _) in done.items()}
        rates = self._rates[run.reader].look(counters | {f"{n} bytes": b for n, b in wire.items()})
        first = [] if run.reader else ["supervisor"]
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
            for name in [*first, *stage_arguments(config, run.reader)]
        ]

    def _gone_s(self, run: RunDir, name: str, *, lives: bool) -> float | None:
        key = (run.reader, name)
        if lives or not (run.pids / name).exists():
            self._gone.pop(key, None)
            return None
        now_s = time.monotonic()
        return round(now_s - self._gone.setdefault(key, now_s), 3)


def _done(
    config: JobConfig,
    rings: Sequence[RingState],
    captured: Sequence[Mapping[str, int]],
    step: int,
    *,
    first: bool,
) -> dict[str, tuple[int, str]]:
    """{stage: (what it has done, of what)}"""
    done = {"update": (step, STEPS)}
    if not first:  # what its extractor has read is told by a ring's tail of its own
        return done
    done["extract"] = (sum(ring.tail for ring in rings), FRAMES)
    done |= {f"parse-{ring.number}": (ring.parsed, FRAMES) for ring in rings}
    frames = _of_sources(config, captured, CAPTURE_FRAMES)
    return done | {name: (value, FRAMES) for name, value in frames.items()}


def _of_sources(
    config: JobConfig, captured: Sequence[Mapping[str, int]], counter: str
) -> dict[str, int]:
    """{capture stage: the sum over its queues}"""
    found: dict[str, int] = {}
    for (source, _), counters in zip(config.rings, captured, strict=True):
        if counter in counters:
            name = f"capture-{source}"
            found[name] = found.get(name, 0) + counters[counter]
    return found


RATE_SPAN_S = 5.0
LEAST_S = 0.2


class CounterRates:
    """Each look's counters are held against those of a look about SPAN_S before."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, dict[str, int]]] = deque()

    def look(self, counters: dict[str, int], now_s: float | None = None) -> dict[str, float]:
        """{name: a second}; of those that have been there for LEAST_S and did not fall, as they do
        when a chain begins anew."""
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
