"""`flowcheck restore` of several jobs: one file per job, each in the form of its own template,
all at one step.

Which job a trainer's checkpoint is of no name tells, and shapes may be alike: it is the one whose
replica had, at the checkpoint's step, the very same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from flowcheck.atomic_write import atomic_path_per_process
from flowcheck.errors import ConfigError, StateError, naming_file
from flowcheck.findings.chain_ends import NO_COMMON_STEP, STEPS_OF_JOB
from flowcheck.findings.finding import Finding
from flowcheck.ops.console_output import print_line
from flowcheck.ops.lifecycle.common_step import common_step, replica_steps, write_index
from flowcheck.ops.restore import step_lookup
from flowcheck.ops.restore.template_restore import fill_template, say_lacks
from flowcheck.replica.checkpoint import step_snapshot
from flowcheck.replica.optimizer import section_names
from flowcheck.replica.optimizer.param_groups import optimizer_numbering
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.state_file.digest_log import digests_at
from flowcheck.stages.job_state.model_layout import optimizer_in
from flowcheck.stages.run_directory.job_run_dirs import all_run_dirs
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.vault.audit.bitwise_audit import audit_digests
from flowcheck.vault.overwrite_guard import (
    INDEX,
    ProtectedPath,
    by_index,
    check_out,
    replacing_output,
)
from flowcheck.vault.trainer_checkpoint.checkpoint_template import load_template
from flowcheck.vault.trainer_checkpoint.flat_state import flat_state
from flowcheck.vault.trainer_checkpoint.template_fill import FillReport


@dataclass(frozen=True, slots=True)
class RestoredJob:
    """One job that was given back."""

    job: int
    template: Path
    file: Path
    filled: FillReport
    assumed: tuple[Finding, ...]


def is_multi_job(root: Path, checkpoint: Path | None) -> bool:
    """What is asked for is of a chain that follows several jobs."""
    return checkpoint is None and len(all_run_dirs(RunDir(root))) > 1


def run(
    root: Path,
    templates: Sequence[Path],
    out: Path,
    *,
    force: bool,
    as_json: bool,
    spared: Sequence[ProtectedPath] = (),
) -> int:
    """Writes a folder with a file for each job. Raises ConfigError, StateError where there is no
    step that all have, or a template is not of one job alone."""
    check_out(out, force=force, folder=True, spared=spared, listed=by_index)
    given = restore_all_jobs(root, templates, out, force=force, spared=spared)
    _print(given, out, as_json=as_json)
    return 0


def restore_all_jobs(
    root: Path,
    templates: Sequence[Path],
    out: Path,
    *,
    force: bool = False,
    spared: Sequence[ProtectedPath] = (),
) -> list[RestoredJob]:
    """As `run`; the folder is there whole, or as it was before."""
    runs = all_run_dirs(RunDir(root))
    if len(templates) != len(runs):
        named = ", ".join(map(str, templates))
        raise ConfigError("--template", named, right_number(len(templates), len(runs)))
    found = _found(runs)
    layouts = [one.snapshot.layout for one in found]
    of = _told_apart(runs, layouts, templates)
    given: list[RestoredJob] = []
    names: list[str] = []
    with (
        naming_file(out),
        replacing_output(
            out, force=force, folder=True, spared=spared, listed=by_index
        ) as make_room,
        atomic_path_per_process(out, folder=True) as place,
    ):
        for number, template in sorted(zip(of, templates, strict=True)):
            own, names = found[number], [*names, f"job-{number + 1}-{template.name}"]
            filled = fill_template(own, template, place / names[-1])
            assumed = (*own.assumed, *filled.assumed)
            given.append(RestoredJob(number + 1, template, out / names[-1], filled, assumed))
        same = {one.filled.step for one in given}
        step = same.pop() if len(same) == 1 else None
        write_index(place, runs[0], [place / name for name in names], step)
        make_room()
    return given


def right_number(given: int, jobs: int) -> str:
    """What to give where there are `jobs` replicas and as many templates as `given`."""
    checkpoints = f"{given} checkpoint{'s' * (given > 1)}"
    if jobs == 1:
        return f"{checkpoints}, and one job was followed: give one of it"
    return f"{checkpoints}, and {jobs} jobs were followed: give one of each (--template, each once)"


def _found(runs: Sequence[RunDir]) -> list[step_lookup.FoundStep]:
    """A step of every job: the newest that all rings of one training job have."""
    newest = [step_lookup.newest_step(own, settle=True) for own in runs]
    if not runs[0].settings().together:
        return newest
    if len({one.snapshot.step for one in newest}) == 1:
        return newest
    step = common_step(runs)
    if step is None:
        each = [
            STEPS_OF_JOB(job=n, steps=replica_steps(own) or one.snapshot.step)
            for n, (own, one) in enumerate(zip(runs, newest, strict=True), 1)
        ]
        raise StateError(NO_COMMON_STEP(each))
    return [
        replace(one, snapshot=step_snapshot.copy_snapshot(own.replica, optimizer_in(own), step))
        for own, one in zip(runs, newest, strict=True)
    ]


def _told_apart(
    runs: Sequence[RunDir], layouts: Sequence[Layout], templates: Sequence[Path]
) -> list[int]:
    """[template] the job it is of, from 0. Raises StateError where that is not told."""
    of = []
    for file in templates:
        fits = [n for n, own in enumerate(runs) if _is_of(own, layouts[n], file)]
        if len(fits) > 1:
            told = " and ".join(f"job {n + 1}" for n in fits)
            raise StateError(
                f"{file}: {told} had the same parameters at its step: give a checkpoint of a later "
                "one, at which they differ"
            )
        if not fits:
            raise StateError(
                f"{file}: no job's replica had its parameters at its step: it is of another job, "
                "or of a step that was not followed"
            )
        of += fits
    twice = [file for file, n in zip(templates, of, strict=True) if of.count(n) > 1]
    if twice:
        raise StateError(f"{' and '.join(map(str, twice))} are of one job: give one of each")
    return of


def _is_of(own: RunDir, layout: Layout, file: Path) -> bool:
    """Whether the job's replica was, bit for bit, what the file holds."""
    try:
        order = optimizer_numbering(optimizer_in(own), layout)
        template = load_template(file, layout, step_lookup.stated_names(layout), order=order)
        if not template.step:
            parameters = flat_state(template, layout, optimizer_in(own))[section_names.PARAMETERS]
            began = layout.memory_order(np.fromfile(own.weights, layout.stored_as))
            return parameters.tobytes() == began.tobytes()
        digests = digests_at(own.trace, template.step)
        if digests is None:
            return False
        return audit_digests(template, layout, optimizer_in(own), digests).passed
    except StateError:
        return False


def _print(given: Sequence[RestoredJob], out: Path, *, as_json: bool) -> None:
    if as_json:
        told = [
            {
                "job": one.job,
                "step": one.filled.step,
                "out": str(one.file),
                "template": str(one.template),
                "assumed": one.assumed,
                "not_full": one.filled.not_full,
                "older": one.filled.older,
                "untold": one.filled.untold,
            }
            for one in given
        ]
        print(msgspec.json.encode({"out": str(out), "jobs": told}).decode())
        return
    for one in given:
        print_line(
            f"{one.file}: step {one.filled.step} of job {one.job}, in the form of {one.template}"
        )
        say_lacks(one.filled)
        for finding in one.assumed:
            print_line(f"  assumed: {finding}")
    print_line(f"{out / INDEX}: which addresses and queue pairs each of them is of")
