"""What came to light about a checkpoint behind its save: its own manifest cannot say it."""

from __future__ import annotations

from collections.abc import Callable

from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint_files.manifest import Manifest
from flowcheck.stages.job_state.audit_history import saved_doubts_of
from flowcheck.stages.job_state.differing_steps import saved_while_exact
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step


def doubts_behind_save(
    run: RunDir, step: Step, manifest: Callable[[], Manifest]
) -> tuple[Finding, ...]:
    """Of the run's audits, and of copies that differed, for a checkpoint that the run saved.

    manifest: reads its manifest; called only where copies of such a step differed: else the cost is
    that of the run's own lines. Raises StateError, OSError where these cannot be read.
    """
    found = saved_doubts_of(run, step)
    if saved_while_exact(run, step):
        found += saved_while_exact(run, step, manifest().tainted)
    return found
