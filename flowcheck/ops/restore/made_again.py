"""Steps behind a saved checkpoint, made again from the step journal
(replica/step_journal). Each has the digest that the replica had, or none is given."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog.step_journals import (
    JOURNAL_BASE_DIFFERS,
    JOURNAL_BEFORE_SAVE,
    JOURNAL_DIFFERS,
    JOURNAL_EMPTY,
    JOURNAL_ENDS,
    JOURNAL_FOLDER_UNREADABLE,
    JOURNAL_HOLDS,
    JOURNAL_LEADS_NOWHERE,
    JOURNAL_MORE,
    JOURNAL_NEEDS_STATE,
    JOURNAL_NOT_REACHED,
    JOURNAL_REPLACED,
)
from flowcheck.findings.finding import Finding
from flowcheck.ops.watch.state.held_steps import checkpoints_in, step_in_folder_name
from flowcheck.plane.shared_memory.shared_memory_location import SHM
from flowcheck.replica.checkpoint.frozen_and_buffers import write_frozen_and_buffers
from flowcheck.replica.checkpoint.step_snapshot import Snapshot, copy_snapshot
from flowcheck.replica.element_patch import patch_fits
from flowcheck.replica.element_ranges import Ranges, difference, no_ranges, union
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.optimizer import state_section_names
from flowcheck.replica.step_journal.journal_reader import JournalReader, journals_below
from flowcheck.replica.step_journal.journal_records import ChangeKind, JournalLine
from flowcheck.replica.step_journal.past_of_state import Past
from flowcheck.step_numbers import Step, step_ranges
from flowcheck.vault.checkpoint_formats.checkpoint_io import template_for
from flowcheck.vault.persist.checkpoint_of_step import checkpoint_of_step
from flowcheck.vault.trainer_checkpoint.flat_arrays_of_checkpoint import flat_state

STATES_LEAST = 3
"""States of the model that the scratch replica takes: two copies, and what is copied out."""


def save_before(folder: Path, step: Step | None) -> Path:
    """The newest saved checkpoint in a folder of them that is not behind `step`; the folder itself
    where it is one, or without a step. Raises StateError where all are behind it, and as
    `checkpoint_of_step` does."""
    if step is None:
        return folder
    there = [step_in_folder_name(path) for path in checkpoints_in(folder)]
    if there and there[0] > step:
        raise StateError(JOURNAL_BEFORE_SAVE(step=step, first=there[0], checkpoint=folder))
    found = [of for of in there if of <= step]
    return (checkpoint_of_step(folder, found[-1]) if found else None) or folder


class MadeAgain(NamedTuple):
    """A step that was made again."""

    snapshot: Snapshot
    doubt: Finding | None = None
    """Why it is not proved to be the trainer's, by what the journal has of its past; None: nothing
    says so."""
    later: Finding | None = None
    """Which later steps the journal holds that cannot be made again, and why, or that it has none
    behind the save; None: there are no such steps."""
    newer_tainted: tuple[Step, ...] = ()
    """Later steps that it leads to, and that were not asked for because they are tainted."""


def later_step(
    base: Snapshot, checkpoint: Path, journal: Path, step: Step | None, *, allow_tainted: bool
) -> MadeAgain:
    """The step. base: that of the saved checkpoint; step: the one to make; None: the last that is
    exact, or the last at all if `allow_tainted`.

    Raises StateError where the journal does not lead to it, or a digest is not the replica's.
    """
    if base.parameters_only or base.tainted:
        raise StateError(JOURNAL_NEEDS_STATE(checkpoint=checkpoint))
    if step is not None and step < base.step:
        raise StateError(JOURNAL_BEFORE_SAVE(step=step, first=base.step, checkpoint=checkpoint))
    try:
        reader = _journal_of(base, checkpoint, journal)
    except StateError as error:
        if step is None and error.finding.is_any_of(JOURNAL_LEADS_NOWHERE):
            return MadeAgain(base, later=error.finding)  # the save itself is the newest step
        raise
    try:
        past = Past.behind((base.step, base.digest), reader.lines, reader.gap)
        chain = _chain(past, base, checkpoint, journal, step)
        if step is not None:
            if not chain:
                return MadeAgain(base, past.doubt_of_first(base.step))
            made = _made(base, checkpoint, journal, reader, chain)
            return MadeAgain(made, past.doubt_of(made.step))
        return _newest(base, checkpoint, journal, reader, past, allow_tainted=allow_tainted)
    finally:
        reader.close()


def _newest(
    base: Snapshot,
    checkpoint: Path,
    journal: Path,
    reader: JournalReader,
    past: Past,
    *,
    allow_tainted: bool,
) -> MadeAgain:
    """The last step that the journal leads to, up to bytes that are gone."""
    chain, unreached, why = past.chain, past.unreached, past.why_it_ends
    while True:
        exact = len(chain) if allow_tainted else _exact(chain, past.chain)
        try:
            made = _made(base, checkpoint, journal, reader, chain[:exact]) if exact else base
            break
        except _BytesGone as gone:
            # What the disk had not when the machine died: the steps before it are as good.
            unreached = (*(line.step for line in past.chain[gone.at :]), *past.unreached)
            why, chain = gone.finding, chain[: gone.at]
    doubt = past.doubt_of(made.step) if exact else past.doubt_of_first(base.step)
    later = None
    if steps := step_ranges([of for of in unreached if of > made.step]):
        later = JOURNAL_NOT_REACHED(folder=journal, steps=steps, checkpoint=checkpoint, why=why)
    tainted = {line.step for line in chain[exact:] if line.step > made.step}
    return MadeAgain(made, doubt, later, tuple(sorted(tainted)))


def more_behind(base: Snapshot, checkpoint: Path, journal: Path) -> Finding | None:
    """That a journal leads to an exact step behind a saved one; None: it does not, or cannot be
    read."""
    if base.parameters_only or base.tainted:
        return None
    with suppress(StateError, ConfigError):
        reader = _journal_of(base, checkpoint, journal)
        reader.close()
        chain = Past.behind((base.step, base.digest), reader.lines, reader.gap).chain
        last = max((line.step for line in chain[: _exact(chain, chain)]), default=base.step)
        if last > base.step:
            return JOURNAL_MORE(folder=journal, checkpoint=checkpoint, last=last)
    return None


def doubt_of_save(base: Snapshot, checkpoint: Path, journal: Path) -> Finding | None:
    """Of the saved step itself, as far as the journal knows it: as of MadeAgain."""
    with suppress(StateError):
        reader = _journal_of(base, checkpoint, journal)
        past = Past.behind((base.step, base.digest), reader.lines, reader.gap)
        return past.doubt_of_first(base.step)
    return None


class _BytesGone(StateError):
    """Bytes of an entry of the chain cannot be read."""

    def __init__(self, finding: Finding, at: int) -> None:
        """at: the entry's index in the chain."""
        super().__init__(finding)
        self.at = at


def _made(
    base: Snapshot,
    checkpoint: Path,
    journal: Path,
    reader: JournalReader,
    chain: Sequence[JournalLine],
) -> Snapshot:
    held = [value for state in base.states for value in state.values()]
    tensors = [*base.parameters.values(), *(v for v in held if isinstance(v, torch.Tensor))]
    with _scratch(STATES_LEAST * sum(tensor.nbytes for tensor in tensors)) as place:
        path = place / "replica"
        leaves_out = any(line.left_out is not None for line in chain)
        replica = _replica_at(base, checkpoint, path, leaves_out=leaves_out)
        try:
            for at, line in enumerate(chain):
                try:
                    raw = reader.payload(line)
                except StateError as error:
                    raise _BytesGone(error.finding, at) from error
                _apply(replica, line, raw, journal)
            made = replica.step  # the last entry may tell of a later one that this is tainted
        finally:
            replica.close()
        write_frozen_and_buffers(path, base.frozen_and_buffers)
        return copy_snapshot(path, base.optimizer, made)


def _exact(chain: Sequence[JournalLine], whole: Sequence[JournalLine]) -> int:
    """How many entries lead to the last state without tainted elements; 0: none does. whole: the
    chain with what follows it and cannot be read, which may tell of its steps too."""
    tainted: Ranges = no_ranges()
    exact = 0
    late = [(line.since, at) for at, line in enumerate(whole, 1) if line.kind is ChangeKind.TAINT]
    for count, line in enumerate(chain, 1):
        tainted = difference(union([tainted, line.lacked]), line.healed)
        known_later = any(since <= line.step and count < at for since, at in late)
        exact = exact if len(tainted) or known_later else count
    return exact


def _journal_of(base: Snapshot, checkpoint: Path, journal: Path) -> JournalReader:
    """The entries of the replica that had the base: those of other jobs are let go."""
    held: list[Step] = []
    at = base.step, base.digest
    try:
        os.scandir(journal).close()
        for reader in journals_below(journal):
            if any(at in (line.before, line.behind) for line in reader.lines):
                return reader
            held += [line.step for line in reader.lines]
    except OSError as error:
        told = {"folder": error.filename or journal, "error": error.strerror}
        raise StateError(JOURNAL_FOLDER_UNREADABLE(**told)) from error
    what = JOURNAL_HOLDS(first=min(held), last=max(held)) if held else JOURNAL_EMPTY()
    named = {"folder": journal, "step": base.step, "checkpoint": checkpoint}
    raise StateError(JOURNAL_LEADS_NOWHERE(held=what, **named))


def _chain(
    past: Past, base: Snapshot, checkpoint: Path, journal: Path, step: Step | None
) -> Sequence[JournalLine]:
    """The entries that lead from the base to the step; without one, as far as they lead."""
    if step is None:
        if past.replaced is not None:
            told = {"step": past.last[0], "to": past.replaced.step, "checkpoint": checkpoint}
            raise StateError(JOURNAL_REPLACED(folder=journal, **told))
        return past.chain
    chain = [line for line in past.chain if line.step <= step]
    last = chain[-1].step if chain else base.step
    if last != step:
        told = {"step": step, "base": base.step, "last": last, "why": past.why_it_ends}
        raise StateError(JOURNAL_ENDS(checkpoint=checkpoint, folder=journal, **told))
    # What later entries tell of it counts too.
    later = (line for line in past.chain if line.step > step and line.kind is ChangeKind.TAINT)
    return [*chain, *(line for line in later if line.since <= step)]


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


def _apply(replica: Replica, line: JournalLine, raw: np.ndarray, journal: Path) -> None:
    if line.kind is ChangeKind.TAINT:
        replica.taint_since(Step(line.since), line.lacked)
        return
    if line.kind is ChangeKind.VALUES:
        if not patch_fits(replica.description, line.patch(raw)):
            raise StateError(JOURNAL_DIFFERS(step=line.step, folder=journal))
        replica.replace_values(line.patch(raw), exact=line.exact)
    else:
        used = line.used(len(replica.layout.parameters))
        replica.begin(line.step, raw, used, line.lacked).commit()
    if (replica.step, replica.digest) != line.behind:
        raise StateError(JOURNAL_DIFFERS(step=line.step, folder=journal))


@contextmanager
def _scratch(size_bytes: int) -> Iterator[Path]:
    """A folder in memory or, where that is short, in the usual place for temporary files."""
    roomy = SHM.is_dir() and shutil.disk_usage(SHM).free > size_bytes
    with tempfile.TemporaryDirectory(dir=SHM if roomy else None, prefix="flowcheck-") as place:
        yield Path(place)
