"""The replica of a copy: made of a whole state, then changed as the replica that it is a copy of.

Whatever is committed here has the digest that the other side states; nothing else is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from flowcheck.config import JobConfig
from flowcheck.errors import StateError
from flowcheck.findings.catalog.replica_copies import (
    COPY_ANSWER,
    COPY_OTHER_MODEL,
    COPY_STATE_DIGEST,
)
from flowcheck.replica.checkpoint.frozen_and_buffers import (
    SUFFIX,
    FrozenAndBuffers,
    read_frozen_and_buffers,
    write_frozen_and_buffers,
)
from flowcheck.replica.element_patch import patch_fits
from flowcheck.replica.element_ranges import Ranges
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.optimizer import state_section_names
from flowcheck.replica.optimizer.state_sections import describe_sections, named_tensors
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.state_digest import StateId, state_digest, tensor_digests
from flowcheck.replica.state_file.file_header import Description, encode_description
from flowcheck.replica.state_file.state_file import place_sections
from flowcheck.replica.step_journal.journal_records import ChangeKind, JournalLine
from flowcheck.replica.worker_threads import WorkerThreads
from flowcheck.stages.job_state.assumptions import add_assumption
from flowcheck.stages.job_state.model_layout import layout_of, optimizer_of
from flowcheck.stages.job_state.unused_parameters import UnusedParameterMap
from flowcheck.stages.replica_copies.copy_messages import CopyAnswer
from flowcheck.stages.replica_update.replica_creation import check_replica_memory
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step
from flowcheck.wire.training_job.training_spec import TrainingSpec


class CopyForm(NamedTuple):
    """What the replica of a copy looks like, by its own job file."""

    layout: Layout
    description: Description
    may_skip_parameters: bool
    training: TrainingSpec

    @property
    def section_bytes(self) -> Sequence[int]:
        """Of each section of a state."""
        return [section.size_bytes for section in self.description.sections]


def form_of(training: TrainingSpec, config: JobConfig) -> CopyForm:
    """Raises StateError where the job file does not fit the job."""
    optimizer = optimizer_of(training, config)
    layout = layout_of(training, config)
    skips = UnusedParameterMap(training, optimizer.synced_backwards).may_skip_parameters
    sections = place_sections(describe_sections(layout, optimizer, skips))
    return CopyForm(layout, Description(layout, sections), skips, training)


class CopiedReplica:
    """Opens it where it is there, else makes it with the first state."""

    def __init__(self, run: RunDir, config: JobConfig, form: CopyForm) -> None:
        """Raises StateError where there is no memory for it."""
        self._run, self._config, self.form = run, config, form
        self._optimizer = optimizer_of(form.training, config)
        self.replica: Replica | None = None
        if not run.replica.exists():
            given = run, config, form.training, form.layout, self._optimizer
            check_replica_memory(*given, leaves_out=form.may_skip_parameters)
        else:
            workers = WorkerThreads(config.replica.threads, config.replica.cpus)
            # Not verified here: what is damaged takes a whole state (`is_damaged`).
            opened = Replica.open(run.replica, self._optimizer, verify=False, workers=workers)
            self._rests(opened)

    def is_damaged(self) -> bool:
        """Whether the bytes of the newest step are no longer those that were committed; reads them
        once."""
        return self.replica is not None and not self.replica.has_its_digest()

    def take_state(self, answer: CopyAnswer, parts: Sequence[np.ndarray], url: str) -> None:
        """Becomes a whole state. Raises StateError where it is of another model, or its digest is
        not what it must be; nothing has changed then."""
        assert answer.state is not None, "decode_head has checked it"
        form, (step, digest) = self.form, answer.state
        own = [(s.name, np.dtype(s.dtype).str, s.elements) for s in form.description.sections]
        described = encode_description(form.description) == answer.description
        if list(answer.sections) != own or not described:
            raise StateError(COPY_OTHER_MODEL(source=url))
        *raw, module = parts
        described_as = zip(form.description.sections, raw, strict=True)
        sections = {section.name: part.view(section.dtype) for section, part in described_as}
        named = named_tensors(form.description, sections)
        if state_digest(named, tensor_digests(array for _, array in named)).hex() != digest:
            raise StateError(COPY_STATE_DIGEST(step=step))
        found = self._module(module) if module.size else None
        if self.replica is None:
            self._create(step, sections, found)
            return
        self.replica.rebase(step, sections, replays=False)
        if found is not None:
            write_frozen_and_buffers(self.replica.path, found)

    def _create(
        self, step: Step, sections: Mapping[str, np.ndarray], module: FrozenAndBuffers | None
    ) -> None:
        """Nobody sees a replica that is not at this step yet."""
        run, config, form = self._run, self._config, self.form
        workers = WorkerThreads(config.replica.threads, config.replica.cpus)
        place = run.replica.with_name("coming-replica")
        place.unlink(missing_ok=True)  # of a killed updater
        made = Replica.create(
            place,
            form.layout,
            self._optimizer,
            sections[state_section_names.PARAMETERS],
            keep_bytes=config.replica.keep_bytes,
            may_skip_parameters=form.may_skip_parameters,
            workers=workers,
        )
        made.rebase(step, sections, replays=False)
        made.close()
        if module is not None:
            write_frozen_and_buffers(run.replica, module)
        place.replace(run.replica)
        self._rests(Replica.open(run.replica, self._optimizer, workers=workers))

    def _rests(self, replica: Replica) -> None:
        for found in replica.assumptions:
            add_assumption(self._run, found)
        replica.prepare()
        self.replica = replica

    def _module(self, raw: np.ndarray) -> FrozenAndBuffers:
        """What the module holds beside the parameters. Raises StateError where it cannot be
        read."""
        place = self._run.memory / "module"
        file = place.with_name(place.name + SUFFIX)
        try:
            file.write_bytes(raw.data)
            return read_frozen_and_buffers(place)
        except Exception as error:  # of whichever library: the file is a stranger's
            what = f"what the module holds beside its parameters, unreadable ({error!s:.60}),"
            raise StateError(COPY_ANSWER(what=what)) from error
        finally:
            file.unlink(missing_ok=True)

    def change(self, line: JournalLine, raw: np.ndarray) -> None:
        """Makes the change that the line tells of. raw: [bytes] its bytes. Raises StateError where
        it is none of this state, or leads to another one here; nothing has changed then."""
        replica = self.replica
        assert replica is not None, "a state came first"
        self._check(replica, line)
        if line.kind is ChangeKind.TAINT:
            replica.taint_since(Step(line.since), line.lacked)
        elif line.kind is ChangeKind.VALUES:
            patch = line.patch(raw)
            if not patch_fits(replica.description, patch):
                raise StateError(COPY_ANSWER(what="values of other elements"))
            replica.replace_values(patch, exact=line.exact, digest=line.behind[1])
        else:
            used = line.used(len(replica.layout.parameters))
            pending = replica.begin(line.step, raw, used, line.lacked, digest=line.behind[1])
            pending.commit()

    def _check(self, replica: Replica, line: JournalLine) -> None:
        total = sum(parameter.elements for parameter in replica.layout.parameters)
        skips = self.form.may_skip_parameters
        step = replica.step + (line.kind is ChangeKind.STEP)
        fits = (
            line.before == self.state
            and line.behind[0] == step
            and (line.kind is not ChangeKind.TAINT or line.behind == line.before)
            and _within(line.lacked, total)
            and 0 <= line.since <= replica.step
            and (replica.optimizer.per_element or not len(line.lacked))
            and (line.left_out is None or skips)
            and line.kind is not ChangeKind.STATE
        )
        if not fits:
            raise StateError(COPY_ANSWER(what=f"a change of step {line.step} that does not fit"))

    @property
    def state(self) -> StateId | None:
        """Its newest; None: it has none yet."""
        return None if self.replica is None else (self.replica.step, self.replica.digest)

    def holds(self, state: StateId) -> bool:
        """Whether an earlier step that is kept is this state."""
        replica = self.replica
        return replica is not None and any(
            (commit.step, commit.digest.hex()) == state for commit in replica.kept_commits
        )

    def close(self) -> None:
        if self.replica is not None:
            self.replica.close()


def _within(ranges: Ranges, total: int) -> bool:
    """Whether these are ascending ranges of that many elements."""
    flat = ranges.ravel()
    if not len(flat):
        return True
    return bool(flat[0] >= 0 and flat[-1] <= total and (np.diff(flat) > 0).all())
