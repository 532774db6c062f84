"""A look into a state file that another process may be stepping: nothing is locked."""

from __future__ import annotations

import errno
import mmap
from pathlib import Path

import numpy as np

from flowcheck.errors import RingError, StateError
from flowcheck.replica.kept.header import Commit, read_commit, read_commits, read_fixed
from flowcheck.replica.layout import Layout


def read_copy(path: Path, step: int | None = None) -> tuple[Commit, Layout, dict[str, np.ndarray]]:
    """(commit, layout, sections by name) copied out of a state file that another process may be
    stepping; nothing is locked. Whether the copy is whole, its digest tells.

    step: another one than the newest. Raises RingError where there is no state, StateError where
    it does not hold that step.
    """
    with _mapped(path) as memory:
        sizes, description = read_fixed(path, memory)
        commit = read_commit(path, memory) if step is None else _version(path, memory, step)
        base = sizes.data_offset + commit.copy * sizes.copy
        sections = {
            s.name: np.frombuffer(
                memory[base + s.offset : base + s.offset + s.size_bytes], s.dtype
            ).copy()
            for s in description.sections
        }
    return commit, description.layout, sections


def newest_parameters(path: Path) -> tuple[Layout, np.ndarray]:
    """(layout, flat parameters of the newest step, read-only and in place) of a state file that
    another process may be stepping; good for a look, as a later step overwrites them.

    Raises RingError where there is no state.
    """
    memory = _mapped(path)
    sizes, description = read_fixed(path, memory)
    first = description.sections[0]
    base = sizes.data_offset + read_commit(path, memory).copy * sizes.copy
    flat = np.frombuffer(memory, first.dtype, first.elements, base + first.offset)
    return description.layout, flat


def _mapped(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        sentence = f"{path}: no replica state can be read here: {error}"
        raise RingError(getattr(error, "errno", None) or errno.EIO, sentence) from error


def _version(path: Path, memory: mmap.mmap, step: int) -> Commit:
    kept = {commit.step: commit for commit in read_commits(memory)}
    if step not in kept:
        steps = ", ".join(map(str, sorted(kept))) or "none"
        raise StateError(f"{path}: step {step} is not kept (steps kept: {steps})")
    return kept[step]
