"""Looks at the chains of this machine, for its keeper's report."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from flowcheck import __version__
from flowcheck.errors import DECODE_ERRORS, FlowCheckError
from flowcheck.findings.finding import Finding
from flowcheck.fleet.common_step import Life
from flowcheck.fleet.fleet_chains import FleetChain
from flowcheck.fleet.fleet_state import FleetState, job_digest
from flowcheck.fleet.node_report import ChainReport, NodeReport
from flowcheck.ops.fleet.chain_keeping import chain_supervisor
from flowcheck.ops.fleet.node_folder import NodeFolder
from flowcheck.ops.watch.state.held_steps import newest_exact_step
from flowcheck.ops.watch.state.state_reader import StateReader
from flowcheck.stages.job_state.exact_states import exact_states
from flowcheck.stages.job_state.job_life import JobLife
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
        release=__version__,
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
    steps: dict[int, str] = {}
    life: JobLife | None = None
    saved: int | None = None
    run = RunDir(Path(chain.run))
    with suppress(FlowCheckError, OSError, *DECODE_ERRORS):
        pid = chain_supervisor(chain)
        if run.config.exists():
            seen = StateReader(run.root).state()
            health, reason = seen.health.word.value, seen.health.reason
            step, digest = seen.jobs[0].step, seen.jobs[0].digest
            steps, life = _exact_steps(run)
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
        exact=tuple(steps),
        digests=tuple(steps.values()),
        life=None if life is None else Life(**msgspec.structs.asdict(life)),
        saved=saved,
    )


def _exact_steps(run: RunDir) -> tuple[dict[int, str], JobLife | None]:
    """({step: digest} of those in memory that no audit speaks against; of several jobs, those of
    all, with the digests of the last job; the life of the training job that they are of)."""
    each = [exact_states(own) for own in all_run_dirs(run)]
    common = set.intersection(*(set(own.steps) for own in each))
    steps = {int(step): digest for step, digest in each[-1].steps.items() if step in common}
    return steps, each[0].life if len({own.life for own in each}) == 1 else None
