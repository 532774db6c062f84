"""`flowcheck restore` of several jobs: one file per job, each in the form of its own template, all
at one step.

No name shows which job a template belongs to, and shapes may be equal. It belongs to the job whose
replica had the same bytes at the template's step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog.how_chains_end import NO_COMMON_STEP, STEPS_OF_JOB
from flowcheck.findings.catalog.refused_restores import (
    ALL_TAINTED,
    CHECKPOINT_OF_ONE_JOB,
    FILES_FOR_JOBS,
    NO_JOBS_PARAMETERS,
    OF_ONE_JOB,
    ONE_FILE_FOR_JOBS,
    ONE_JOB_FOLLOWED,
    SAME_PARAMETERS,
    TEMPLATE_EACH,
    WHICH_JOB,
    WHICH_JOB_AS,
)
from flowcheck.findings.finding import Finding
from flowcheck.ops.lifecycle.common_step_of_jobs import write_index
from flowcheck.ops.restore.restore_request import RestoreRequest, StepSource, missing_form
from flowcheck.ops.restore.shards_restore import (
    check_form,
    refuse_other_lives,
    steps_at,
    write_all_shards,
)
from flowcheck.ops.restore.single_step_restore import RestoredStep, fill_and_write, refuse_doubted
from flowcheck.ops.restore.step_lookup import FoundStep, newest_step, untainted
from flowcheck.ops.watch.state.held_steps import at_hand, common_steps, newest_exact_step
from flowcheck.replica.model_taint import ModelTaint, model_part, model_taint
from flowcheck.replica.optimizer import state_section_names
from flowcheck.replica.state_file.digest_log import digests_at
from flowcheck.replica.taint import seen_of_weights
from flowcheck.stages.job_state.model_layout import optimizer_of_run
from flowcheck.stages.job_state.training_facts import known_training
from flowcheck.stages.replica_update.step_log import tainted_parameters_at
from flowcheck.stages.run_directory.job_run_dirs import all_run_dirs, job_names
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.vault.audit.bitwise_audit import audit_digests
from flowcheck.vault.overwrite_guard import OutputTarget, new_output
from flowcheck.vault.trainer_checkpoint.flat_arrays_of_checkpoint import flat_state


@dataclass(frozen=True, slots=True)
class RestoredSteps:
    """The outputs of one restore, one for each job."""

    outputs: tuple[RestoredStep, ...]
    tainted_models: tuple[ModelTaint, ...] = ()
    """Of several jobs, the models with tainted elements in these outputs: rings of one training job
    have one model."""


def is_multi_job(source: StepSource) -> bool:
    """Whether the source is a run with several jobs and names none of them."""
    return source.job is None and source.chain is not None and len(all_run_dirs(source.chain)) > 1


def restore_all_jobs(
    request: RestoreRequest, source: StepSource, target: OutputTarget
) -> RestoredSteps:
    """Writes a folder with a file for each job, atomically. Raises ConfigError or StateError if an
    option is for a single job, if there is no step that all jobs have, or if a template does not
    belong to exactly one job."""
    if _is_of_all_shards(source):
        return RestoredSteps((_restore_shards(request, source, target),))
    runs = _runs(request, source)
    target.check()
    templates = request.templates
    if len(templates) != len(runs):
        named = ", ".join(map(str, templates))
        raise ConfigError("--template", named, template_count_finding(len(templates), len(runs)))
    found = [
        untainted(one, allowed=source.allow_tainted)
        for one in _found(runs, allow_tainted=source.allow_tainted)
    ]
    for one in found:
        refuse_doubted(one, despite_audit=request.despite_audit)
    of = _told_apart(runs, found, templates)
    done: list[RestoredStep] = []
    with new_output(target) as (place, _):
        for number, template in sorted(zip(of, templates, strict=True)):
            name = f"job-{number + 1}-{template.name}"
            file = OutputTarget(path=place / name, folder=False)
            out = target.path / name
            done.append(fill_and_write(found[number], template, file, out, number + 1))
        same = {one.written.step for one in done}
        step = same.pop() if len(same) == 1 else None
        write_index(place, runs[0], [place / one.out.name for one in done], step)
    return RestoredSteps(tuple(done), _tainted(runs, found))


def _is_of_all_shards(source: StepSource) -> bool:
    chain = source.chain
    return chain is not None and chain.config.exists() and chain.settings().all_shards


def _restore_shards(
    request: RestoreRequest, source: StepSource, target: OutputTarget
) -> RestoredStep:
    """All shards of a model as one checkpoint."""
    assert source.chain is not None
    runs = all_run_dirs(source.chain)
    check_form(request, len(runs))
    refuse_other_lives(runs)
    target.check()
    found = (
        _found(runs, allow_tainted=source.allow_tainted)
        if source.step is None
        else steps_at(runs, source)
    )
    return write_all_shards(request, target, runs, found)


def _tainted(runs: Sequence[RunDir], found: Sequence[FoundStep]) -> tuple[ModelTaint, ...]:
    """The models of which the steps that were found have tainted elements."""
    if not any(one.snapshot.tainted for one in found):
        return ()
    names = job_names(runs[0].root)
    parts = [
        model_part(name, one.snapshot.step, one.snapshot.layout, one.snapshot.tainted)
        for name, one in zip(names, found, strict=True)
    ]
    together = runs[0].settings().together
    of_model = (
        [(runs, parts)] if together else [([r], [p]) for r, p in zip(runs, parts, strict=True)]
    )
    models = (
        model_taint(own, newest_exact_step(those))
        for those, own in of_model
        if any(part.tensors for part in own)
    )
    return tuple(models)


def _runs(request: RestoreRequest, source: StepSource) -> list[RunDir]:
    """The run directories of all jobs. Raises ConfigError or StateError for an option that is for a
    single job."""
    if source.checkpoint is not None:
        raise ConfigError("--checkpoint", str(source.checkpoint), CHECKPOINT_OF_ONE_JOB())
    assert source.chain is not None
    held = " or ".join(job_names(source.chain.root))
    if request.form is not None:
        raise ConfigError("--format", request.form, WHICH_JOB_AS(held))
    if not request.templates:
        raise StateError(TEMPLATE_EACH(missing=missing_form(), jobs=held))
    which = WHICH_JOB(held)
    if request.also:
        raise ConfigError("--also", str(request.also[0]), which)
    if source.step is not None:
        raise ConfigError("--step", source.step, which)
    return all_run_dirs(source.chain)


def template_count_finding(given: int, jobs: int) -> Finding:
    """The finding that the number of templates is wrong. given: templates; jobs: jobs of the
    run."""
    if jobs == 1:
        return ONE_JOB_FOLLOWED(given)
    return ONE_FILE_FOR_JOBS(jobs) if given == 1 else FILES_FOR_JOBS(files=given, jobs=jobs)


def _found(runs: Sequence[RunDir], *, allow_tainted: bool) -> list[FoundStep]:
    """A step of every job: the newest that all rings of one training job have, without tainted
    elements in any of them unless `allow_tainted`."""
    newest = [newest_step(own, settle=True, allow_tainted=allow_tainted) for own in runs]
    if not runs[0].settings().together:
        return newest
    if len({one.snapshot.step for one in newest}) == 1:
        return newest
    held = [at_hand(own) for own in runs]
    every = common_steps(held, exact=False)
    steps = every if allow_tainted else common_steps(held, exact=True)
    if every and not steps:
        raise StateError(ALL_TAINTED(run=runs[0].port.root, steps=every))
    if not steps:
        each = [
            STEPS_OF_JOB(job=n, steps=tuple(sorted(own.every)) or one.snapshot.step)
            for n, (own, one) in enumerate(zip(held, newest, strict=True), 1)
        ]
        raise StateError(NO_COMMON_STEP(each))
    step = steps[-1]
    newer = tuple(of for of in every if of > step)
    taken = [newest_step(own, settle=False, step=step, allow_tainted=allow_tainted) for own in runs]
    return [replace(one, newer_tainted=newer) for one in taken]


def _told_apart(
    runs: Sequence[RunDir], found: Sequence[FoundStep], templates: Sequence[Path]
) -> list[int]:
    """[template] the number of its job, from 0. Raises StateError if a template fits no job or
    several, or if two templates fit the same job."""
    of = []
    for file in templates:
        fits = [n for n, own in enumerate(runs) if _is_of(own, found[n], file)]
        if len(fits) > 1:
            raise StateError(SAME_PARAMETERS(file=file, jobs=[n + 1 for n in fits]))
        if not fits:
            raise StateError(NO_JOBS_PARAMETERS(file))
        of += fits
    twice = [file for file, n in zip(templates, of, strict=True) if of.count(n) > 1]
    if twice:
        raise StateError(OF_ONE_JOB([str(file) for file in twice]))
    return of


def _is_of(own: RunDir, found: FoundStep, file: Path) -> bool:
    """Whether the job's replica at the file's step was equal to the file, bit for bit."""
    layout = found.snapshot.layout
    try:
        template = found.template(file)
        if not template.step:
            parameters = flat_state(template, layout, optimizer_of_run(own))[
                state_section_names.PARAMETERS
            ]
            began = layout.memory_order(np.fromfile(own.weights, layout.numpy_dtype))
            seen = seen_of_weights(layout, known_training(own).weights_missing)
            return parameters[seen].tobytes() == began[seen].tobytes()
        digests = digests_at(own.trace, template.step)
        if digests is None:
            return False
        tainted = tainted_parameters_at(own, template.step, layout)
        return audit_digests(template, layout, optimizer_of_run(own), digests, tainted).passed
    except StateError:
        return False
