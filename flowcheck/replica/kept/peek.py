"""A look into a state file that another process may be stepping; the updater never waits for it."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flowcheck.errors import RingError, StateError
from flowcheck.private_files import open_own
from flowcheck.replica.kept.header import (
    Commit,
    Description,
    Sizes,
    read_commit,
    read_commits,
    read_fixed,
)
from flowcheck.replica.kept.pins import pin, unpin
from flowcheck.replica.layout import Layout
from flowcheck.step_numbers import Step

SPARE_COPIES = 3
"""With so many the updater has another place to write to while one is read: the newest step's, a
reader's, and its own."""
ATTEMPTS = 16
"""Looks before giving up: each may be overtaken by two steps of the updater."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """A whole step in shared memory, in place."""

    commit: Commit
    description: Description
    sections: dict[str, np.ndarray]
    """Flat and read-only."""
    spare: bool
    """The updater leaves it alone for as long as it is pinned; else only until its next step but
    one."""
    _memory: mmap.mmap

    @property
    def still(self) -> bool:
        """Nothing was written to it so far."""
        return self.commit in read_commits(self._memory)


@contextmanager
def pinned(path: Path, step: Step | None = None) -> Iterator[Pinned]:
    """A step of the state file at `path`, the newest by default, held still as long as there is
    memory for that.

    Raises RingError where there is no state, StateError where it does not hold that step.
    """
    descriptor, memory = _mapped(path)
    try:
        sizes, description = read_fixed(path, memory)
        commit = _pin(path, descriptor, memory, step)
        try:
            sections = _sections(memory, sizes, description, commit.copy)
            spare = sizes.copies >= SPARE_COPIES
            yield Pinned(commit, description, sections, spare, memory)
        finally:
            unpin(descriptor, commit.copy)
    finally:
        os.close(descriptor)  # the mapping ends with the last view into it


def read_copy(
    path: Path, step: Step | None = None
) -> tuple[Commit, Description, dict[str, np.ndarray]]:
    """(commit, description, sections by name) copied out of a state file that another process may
    be stepping. Whether the copy is whole, its digest tells.

    step: another one than the newest. Raises RingError where there is no state, StateError where
    it does not hold that step.
    """
    with pinned(path, step) as held:
        copied = {name: array.copy() for name, array in held.sections.items()}
        return held.commit, held.description, copied


def newest_parameters(path: Path) -> tuple[Layout, np.ndarray]:
    """(layout, flat parameters of the newest step, read-only and in place) of a state file that
    another process may be stepping; good for a look, as a later step overwrites them.

    Raises RingError where there is no state.
    """
    descriptor, memory = _mapped(path)
    os.close(descriptor)
    sizes, description = read_fixed(path, memory)
    sections = _sections(memory, sizes, description, read_commit(path, memory).copy)
    return description.layout, sections[description.sections[0].name]


def _pin(path: Path, descriptor: int, memory: mmap.mmap, step: Step | None) -> Commit:
    """Pins a step's copy. The commit is looked for again behind the lock: from then on nobody takes
    it away unseen."""
    for _ in range(ATTEMPTS):
        commit = read_commit(path, memory) if step is None else _version(path, memory, step)
        if pin(descriptor, commit.copy):
            if commit in read_commits(memory):
                return commit
            unpin(descriptor, commit.copy)
    raise StateError(f"{path}: no step held still in {ATTEMPTS} looks")


def _sections(
    memory: mmap.mmap, sizes: Sizes, description: Description, copy: int
) -> dict[str, np.ndarray]:
    base = sizes.data_offset + copy * sizes.copy
    return {
        s.name: np.frombuffer(memory, s.dtype, s.elements, base + s.offset)
        for s in description.sections
    }


def _mapped(path: Path) -> tuple[int, mmap.mmap]:
    try:
        descriptor = open_own(path, os.O_RDONLY)
        try:
            return descriptor, mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        except BaseException:
            os.close(descriptor)
            raise
    except (OSError, ValueError) as error:
        sentence = f"{path}: no replica state can be read here: {error}"
        raise RingError(getattr(error, "errno", None) or errno.EIO, sentence) from error


def _version(path: Path, memory: mmap.mmap, step: Step) -> Commit:
    kept = {commit.step: commit for commit in read_commits(memory)}
    if step not in kept:
        steps = ", ".join(map(str, sorted(kept))) or "none"
        raise StateError(f"{path}: step {step} is not kept (steps kept: {steps})")
    return kept[step]
