"""The replica's state file: one mapped file with several copies of the state, each a committed
step. No torch here.

Layout of the file and what a commit promises: file_header.py. No torch here.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from flowcheck.errors import RingError, StateError
from flowcheck.findings.catalog.replica_state_errors import (
    ALREADY_HERE,
    CANNOT_OPEN,
    OPEN_ELSEWHERE,
    TOO_SHORT,
)
from flowcheck.private_files import open_private
from flowcheck.replica.state_file.concurrent_reader import claim_for_writing, unpin
from flowcheck.replica.state_file.file_header import (
    HEADER_BYTES,
    PAGE_BYTES,
    SECTION_STAGGER_BYTES,
    Commit,
    Description,
    FileSizes,
    Section,
    clear_commit,
    encode_description,
    read_commit,
    read_commits,
    read_description,
    read_head,
    read_step_in_progress,
    write_commit,
    write_commit_again,
    write_description,
    write_head,
    write_step_in_progress,
)
from flowcheck.replica.state_file.free_space import check_space, free_space_of, in_memory
from flowcheck.replica.state_file.huge_pages import (
    byte_ranges_of_threads,
    map_with_huge_pages,
    touch_pages,
)
from flowcheck.replica.worker_threads import WorkerThreads
from flowcheck.step_numbers import Step


def place_sections(wanted: Sequence[Section]) -> tuple[Section, ...]:
    """The sections of a copy one behind the other, APART_BYTES further into a page each, the first
    behind where a gradient begins, which lies at whole pages."""
    sections, offset = [], 0
    for number, each in enumerate(wanted, 1):
        within = number * SECTION_STAGGER_BYTES % PAGE_BYTES
        offset += (within - offset) % PAGE_BYTES
        section = msgspec.structs.replace(each, offset=offset)
        sections.append(section)
        offset += section.size_bytes
    return tuple(sections)


class StateFile:
    """An open state file. One process at a time, held by a lock that dies with the process."""

    def __init__(self, path: Path, descriptor: int, memory: mmap.mmap) -> None:
        """memory: the whole file (huge_pages.py, `map_with_huge_pages`)."""
        self.path = path
        self._map = memory
        self._sizes, self.description = read_description(path, self._map)
        self.commit = read_commit(path, self._map)
        self._descriptor = descriptor
        self._given = read_head(self._map)[1]
        """The highest sequence number: no two commits of this process have the same."""
        self._clear_others()

    @classmethod
    def create(
        cls,
        path: Path,
        description: Description,
        first: dict[str, np.ndarray],
        commit: Commit,
        copies: int = 2,
        workers: WorkerThreads | None = None,
    ) -> StateFile:
        """A file that appears whole: the committed copy holds `first`; absent sections are 0.

        copies: one is being written while the others are the last steps; workers: what will step
        them, and is first to touch their pages (huge_pages.py).
        Raises StateError where `path` exists, or where it does not fit, with the sum.
        """
        if path.exists():
            raise StateError(ALREADY_HERE(path))
        sizes = _sizes_of(path.parent, description, copies)
        step = sum(section.size_bytes for section in description.sections)
        account = f"{copies} steps of {step:,} bytes: the newest, the one being made, earlier"
        check_space(path.parent, sizes.total, account, free_space_of(path.parent))
        growing = path.with_name(f".{path.name}.creating")
        growing.unlink(missing_ok=True)
        descriptor = os.open(growing, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _lock(path, descriptor)
            os.ftruncate(descriptor, sizes.total)
            whole = map_with_huge_pages(descriptor, sizes.total)
            if in_memory(path.parent):
                workers = workers or WorkerThreads()
                touch_pages(
                    whole, byte_ranges_of_threads(sizes, description, workers.number), workers
                )
            os.posix_fallocate(descriptor, 0, sizes.total)
            write_description(whole, sizes, description)
            write_commit(whole, commit)
            state = cls(path, descriptor, whole)
            for name, array in state.sections(commit.copy).items():
                if name in first:
                    np.copyto(array, first[name])
            growing.rename(path)
        except BaseException:
            growing.unlink(missing_ok=True)
            os.close(descriptor)
            raise
        return state

    @classmethod
    def open(cls, path: Path) -> StateFile:
        """The state at `path`. Raises RingError where it is missing, of another version or size,
        StateError where it holds no whole commit or another process has it."""
        try:
            descriptor = open_private(path, os.O_RDWR)
        except OSError as error:
            why = CANNOT_OPEN(path=path, error=error.strerror)
            raise RingError(error.errno or errno.EIO, why) from error
        try:
            _lock(path, descriptor)
            size_bytes = os.fstat(descriptor).st_size
            if size_bytes < HEADER_BYTES:
                raise RingError(errno.EINVAL, TOO_SHORT(path=path, bytes=size_bytes))
            return cls(path, descriptor, map_with_huge_pages(descriptor, size_bytes))
        except BaseException:
            os.close(descriptor)
            raise

    @property
    def step_in_progress(self) -> Step:
        """The step being applied; 0 for none."""
        return Step(read_step_in_progress(self._map))

    @step_in_progress.setter
    def step_in_progress(self, step: Step) -> None:
        write_step_in_progress(self._map, step)

    def sections(self, copy: int) -> dict[str, np.ndarray]:
        """Every section of one copy by name, flat and in place."""
        base = self._sizes.data_offset + copy * self._sizes.copy
        return {
            s.name: np.frombuffer(self._map, s.dtype, s.elements, base + s.offset)
            for s in self.description.sections
        }

    def bytes_of_copy(self, copy: int) -> np.ndarray:
        """All bytes of one copy, in place."""
        base = self._sizes.data_offset + copy * self._sizes.copy
        return np.frombuffer(self._map, np.uint8, self._sizes.copy, base)

    @property
    def copies(self) -> int:
        return self._sizes.copies

    @property
    def versions(self) -> list[Commit]:
        """Every whole step, the newest last."""
        return read_commits(self._map, self.copies)

    def begin(self) -> int:
        """A copy to write the next step to: one that holds none, else the oldest step's that nobody
        reads, else the oldest step's; it is whole no longer from here on. Readers never make the
        updater wait: where there is no other copy, theirs is taken, and they see that."""
        others = self._others()
        copy = next((c for c in others if claim_for_writing(self._descriptor, c)), others[0])
        clear_commit(self._map, copy)
        unpin(self._descriptor, copy)
        return copy

    def has_spare_copy(self, steps: int) -> bool:
        """Whether `begin` would take a copy that nobody reads, and leave at least so many whole
        steps beside the newest."""
        for copy in self._others():
            if claim_for_writing(self._descriptor, copy):
                unpin(self._descriptor, copy)
                left = {commit.copy for commit in self.versions} - {copy, self.commit.copy}
                return len(left) >= steps
        return False

    def _others(self) -> list[int]:
        """Copies that are not committed: those that hold no step, then the oldest first."""
        held = {commit.copy: commit.sequence for commit in self.versions}
        others = (c for c in range(self.copies) if c != self.commit.copy)
        return sorted(others, key=lambda c: held.get(c, 0))

    def publish(self, step: Step, copy: int, digest: bytes, *, tainted: bool = False) -> None:
        """The one store that makes `copy` the replica at `step`. tainted: as of `Commit`."""
        self._commit(step, copy, digest, True, self.commit.lineage, tainted)

    def publish_new_lineage(
        self, step: Step, copy: int, digest: bytes, *, has_optimizer_state: bool
    ) -> None:
        """As `publish`, of another past: the same store ends all steps that were whole before."""
        self._commit(step, copy, digest, has_optimizer_state, self.commit.lineage + 1)
        self._clear_others()

    def publish_again(self, copy: int, digest: bytes, *, tainted: bool) -> None:
        """As `publish`, of the newest step with other values: the copy that held it is none of the
        whole steps any more."""
        before = self.commit
        self._commit(before.step, copy, digest, before.has_optimizer_state, before.lineage, tainted)
        clear_commit(self._map, before.copy)

    def mark_tainted(self, since: Step) -> None:
        """Whole steps before the newest, from this one on, turned out to be tainted."""
        for version in self.versions:
            if since <= version.step < self.commit.step and not version.tainted:
                write_commit_again(self._map, replace(version, tainted=True))

    def go_back(self, version: Commit) -> None:
        """Makes an older step the newest, in one store; the steps that followed it are gone."""
        write_head(self._map, version)
        self.commit = version
        self._clear_others()

    def _commit(
        self,
        step: Step,
        copy: int,
        digest: bytes,
        has_state: bool,
        past: int,
        tainted: bool = False,
    ) -> None:
        self._given += 1
        own = self.commit.fingerprint
        commit = Commit(self._given, step, copy, has_state, digest, own, past, tainted)
        write_commit(self._map, commit)
        self.commit = commit

    def _clear_others(self) -> None:
        """Slots that do not count are empty from here on, so that no later head makes them count:
        of abandoned steps, of another past, of a step that a kill came before the head of."""
        whole = {commit.copy for commit in self.versions}
        for copy in range(self.copies):
            if copy not in whole:
                clear_commit(self._map, copy)

    def close(self) -> None:
        """Lets go of the lock; the memory goes with the last view into it."""
        if self._descriptor >= 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # the mapping keeps a descriptor too
            os.close(self._descriptor)
            self._descriptor = -1


def _sizes_of(folder: Path, description: Description, copies: int) -> FileSizes:
    """Whole pages of the file system that `folder` lies on (2 MiB on hugetlbfs)."""
    page_bytes = max(os.statvfs(folder).f_bsize, mmap.PAGESIZE)
    last = description.sections[-1]
    text_bytes = len(encode_description(description))
    data_offset = _round_up(HEADER_BYTES + text_bytes, mmap.PAGESIZE)
    copy_bytes = (
        _round_up(max(last.offset + last.size_bytes, 1), mmap.PAGESIZE) + 3 * SECTION_STAGGER_BYTES
    )
    total = _round_up(data_offset + copies * copy_bytes, page_bytes)
    return FileSizes(text_bytes, data_offset, copy_bytes, total, copies)


def _lock(path: Path, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StateError(OPEN_ELSEWHERE(path)) from error


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
