"""A whole state of a replica as it is given to a copy: its sections in place, and what the module
holds beside the parameters."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flowcheck.errors import StateError
from flowcheck.findings.catalog.replica_state_errors import COPY_NOT_HELD
from flowcheck.replica.checkpoint.frozen_and_buffers import (
    NO_FROZEN_OR_BUFFERS,
    SUFFIX,
    read_frozen_and_buffers,
    write_frozen_and_buffers,
)
from flowcheck.replica.state_digest import StateId
from flowcheck.replica.state_file.concurrent_reader import ATTEMPTS, pin_step
from flowcheck.replica.state_file.file_header import encode_description
from flowcheck.step_numbers import Step


@dataclass(frozen=True, slots=True)
class GivenState:
    """One whole state."""

    state: StateId
    tainted: bool
    description: bytes
    sections: dict[str, np.ndarray]
    """Flat; good until the end of the `with`."""
    module: np.ndarray
    """[bytes] a safetensors file with what the module holds beside the parameters; empty where
    nothing is known of it."""


@contextmanager
def given_state(replica: Path) -> Iterator[GivenState]:
    """The newest state of the replica at that path, which its updater goes on stepping. Where that
    has no copy to spare, its memory is copied. Raises RingError where there is none, StateError
    where it never held still."""
    for _ in range(ATTEMPTS):
        with pin_step(replica) as held:
            state = held.commit.step, held.commit.digest.hex()
            description = encode_description(held.description)
            own = state, held.commit.tainted, description
            if held.has_spare_copy:
                yield GivenState(*own, held.sections, _module(replica, state[0]))
                return
            sections = {name: array.copy() for name, array in held.sections.items()}
            unchanged = held.is_unchanged
        if unchanged:
            yield GivenState(*own, sections, _module(replica, state[0]))
            return
    raise StateError(COPY_NOT_HELD(path=replica, reads=ATTEMPTS))


def _module(replica: Path, step: Step) -> np.ndarray:
    found = read_frozen_and_buffers(replica, step)
    if found == NO_FROZEN_OR_BUFFERS:
        return np.empty(0, np.uint8)
    with tempfile.TemporaryDirectory(prefix="flowcheck-") as folder:
        place = Path(folder) / "replica"
        write_frozen_and_buffers(place, found)
        return np.frombuffer(place.with_name(place.name + SUFFIX).read_bytes(), np.uint8)
