"""Shared memory and run directories of killed chains: finds, lists and removes them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from flowcheck.findings.catalog.how_chains_end import (
    LEFT_BY_CHAIN,
    LEFT_BY_SEVERAL,
    LEFT_REMOVABLE,
    LEFT_REMOVED,
    LEFT_WITH_REPLICA,
)
from flowcheck.findings.finding import Finding
from flowcheck.plane.shared_memory.hugepage_memory import SHM, hugetlbfs_mounts, with_user_folders
from flowcheck.private_files import is_privately_owned
from flowcheck.stages.run_directory.process_liveness import run_dir_of_memory, stale_memory
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.run_directory.run_dir_checks import is_run

REPLAY_PREFIX = "flowcheck-replay-"
"""Of run directories nobody asked for; what is in them can be replayed again."""


@dataclass(frozen=True, slots=True)
class LeftoverMemory:
    """Shared memory whose owner is dead."""

    memory: Path
    run: Path | None
    """The chain's run directory, which still leads to it; without one nobody can tell what is in
    it."""
    size_bytes: int
    has_replica: bool
    mine: bool = True
    """This user's."""

    @property
    def finding(self) -> Finding:
        """What lies there, and which command removes it."""
        mib = self.size_bytes >> 20
        if not self.wanted:
            return LEFT_REMOVABLE(mib=mib, memory=self.memory)
        return (LEFT_WITH_REPLICA if self.has_replica else LEFT_BY_CHAIN)(mib=mib, run=self.run)

    @property
    def wanted(self) -> bool:
        """Somebody may come back for it."""
        return self.run is not None and not _is_temporary(self.run)


@dataclass(slots=True)
class RemovedLeftovers:
    """What `remove_leftovers` did."""

    removed: list[str] = field(default_factory=list)
    left: list[LeftoverMemory] = field(default_factory=list)
    """Memory that belongs to a run directory, or may be wanted."""

    @property
    def findings(self) -> list[Finding]:
        """What was removed."""
        return [LEFT_REMOVED(path) for path in self.removed]


def find() -> list[LeftoverMemory]:
    """Shared memory of killed chains, wherever shared memory may lie."""
    found = []
    for memory in stale_memory([SHM, *with_user_folders(hugetlbfs_mounts())]):
        with suppress(FileNotFoundError):  # somebody else removes it just now
            found.append(_leftover(memory))
    return found


def by_chain(found: Sequence[LeftoverMemory]) -> list[LeftoverMemory]:
    """One for each chain: each of several jobs has memory of its own."""
    chains: dict[Path, LeftoverMemory] = {}
    for one in found:
        key = one.run or one.memory
        before = chains.get(key, replace(one, size_bytes=0))
        size_bytes = before.size_bytes + one.size_bytes
        has_replica = before.has_replica or one.has_replica
        chains[key] = replace(before, size_bytes=size_bytes, has_replica=has_replica)
    return list(chains.values())


def in_short(found: Sequence[LeftoverMemory]) -> list[Finding]:
    """What `up` and `status` say, in a line; memory of other users is left out."""
    own = [one for one in by_chain(found) if one.mine]
    if len(own) < 2:
        return [one.finding for one in own]
    size_bytes = sum(one.size_bytes for one in own)
    return [LEFT_BY_SEVERAL(chains=len(own), mib=size_bytes >> 20)]


def _leftover(memory: Path) -> LeftoverMemory:
    size_bytes = sum(path.lstat().st_blocks * 512 for path in memory.iterdir())
    mine = is_privately_owned(memory)
    run = run_dir_of_memory(memory)
    return LeftoverMemory(
        memory,
        None if run is None else _chain_of(run),
        size_bytes,
        (memory / "replica").exists(),
        mine,
    )


def _chain_of(run: Path) -> Path:
    """Of one of several jobs the run directory that all of them are in (RunDir.beside)."""
    chain = run.parent.parent
    own = run.parent.name == "jobs" and run.name.isdecimal() and is_run(chain)
    return chain if own else run


def remove_leftovers(*, apart_from: Path, replicas: bool) -> RemovedLeftovers:
    """Removes what nobody can use: memory no run directory leads to, and killed replays that were
    given no run directory. What belongs to a run directory is left and told.

    apart_from: a run directory that is looked after already; replicas: remove also memory that
    holds one, though no run directory leads there.
    """
    done = RemovedLeftovers()
    for leftover in find():
        if leftover.run == apart_from.resolve() or not leftover.mine:
            continue
        if leftover.wanted or (leftover.run is None and leftover.has_replica and not replicas):
            done.left.append(leftover)
            continue
        if leftover.run is not None:
            if RunDir(leftover.run).stage_pids():
                continue  # its stages end after what they have in hand
            shutil.rmtree(leftover.run, ignore_errors=True)
        shutil.rmtree(leftover.memory, ignore_errors=True)
        if not leftover.memory.exists():
            done.removed.append(str(leftover.memory))
    return done


def _is_temporary(run: Path) -> bool:
    folder = Path(tempfile.gettempdir()).resolve()
    return run.parent == folder and run.name.startswith(REPLAY_PREFIX)
