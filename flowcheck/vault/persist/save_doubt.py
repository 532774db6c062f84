"""Which save of a run is exact, and why the newest one is not, in a few words."""

from __future__ import annotations

from typing import NamedTuple

from flowcheck.findings.catalog.chain_processes import (
    NEWEST_NOT_EXACT,
    SAVE_AUDIT_FAILED,
    SAVE_COPIES_DIFFERED,
    SAVE_TAINTED,
)
from flowcheck.findings.catalog.file_audits import DOUBTED
from flowcheck.findings.catalog.lost_steps import CALLED_EXACT_BEFORE
from flowcheck.findings.finding import Finding
from flowcheck.vault.persist.checkpoint_ledger import Ledger, LedgerEntry, doubts_from_elsewhere


class NotedDoubts(NamedTuple):
    """What a run's saves are, once what came to light is noted at the target."""

    fresh: tuple[str, ...] = ()
    """Names of those that are in doubt since."""
    newest: LedgerEntry | None = None
    """None: there is no save."""
    exact: LedgerEntry | None = None
    """The newest one that is exact; None: there is none."""

    @property
    def doubt(self) -> Finding | None:
        """Why the newest save is not called exact; None: it is, or there is none."""
        if self.newest is None or self.newest.is_exact:
            return None
        return NEWEST_NOT_EXACT(step=self.newest.step, why=_reason(self.newest))


def noted_doubts(ledger: Ledger, run: str, fresh: tuple[str, ...]) -> NotedDoubts:
    """Of a ledger as it is noted. fresh: as of `NotedDoubts`."""
    own = ledger.of(run)
    exact = next((one for one in reversed(own) if one.is_exact), None)
    return NotedDoubts(fresh, own[-1] if own else None, exact)


def _reason(entry: LedgerEntry) -> Finding:
    """Of a ledger's doubts, which are not trusted, the first."""
    for doubt in doubts_from_elsewhere(entry.doubts):
        step = doubt.arguments.get("step", "?")
        if doubt.is_any_of(DOUBTED):
            return SAVE_AUDIT_FAILED(step=step)
        return SAVE_COPIES_DIFFERED(step=step) if doubt.is_any_of(CALLED_EXACT_BEFORE) else doubt
    return SAVE_TAINTED()
