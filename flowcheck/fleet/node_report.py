"""What a machine's keeper says of its chains: the answer that `fleet status` and all other commands
work on."""

from __future__ import annotations

import msgspec

from flowcheck.findings.finding import Finding
from flowcheck.fleet.common_step import Holder, Life
from flowcheck.fleet.fleet_state import StateRank


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
    digests: tuple[str, ...]
    """[step of `exact`] digest of its state, in hex; of several jobs, that of the last one."""
    life: Life | None
    """Of the training job, that these steps are of; None: nobody knows."""
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
    release: str = ""
    """Of FlowCheck, that runs there."""

    @property
    def rank(self) -> StateRank:
        """Of its state."""
        return StateRank(self.generation, not self.wanted, self.stated)


def holder_of(report: ChainReport, node: str) -> Holder:
    """What a chain gives: nothing, if it does not run. node: its machine."""
    runs = report.pid is not None and len(report.digests) == len(report.exact)
    steps = dict(zip(report.exact, report.digests, strict=True)) if runs else {}
    return Holder(name=report.name, of=report.of, node=node, life=report.life, steps=steps)
