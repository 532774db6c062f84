"""`flowcheck base`: gives a running chain the trainer's checkpoint that its replica has to
start from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec

from flowcheck.config import JobConfig
from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog.base_checkpoints import (
    OF_JOB,
    OF_SEVERAL_JOBS,
    OF_WHICH_JOB_OPEN,
)
from flowcheck.findings.catalog.refused_commands import LATER_CHECKPOINT_OR_JOB
from flowcheck.findings.finding import Finding
from flowcheck.ops.console_output import print_line
from flowcheck.ops.trainer_checkpoint.audit_command import append_base_line
from flowcheck.ops.trainer_checkpoint.base_of_shards import base_shards
from flowcheck.ops.trainer_checkpoint.base_proof import (
    NO_POSITION,
    BaseCheckpoint,
    LogPosition,
    await_taken,
    knows_state,
    proved_base,
    submit_proved,
    verified_base,
)
from flowcheck.ops.trainer_checkpoint.replica_reset import replace_with_checkpoint
from flowcheck.stages.run_directory.job_run_dirs import all_run_dirs
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.vault.trainer_checkpoint.checkpoint_template import CheckpointTemplate


def run(root: Path, file: Path, *, place: LogPosition = NO_POSITION, as_json: bool) -> int:
    """Gives a base to a running chain, waits until its updater has accepted it, and prints a
    report. Returns the exit code.

    Raises ConfigError if there is no run. Raises StateError if no job waits for a base, if the file
    is not of the step the job began with, if the base's place in the log of a job joined midstream
    is unknown, or if the updater did not accept the base within TAKEN_LIMIT_S.
    """
    where = RunDir(root)
    if where.settings().all_shards and len(runs := all_run_dirs(where)) > 1:
        return base_shards(runs, file, place, as_json=as_json)
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


def _followed(where: RunDir, place: LogPosition) -> bool:
    """Whether the run has a single job whose state is known, so that the file replaces the
    replica's state."""
    where.settings()
    return len(all_run_dirs(where)) < 2 and knows_state(where) and place == NO_POSITION


def apply_base(
    where: RunDir, file: Path, place: LogPosition = NO_POSITION
) -> tuple[RunDir, BaseCheckpoint]:
    """Gives a base to a running chain, without a report. Returns (the job's run directory, the
    base). Raises as `run` does."""
    where.settings()
    runs = all_run_dirs(where)
    own, found = (
        (where, proved_base(where, file, place)) if len(runs) < 2 else _of(runs, file, place)
    )
    await_taken(own, submit_proved(own, found))
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
            found.append((own, proved_base(own, file, place)))
        except StateError as error:
            why.append(OF_JOB(number=number, why=error.finding))
    if len(found) == 1:
        return found[0]
    reasons = (OF_SEVERAL_JOBS(),) if found else tuple(why)
    raise StateError(OF_WHICH_JOB_OPEN(file=file, reasons=reasons, run=runs[0].root))


def submit_base(
    where: RunDir, config: JobConfig, file: Path, place: LogPosition = NO_POSITION
) -> tuple[CheckpointTemplate, Finding]:
    """Submits a checkpoint to the updater as the base, after `verified_base`. Returns (template,
    the evidence that it is the base)."""
    found = verified_base(where, config, file, place)
    submit_proved(where, found)
    return found.template, found.why
