"""What a run of the lab showed."""

from __future__ import annotations

from dataclasses import dataclass, field

from flowcheck.lab.run.compare import Comparison, Digests
from flowcheck.ops.watch.state import State


@dataclass(slots=True)
class Outcome:
    """What a run showed."""

    steps: int
    killed_at: int | None = None
    """The trainer's last step before it was killed."""
    restored_step: int | None = None
    bases: list[int] = field(default_factory=list)
    """Steps of the checkpoints that were given as bases, where not all of the run was seen."""
    comparison: Comparison | None = None
    untold: tuple[int, ...] = ()
    """Steps in flight at the kill that no trainer lived to tell of: they cannot be compared."""
    final: Digests = field(default_factory=dict)
    """The trainer's state after the last step."""
    control: Digests | None = None
    """Of a run stopped at the same step by the trainer's own save, and resumed."""
    unbroken: Digests | None = None
    """Of a run that was never stopped."""
    seconds: float = 0.0
    chain: State | None = None
