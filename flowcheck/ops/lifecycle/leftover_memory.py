"""Shared memory and run directories of killed chains: finds, lists and removes them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from flowcheck.findings.catalog.how_chains_end import (
    LEFT_BY_CHAIN,
    LEFT_BY_SEVERAL,
    LEFT_REMOVABLE,
    LEFT_REMOVED,
    LEFT_WITH_REPLAY,
    LEFT_WITH_REPLICA,
)
from flowcheck.findings.finding import Finding
from flowcheck.ops.watch.state.replay_options_record import (
    is_temporary,
    reads_captures,
    repeating_command,
)
from flowcheck.plane.shared_memory.shared_memory_location import (
    SHM,
    hugetlbfs_mounts,
    with_user_folders,
)
from flowcheck.private_files import is_privately_owned
from flowcheck.stages.run_directory.process_liveness import run_dir_of_memory, stale_memory
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.run_directory.run_dir_checks import chain_root


@dataclass(frozen=True, slots=True)
class LeftoverMemory:
    """Shared memory of a chain whose processes are gone."""

    memory: Path
    run: Path | None
    """The chain's run directory, if its link still leads to the memory. None: its contents cannot
    be identified."""
    size_bytes: int
    has_replica: bool
    is_own: bool = True
    """True: it belongs to this user."""

    @property
    def finding(self) -> Finding:
        """What the memory holds, and the command that removes it."""
        mib = self.size_bytes >> 20
        if not self.must_be_kept:
            return LEFT_REMOVABLE(mib=mib, memory=self.memory)
        if not self.has_replica:
            return LEFT_BY_CHAIN(mib=mib, run=self.run)
        if self.run is not None and reads_captures(self.run):
            return LEFT_WITH_REPLAY(mib=mib, run=self.run, again=repeating_command(self.run))
        return LEFT_WITH_REPLICA(mib=mib, run=self.run)

    @property
    def must_be_kept(self) -> bool:
        """Whether it must be kept: it belongs to a run directory that a user chose."""
        return self.run is not None and not is_temporary(self.run)


@dataclass(slots=True)
class RemovedLeftovers:
    """Result of `remove_leftovers`."""

    removed: list[str] = field(default_factory=list)
    kept: list[LeftoverMemory] = field(default_factory=list)
    """Memory that was not removed, since it belongs to a run directory or holds a replica."""

    @property
    def findings(self) -> list[Finding]:
        """One finding for each removed folder."""
        return [LEFT_REMOVED(path) for path in self.removed]


def find_leftover_memory() -> list[LeftoverMemory]:
    """Finds shared memory of killed chains in /dev/shm and in all hugetlbfs mounts."""
    found = []
    for memory in stale_memory([SHM, *with_user_folders(hugetlbfs_mounts())]):
        with suppress(FileNotFoundError):  # somebody else removes it just now
            found.append(_leftover(memory))
    return found


def summed_by_chain(found: Sequence[LeftoverMemory]) -> list[LeftoverMemory]:
    """One entry per chain with the summed size; a chain with several jobs has shared memory for
    each."""
    chains: dict[Path, LeftoverMemory] = {}
    for one in found:
        key = one.run or one.memory
        before = chains.get(key, replace(one, size_bytes=0))
        size_bytes = before.size_bytes + one.size_bytes
        has_replica = before.has_replica or one.has_replica
        chains[key] = replace(before, size_bytes=size_bytes, has_replica=has_replica)
    return list(chains.values())


def summary_findings(found: Sequence[LeftoverMemory]) -> list[Finding]:
    """Findings for `up` and `status`: one for one chain, one with the sum for several. Memory of
    other users is left out."""
    own = [one for one in summed_by_chain(found) if one.is_own]
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
        None if run is None else chain_root(run),
        size_bytes,
        (memory / "replica").exists(),
        mine,
    )


def remove_leftovers(*, except_run: Path | None, replicas: bool) -> RemovedLeftovers:
    """Removes shared memory without a run directory, and killed replays whose run directory was
    temporary. Memory of other run directories is kept and listed in the result.

    except_run: a run directory that the caller handles itself; None: there is none.
    replicas: also remove memory without a run directory that holds a replica.
    """
    done = RemovedLeftovers()
    for leftover in find_leftover_memory():
        handled = except_run is not None and leftover.run == except_run.resolve()
        if handled or not leftover.is_own:
            continue
        if leftover.must_be_kept or (
            leftover.run is None and leftover.has_replica and not replicas
        ):
            done.kept.append(leftover)
            continue
        if leftover.run is not None:
            if RunDir(leftover.run).stage_pids():
                continue  # its stages end after what they have in hand
            shutil.rmtree(leftover.run, ignore_errors=True)
        shutil.rmtree(leftover.memory, ignore_errors=True)
        if not leftover.memory.exists():
            done.removed.append(str(leftover.memory))
    return done
