"""Steps behind a saved checkpoint, made again from the step journal
(replica/step_journal.py). Each has the digest that the replica had, or none is given."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from flowcheck.errors import StateError
from flowcheck.findings.catalog.step_journals import (
    JOURNAL_BASE_DIFFERS,
    JOURNAL_DIFFERS,
    JOURNAL_EMPTY,
    JOURNAL_ENDS,
    JOURNAL_HOLDS,
    JOURNAL_LEADS_NOWHERE,
    JOURNAL_NEEDS_STATE,
    JOURNAL_UNREADABLE,
)
from flowcheck.findings.finding import Finding
from flowcheck.plane.shared_memory.shared_memory_location import SHM
from flowcheck.replica.checkpoint.frozen_and_buffers import write_frozen_and_buffers
from flowcheck.replica.checkpoint.step_snapshot import Snapshot, copy_snapshot
from flowcheck.replica.checkpoint_files.latest_pointer import CHECKPOINT_NAME_PREFIX
from flowcheck.replica.element_ranges import Ranges, difference, no_ranges, union
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.optimizer import state_section_names
from flowcheck.replica.step_journal import JournalEntry, read_entries
from flowcheck.step_numbers import Step
from flowcheck.vault.checkpoint_formats.checkpoint_io import template_for
from flowcheck.vault.trainer_checkpoint.flat_arrays_of_checkpoint import flat_state

STATES_LEAST = 3
"""States of the model that the scratch replica takes: two copies, and what is copied out."""


def save_before(folder: Path, step: Step | None) -> Path:
    """The newest saved checkpoint in a folder of them that is not behind `step`; the folder itself
    where it is one, or without a step."""
    if step is None:
        return folder
    found = []
    for path in folder.glob(f"{CHECKPOINT_NAME_PREFIX}*"):
        number = path.name.removeprefix(CHECKPOINT_NAME_PREFIX)
        if number.isdecimal() and int(number) <= step:
            found.append((int(number), path))
    return max(found)[1] if found else folder


def later_step(
    base: Snapshot, checkpoint: Path, journal: Path, step: Step | None, *, allow_tainted: bool
) -> Snapshot:
    """The step. base: that of the saved checkpoint; step: the one to make; None: the last that is
    exact, or the last at all if `allow_tainted`.

    Raises StateError where the journal does not lead to it, or a digest is not the replica's.
    """
    if base.parameters_only or base.tainted:
        raise StateError(JOURNAL_NEEDS_STATE(checkpoint=checkpoint))
    chain = _chain(base, checkpoint, journal, step)
    if not chain:
        return base
    while True:
        exact = len(chain) if allow_tainted or step is not None else _exact(chain)
        if not exact:
            return base
        try:
            return _made(base, checkpoint, journal, chain[:exact])
        except _GradientGone as gone:
            # What the disk had not when the machine died: the steps before it are as good.
            if step is not None or not gone.at:
                raise
            chain = chain[: gone.at]


class _GradientGone(StateError):
    """A gradient of the chain cannot be read."""

    def __init__(self, finding: Finding, at: int) -> None:
        """at: its index in the chain."""
        super().__init__(finding)
        self.at = at


def _made(
    base: Snapshot, checkpoint: Path, journal: Path, entries: Sequence[JournalEntry]
) -> Snapshot:
    held = [value for state in base.states for value in state.values()]
    tensors = [*base.parameters.values(), *(v for v in held if isinstance(v, torch.Tensor))]
    with _scratch(STATES_LEAST * sum(tensor.nbytes for tensor in tensors)) as place:
        path = place / "replica"
        leaves_out = any(one.entry.left_out is not None for one in entries)
        replica = _replica_at(base, checkpoint, path, leaves_out=leaves_out)
        try:
            for at, one in enumerate(entries):
                try:
                    _apply(replica, one, journal)
                except StateError as error:
                    if error.finding.is_any_of(JOURNAL_UNREADABLE):
                        raise _GradientGone(error.finding, at) from error
                    raise
        finally:
            replica.close()
        write_frozen_and_buffers(path, base.frozen_and_buffers)
        return copy_snapshot(path, base.optimizer, entries[-1].entry.step)


def _exact(chain: Sequence[JournalEntry]) -> int:
    """How many entries lead to the last state without tainted elements; 0: none does."""
    tainted: Ranges = no_ranges()
    exact = 0
    for count, one in enumerate(chain, 1):
        patch = one.entry.patch
        if patch is None:
            tainted = union([tainted, one.entry.lacked])
        else:
            tainted = difference(tainted, patch.elements)
        exact = exact if len(tainted) else count
    return exact


def _chain(
    base: Snapshot, checkpoint: Path, journal: Path, step: Step | None
) -> list[JournalEntry]:
    """The entries that lead from the base to the step. Of two that follow one state, the job went
    on from the later one. None where the base is the newest step that was written."""
    held = list(read_entries(journal))
    healings = {one.entry.before: one for one in held if one.entry.healed}
    steps = {one.entry.before: one for one in held if not one.entry.healed}
    chain: list[JournalEntry] = []
    digest = base.digest
    # Each is taken once: what contradicts itself leads round in no circle.
    while one := healings.pop(digest, None) or steps.pop(digest, None):
        if step is not None and one.entry.step > step:
            break
        chain.append(one)
        digest = one.entry.digest
    newest = step is None and any(one.entry.digest == digest for one in held)
    if not chain and not newest:
        numbers = [one.entry.step for one in held]
        what = JOURNAL_HOLDS(first=min(numbers), last=max(numbers)) if held else JOURNAL_EMPTY()
        told = {"folder": journal, "step": base.step, "checkpoint": checkpoint, "held": what}
        raise StateError(JOURNAL_LEADS_NOWHERE(**told))
    last = chain[-1].entry.step if chain else base.step
    if step is not None and last != step:
        told = {"step": step, "base": base.step, "last": last}
        raise StateError(JOURNAL_ENDS(checkpoint=checkpoint, folder=journal, **told))
    return chain


def _replica_at(base: Snapshot, checkpoint: Path, path: Path, *, leaves_out: bool) -> Replica:
    """A replica at the saved step, in a new file."""
    layout, optimizer = base.layout, base.optimizer
    template = template_for(checkpoint, layout, optimizer)
    sections = flat_state(template, layout, optimizer, leaves_out=leaves_out)
    weights = sections[state_section_names.PARAMETERS]
    replica = Replica.create(path, layout, optimizer, weights, may_skip_parameters=leaves_out)
    try:
        replica.rebase(base.step, sections, replays=False)
        if replica.digest != base.digest:
            raise StateError(JOURNAL_BASE_DIFFERS(step=base.step, checkpoint=checkpoint))
    except BaseException:
        replica.close()
        raise
    return replica


def _apply(replica: Replica, one: JournalEntry, journal: Path) -> None:
    entry, patch = one.entry, one.entry.patch
    if patch is not None:
        replica.heal(replica.step, patch)
    else:
        gradient, used = one.gradient(replica.layout.gradient_bytes), None
        if entry.left_out is not None:
            used = np.ones(len(replica.layout.parameters), np.bool_)
            used[list(entry.left_out)] = False
        replica.begin(entry.step, gradient, used, entry.lacked).commit()
    if replica.digest != entry.digest:
        raise StateError(JOURNAL_DIFFERS(step=entry.step, folder=journal))


@contextmanager
def _scratch(size_bytes: int) -> Iterator[Path]:
    """A folder in memory or, where that is short, in the usual place for temporary files."""
    roomy = SHM.is_dir() and shutil.disk_usage(SHM).free > size_bytes
    with tempfile.TemporaryDirectory(dir=SHM if roomy else None, prefix="flowcheck-") as place:
        yield Path(place)
