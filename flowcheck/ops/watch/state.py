"""All that is told of a running chain, as one value: the contract of `watch`, `top` and the page.

`reading.py` makes it; metrics, health, the terminal view and the page are made of it and of nothing
else. Times end in `_ns` and are since 1970; None means: it did not happen, or is not known.
"""

from __future__ import annotations

import msgspec

from flowcheck.ops.watch.parts.end import End
from flowcheck.ops.watch.parts.health import Health
from flowcheck.ops.watch.parts.job import Job
from flowcheck.ops.watch.parts.part import Part
from flowcheck.ops.watch.parts.ring import Ring
from flowcheck.ops.watch.parts.stage import Stage
from flowcheck.stages.chain.events import Event

VERSION = 1
EVENTS = 60
"""Events a state holds, the newest ones, those of every step (arrived, applied) left out."""


class State(Part, frozen=True, kw_only=True):
    """A chain at one instant."""

    version: int = VERSION
    run: str
    time_ns: int
    """When it was read."""
    health: Health
    """Of the chain: that of the job that is worst."""
    started_ns: int | None
    beat_age_s: float | None
    """Since the supervisor's heart last beat; None: it never did."""
    ending: bool
    """It was told to end."""
    in_order: bool
    """It ends, or has ended, as somebody asked for that or its sources ended: nothing failed."""
    ended: End | None
    """Why it is no more; None: it runs, or nobody has said so yet."""
    watched: str | None
    """Where its own watcher listens; None: it was not asked for."""
    stages: tuple[Stage, ...]
    rings: tuple[Ring, ...]
    """Of a chain that has ended as they were then."""
    jobs: tuple[Job, ...]
    event_counts: dict[str, int]
    """By kind, since the chain began, of all jobs."""
    packets_came_late: int
    """Were missing at a look, and there at a later one."""
    events: tuple[Event, ...]
    """The newest EVENTS, ascending."""
    problems: tuple[str, ...]
    """Readers that failed just now, a sentence each: what they tell of is left out; and records
    that have no room."""
    unwritten_lines: int = 0
    """Of records, that found no room since the chain began, of all jobs."""


def encode_state(state: State) -> bytes:
    return msgspec.json.encode(state)


def decode_state(text: bytes) -> State:
    """Raises msgspec.ValidationError for anything else."""
    return msgspec.json.decode(text, type=State)
