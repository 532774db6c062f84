"""What a machine's keeper says of its chains: the answer that `fleet status` and all other commands
work on."""

from __future__ import annotations

import msgspec

from flowcheck.findings.finding import Finding

STEPS_MAX = 64
"""Newest exact steps that a report lists. A choice: machines that are further apart have none in
common that memory still holds."""


class ChainReport(msgspec.Struct, frozen=True, kw_only=True):
    """One chain, as its machine sees it."""

    name: str
    of: str | None
    """Name of the chain that it copies; None: it captures."""
    run: str
    served: str
    """URL of its steps."""
    pid: int | None
    """Its supervisor; None: it does not run."""
    kept: bool
    """Whether an actor of Ray's starts it again if it ends."""
    starts: int
    """How often it was started on this machine."""
    earlier: bool
    """It runs with the job file of an earlier `fleet up`."""
    health: str | None
    """A word of `flowcheck status`; None: it has no run directory that can be read."""
    reason: Finding | None
    """Of that word, or why it does not run."""
    step: int | None
    """The last step that its replica applied."""
    digest: str
    exact: tuple[int, ...]
    """Exact steps in its memory, ascending: what is served while it runs."""
    saved: int | None
    """The newest exact step that it can give, by memory or by a checkpoint of its own."""


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """One machine."""

    fleet: str
    node: str
    generation: int
    wanted: bool
    stated: str
    """`stated_digest` of its state (fleet_state.py)."""
    newer: int | None
    """A higher generation that another machine has told of; None: there is none."""
    places: dict[str, str]
    """{chain of the fleet: its machine}, as its state has them."""
    chains: tuple[ChainReport, ...]


def newest_common_step(reports: dict[str, list[ChainReport]]) -> int | None:
    """The newest step that is exact, and served, in some chain of each shard.

    reports: {shard: its chains that answer}. None: there is no such step.
    """
    each = [
        {step for own in chains if own.pid is not None for step in own.exact}
        for chains in reports.values()
    ]
    common = set.intersection(*each) if each else set[int]()
    return max(common, default=None)
