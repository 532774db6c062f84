"""Looks at the chains of this machine, for its keeper's report."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from flowcheck.errors import DECODE_ERRORS, FlowCheckError
from flowcheck.findings.finding import Finding
from flowcheck.fleet.fleet_chains import FleetChain
from flowcheck.fleet.fleet_state import FleetState, job_digest
from flowcheck.fleet.node_report import STEPS_MAX, ChainReport, NodeReport
from flowcheck.ops.fleet.chain_keeping import chain_supervisor
from flowcheck.ops.fleet.node_folder import NodeFolder
from flowcheck.ops.watch.state.held_steps import common_steps, in_replica, newest_exact_step
from flowcheck.ops.watch.state.state_reader import StateReader
from flowcheck.stages.job_state.audit_history import doubts_of
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.run_directory.job_run_dirs import all_run_dirs
from flowcheck.stages.run_directory.run_dir import RunDir


def node_report(folder: NodeFolder, newer: int | None) -> NodeReport:
    """Raises ConfigError where the machine's state cannot be read."""
    state = folder.read()
    return NodeReport(
        fleet=state.name,
        node=folder.node,
        generation=state.generation,
        wanted=state.wanted,
        stated=state.stated_digest,
        newer=newer,
        places={own.name: own.node for own in state.chains},
        chains=tuple(_of_chain(folder, state, own) for own in state.on(folder.node)),
    )


def _of_chain(folder: NodeFolder, state: FleetState, chain: FleetChain) -> ChainReport:
    record = folder.record(chain.name)
    pid: int | None = None
    health: str | None = None
    reason: Finding | None = None
    step: int | None = None
    digest = ""
    exact: tuple[int, ...] = ()
    saved: int | None = None
    run = RunDir(Path(chain.run))
    with suppress(FlowCheckError, OSError, *DECODE_ERRORS):
        pid = chain_supervisor(chain)
        if run.config.exists():
            seen = StateReader(run.root).state()
            health, reason = seen.health.word.value, seen.health.reason
            step, digest = seen.jobs[0].step, seen.jobs[0].digest
            exact = _exact_steps(run)
            saved = newest_exact_step(all_run_dirs(run))
    return ChainReport(
        name=chain.name,
        of=chain.of,
        run=chain.run,
        served=chain.served,
        pid=pid,
        kept=folder.is_locked(f"keep-{chain.name}"),
        starts=record.starts,
        earlier=pid is not None and record.job not in ("", job_digest(chain.job)),
        health=health,
        reason=reason if pid is not None else record.why or reason,
        step=step,
        digest=digest,
        exact=exact,
        saved=saved,
    )


def _exact_steps(run: RunDir) -> tuple[int, ...]:
    """Those in memory that no audit speaks against; of several jobs, those of all."""
    runs = all_run_dirs(run)
    if any(incarnation_of(own).step is None for own in runs):
        return ()
    steps = common_steps([in_replica(own) for own in runs], exact=True)
    return tuple(s for s in steps[-STEPS_MAX:] if not any(doubts_of(own, s) for own in runs))
