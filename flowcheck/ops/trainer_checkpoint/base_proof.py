"""The proof that a checkpoint is what the replica of a job has to start from, and its way to the
updater."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flowcheck.config import JobConfig
from flowcheck.errors import StateError
from flowcheck.findings.catalog.base_checkpoints import (
    AS_BEGUN_WITH,
    AS_STATED,
    BASE_REFUSED,
    BEING_JOINED,
    CHAIN_HAS_ENDED,
    CHAIN_WAS_KILLED,
    LEADS_TO_LATER_FILE,
    NO_JOB_YET,
    NO_UPDATER,
    NO_UPDATER_OF_REPLAY,
    NOT_WHAT_IT_BEGAN_WITH,
    PLACE_NOT_LOGGED,
    PLACE_UNKNOWN,
    REPLAY_HAS_ENDED,
    REPLAY_WAS_KILLED,
    SAME_PARAMETERS,
    START_WAS_SEEN,
    STATE_KNOWN,
    STATED_ELSEWHERE,
)
from flowcheck.findings.finding import Entry, Finding
from flowcheck.ops.trainer_checkpoint import gradient_log_position
from flowcheck.ops.watch.state.replay_options_record import reads_captures, repeating_command
from flowcheck.replica.optimizer import state_section_names
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.state_file.file_header import peek_versions
from flowcheck.replica.taint import seen_of_weights
from flowcheck.stages.job_state.given_checkpoint_request import await_answer, submit_request
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.job_state.lifecycle_record_schema import RequestKind
from flowcheck.stages.job_state.training_facts import known_training
from flowcheck.stages.replica_update.gradient_logs import logged_step_range
from flowcheck.stages.replica_update.model_buffers import store_checkpoint_buffers
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.stage_table import SUPERVISOR, Position, stage_at
from flowcheck.step_numbers import Step
from flowcheck.vault.audit.param_group_check import check_settings
from flowcheck.vault.checkpoint_formats.checkpoint_io import template_for
from flowcheck.vault.trainer_checkpoint.checkpoint_template import CheckpointTemplate
from flowcheck.vault.trainer_checkpoint.flat_arrays_of_checkpoint import flat_state

TAKEN_LIMIT_S = 60.0
"""Seconds for the updater to accept a base. A choice: longer delays the error of a chain that
hangs, shorter fails for a large model."""


@dataclass(frozen=True, slots=True)
class LogPosition:
    """The user's statement about a base's place in the log of a job that was joined midstream."""

    later_checkpoint: Path | None = None
    """A later checkpoint of the trainer. Only from the right place in the log do the logged steps
    lead to it."""
    after: int | None = None
    """Number of steps from the joining of the job to the base, with the base's step."""


NO_POSITION = LogPosition()


@dataclass(frozen=True, slots=True)
class BaseCheckpoint:
    """A checkpoint that is proved, or stated by the user, to be a job's base."""

    template: CheckpointTemplate
    sections: dict[str, np.ndarray]
    file: Path
    why: Finding
    """The evidence that the checkpoint is the base."""
    after: int = 0
    """Number of logged steps before the base, for a job that was joined midstream."""


def knows_state(own: RunDir) -> bool:
    """Whether the job has a replica whose state is known."""
    return own.replica.exists() and incarnation_of(own).step is not None


def proved_base(
    where: RunDir, file: Path, place: LogPosition = NO_POSITION, tree: Any = None
) -> BaseCheckpoint:
    """The base of a job that waits for one. tree: what is in the file, where it was read. Raises
    StateError if the job waits for none, or as `verified_base`."""
    root, config = where.root, where.settings()
    if not where.replica.exists():
        raise StateError(_no_job(where))
    if incarnation_of(where).step is not None:
        raise StateError(STATE_KNOWN(root))
    if stage_at(Position.STEP).name not in where.stage_pids():
        raise StateError(_of_kind(where, NO_UPDATER_OF_REPLAY, NO_UPDATER))
    return verified_base(where, config, file, place, tree)


def _no_job(where: RunDir) -> Finding:
    """Why there is no job to give a base to: the chain has ended, was killed, or still learns."""
    chain = where.port
    if chain.ended.exists():
        return _of_kind(where, REPLAY_HAS_ENDED, CHAIN_HAS_ENDED)
    if SUPERVISOR.name not in chain.stage_pids():
        return _of_kind(where, REPLAY_WAS_KILLED, CHAIN_WAS_KILLED)
    return NO_JOB_YET(where.root)


def _of_kind(where: RunDir, of_replay: Entry, of_live: Entry) -> Finding:
    """What is said of a run whose captures can be read again, or of one that follows a live job."""
    chain = where.port.root
    if reads_captures(chain):
        return of_replay(run=where.root, again=repeating_command(chain))
    return of_live(where.root)


def submit_proved(where: RunDir, base: BaseCheckpoint) -> str:
    """Submits a base to the updater. Returns the request's name."""
    step, source = base.template.step, str(base.file)
    store_checkpoint_buffers(where, base.template.model, step)
    return submit_request(where, RequestKind.BASE, step, base.sections, source, after=base.after)


def verified_base(
    where: RunDir,
    config: JobConfig,
    file: Path,
    place: LogPosition = NO_POSITION,
    tree: Any = None,
) -> BaseCheckpoint:
    """The base from a checkpoint, after proof that the job began with its parameters, or that its
    place in the log is known. tree: what is in the file, where it was read. Raises StateError if
    neither is true."""
    assert config.optimizer is not None
    layout, _ = peek_versions(where.replica)
    template = template_for(file, layout, config.optimizer, cuts=config.model.cuts, tree=tree)
    check_settings(template, config.optimizer, layout, str(file))
    job = known_training(where)
    leaves_out = job.has_usage_map or bool(job.unused_parameters)
    sections = flat_state(template, layout, config.optimizer, leaves_out=leaves_out)
    if job.awaits_base:
        after, why = _placed(where, config, layout, (template.step, sections), place)
        return BaseCheckpoint(template, sections, file, why, after)
    if place != NO_POSITION:
        raise StateError(START_WAS_SEEN(where.root))
    if not where.weights.exists():
        raise StateError(BEING_JOINED(where.root))
    began = layout.memory_order(np.fromfile(where.weights, layout.numpy_dtype))
    mine = sections[state_section_names.PARAMETERS]
    seen = seen_of_weights(layout, job.weights_missing)
    for p in layout.parameters:
        own = slice(p.start, p.stop)
        if mine[own][seen[own]].tobytes() != began[own][seen[own]].tobytes():
            what = NOT_WHAT_IT_BEGAN_WITH(file=file, tensor=p.name, step=template.step)
            raise StateError(what)
    return BaseCheckpoint(template, sections, file, SAME_PARAMETERS())


def _placed(
    where: RunDir,
    config: JobConfig,
    layout: Layout,
    base: tuple[Step, gradient_log_position.Sections],
    place: LogPosition,
) -> tuple[int, Finding]:
    """(steps since the job was joined until the base, how that is known)."""
    first, last = logged_step_range(where, config, known_training(where).gradient_bytes)
    if place.later_checkpoint is not None:
        assert config.optimizer is not None
        cuts = config.model.cuts
        later = template_for(place.later_checkpoint, layout, config.optimizer, cuts=cuts)
        after = gradient_log_position.steps_until_checkpoint(where, config, layout, base, later)
        how = LEADS_TO_LATER_FILE(steps=later.step - base[0], file=place.later_checkpoint)
        if place.after in (None, after):
            return after, how
        raise StateError(STATED_ELSEWHERE(how=how, steps=after, stated=place.after))
    if place.after is None and known_training(where).start_unknown:
        return 0, AS_BEGUN_WITH()
    if place.after is None:
        raise StateError(PLACE_UNKNOWN(run=where.root, first=first, last=last))
    if not first - 1 <= place.after <= last:
        what = PLACE_NOT_LOGGED(run=where.root, first=first, last=last, after=place.after)
        raise StateError(what)
    return place.after, AS_STATED(place.after)


def await_taken(where: RunDir, request: str) -> None:
    """Waits until the updater took a base. Raises StateError if it did not within TAKEN_LIMIT_S."""
    if await_answer(where, request, TAKEN_LIMIT_S, "the base").refused is not None:
        raise StateError(BASE_REFUSED(run=where.root, events=where.events))
