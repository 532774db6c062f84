"""`flowcheck base`: gives a running chain the trainer's checkpoint that its replica has to
start from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from flowcheck.config import JobConfig
from flowcheck.errors import ConfigError, StateError
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
    OF_JOB,
    OF_SEVERAL_JOBS,
    OF_WHICH_JOB_OPEN,
    PLACE_NOT_LOGGED,
    PLACE_UNKNOWN,
    REPLAY_HAS_ENDED,
    REPLAY_WAS_KILLED,
    SAME_PARAMETERS,
    START_WAS_SEEN,
    STATE_KNOWN,
    STATED_ELSEWHERE,
)
from flowcheck.findings.catalog.refused_commands import LATER_CHECKPOINT_OR_JOB
from flowcheck.findings.finding import Entry, Finding
from flowcheck.ops.console_output import print_line
from flowcheck.ops.trainer_checkpoint import gradient_log_position
from flowcheck.ops.trainer_checkpoint.audit_command import append_base_line
from flowcheck.ops.trainer_checkpoint.replica_reset import replace_with_checkpoint
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
from flowcheck.stages.run_directory.job_run_dirs import all_run_dirs
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


def run(root: Path, file: Path, *, place: LogPosition = NO_POSITION, as_json: bool) -> int:
    """Gives a base to a running chain, waits until its updater has accepted it, and prints a
    report. Returns the exit code.

    Raises ConfigError if there is no run. Raises StateError if no job waits for a base, if the file
    is not of the step the job began with, if the base's place in the log of a job joined midstream
    is unknown, or if the updater did not accept the base within TAKEN_LIMIT_S.
    """
    where = RunDir(root)
    if where.settings().all_shards and len(runs := all_run_dirs(where)) > 1:
        return _run_of_shards(runs, file, place, as_json=as_json)
    if _followed(where, place):
        step, told = replace_with_checkpoint(where, file)
        if as_json:
            result = {"step": step, "file": str(file), "run": str(root), "told": told}
            print(json.dumps(msgspec.to_builtins(result)))
        else:
            print_line(f"{file}: {told}")
        return 0
    where, found = apply_base(where, file, place)
    step = found.template.step
    if as_json:
        print(json.dumps({"step": step, "file": str(file), "run": str(where.root)}))
    else:
        of = "" if where.root == root else f" of {where.root}"
        print_line(
            f"step {step} of {file} is the base{of}: {found.why}; the steps logged since are being "
            "applied"
        )
    return 0


def _run_of_shards(runs: Sequence[RunDir], file: Path, place: LogPosition, *, as_json: bool) -> int:
    """Gives each shard its part of a checkpoint of the whole model: as its base, or in place of the
    state that it has. All are proved before the first one is given any."""
    known = [_knows_state(own) and place == NO_POSITION for own in runs]
    proved = [
        (own, _of_one(own, file, place))
        for own, is_known in zip(runs, known, strict=True)
        if not is_known
    ]
    requests = [(own, base, _put(own, base)) for own, base in proved]
    told = [
        replace_with_checkpoint(own, file)
        for own, is_known in zip(runs, known, strict=True)
        if is_known
    ]
    for own, base, request in requests:
        _wait(own, request)
        append_base_line(own, base.template.step, file)
    step = requests[0][1].template.step if requests else told[0][0]
    why = requests[0][1].why if requests else told[0][1]
    if as_json:
        result = {"step": step, "file": str(file), "run": str(runs[0].root), "shards": len(runs)}
        print(json.dumps(result))
    else:
        print_line(f"step {step} of {file} is the base of all {len(runs)} shards: {why}")
    return 0


def _followed(where: RunDir, place: LogPosition) -> bool:
    """Whether the run has a single job whose state is known, so that the file replaces the
    replica's state."""
    where.settings()
    return len(all_run_dirs(where)) < 2 and _knows_state(where) and place == NO_POSITION


def _knows_state(own: RunDir) -> bool:
    return own.replica.exists() and incarnation_of(own).step is not None


def apply_base(
    where: RunDir, file: Path, place: LogPosition = NO_POSITION
) -> tuple[RunDir, BaseCheckpoint]:
    """Gives a base to a running chain, without a report. Returns (the job's run directory, the
    base). Raises as `run` does."""
    where.settings()
    runs = all_run_dirs(where)
    own, found = (where, _of_one(where, file, place)) if len(runs) < 2 else _of(runs, file, place)
    _wait(own, _put(own, found))
    append_base_line(own, found.template.step, file)
    return own, found


def _of(runs: Sequence[RunDir], file: Path, place: LogPosition) -> tuple[RunDir, BaseCheckpoint]:
    """The job of several that a checkpoint is the base of, found by the checkpoint's bytes."""
    if place.later_checkpoint is None and place.after is not None:
        right = LATER_CHECKPOINT_OR_JOB(runs[0].root)
        raise ConfigError("--after", place.after, right)
    found: list[tuple[RunDir, BaseCheckpoint]] = []
    why: list[Finding] = []
    for number, own in enumerate(runs, 1):
        try:
            found.append((own, _of_one(own, file, place)))
        except StateError as error:
            why.append(OF_JOB(number=number, why=error.finding))
    if len(found) == 1:
        return found[0]
    reasons = (OF_SEVERAL_JOBS(),) if found else tuple(why)
    raise StateError(OF_WHICH_JOB_OPEN(file=file, reasons=reasons, run=runs[0].root))


def _of_one(where: RunDir, file: Path, place: LogPosition) -> BaseCheckpoint:
    root, config = where.root, where.settings()
    if not where.replica.exists():
        raise StateError(_no_job(where))
    if incarnation_of(where).step is not None:
        raise StateError(STATE_KNOWN(root))
    if stage_at(Position.STEP).name not in where.stage_pids():
        raise StateError(_of_kind(where, NO_UPDATER_OF_REPLAY, NO_UPDATER))
    return verified_base(where, config, file, place)


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


def submit_base(
    where: RunDir, config: JobConfig, file: Path, place: LogPosition = NO_POSITION
) -> tuple[CheckpointTemplate, Finding]:
    """Submits a checkpoint to the updater as the base, after `verified_base`. Returns (template,
    the evidence that it is the base)."""
    found = verified_base(where, config, file, place)
    _put(where, found)
    return found.template, found.why


def _put(where: RunDir, base: BaseCheckpoint) -> str:
    """Submits a base to the updater. Returns the request's name."""
    step, source = base.template.step, str(base.file)
    store_checkpoint_buffers(where, base.template.model, step)
    return submit_request(where, RequestKind.BASE, step, base.sections, source, after=base.after)


def verified_base(
    where: RunDir, config: JobConfig, file: Path, place: LogPosition = NO_POSITION
) -> BaseCheckpoint:
    """The base from a checkpoint, after proof that the job began with its parameters, or that its
    place in the log is known. Raises StateError if neither is true."""
    assert config.optimizer is not None
    layout, _ = peek_versions(where.replica)
    template = template_for(file, layout, config.optimizer, cuts=config.model.cuts)
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


def _wait(where: RunDir, request: str) -> None:
    if await_answer(where, request, TAKEN_LIMIT_S, "the base").refused is not None:
        raise StateError(BASE_REFUSED(run=where.root, events=where.events))
