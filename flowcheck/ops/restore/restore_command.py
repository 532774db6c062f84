"""`flowcheck restore`: writes the requested checkpoints and reports what was written."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec

from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog.refused_restores import (
    JOB_OF_A_RUN,
    NEWER_TAINTED,
    NOT_WITH_OPTION,
    ONE_TEMPLATE,
    URL_NAMES_JOB,
)
from flowcheck.findings.finding import Finding
from flowcheck.findings.named_run import named_run, run_option
from flowcheck.ops.console_output import print_line, printable
from flowcheck.ops.restore.multi_job_restore import (
    RestoredSteps,
    is_multi_job,
    restore_all_jobs,
)
from flowcheck.ops.restore.remote_checkpoint import checkpoint_of
from flowcheck.ops.restore.restore_output import output_of, protected_paths_of
from flowcheck.ops.restore.restore_request import RestoreRequest, StepSource, missing_form
from flowcheck.ops.restore.single_step_restore import RestoredStep, restore_step
from flowcheck.ops.restore.step_lookup import step_on_stores, url_of_store
from flowcheck.ops.watch.taint_table import print_tainted_models
from flowcheck.replica.checkpoint_files.manifest import Manifest
from flowcheck.stages.run_directory.job_run_dirs import job_run_root
from flowcheck.step_numbers import Step, step_ranges
from flowcheck.vault.checkpoint_formats.format_registry import format_named
from flowcheck.vault.overwrite_guard import INDEX, ProtectedPath
from flowcheck.vault.page_cache_warmup import warm_page_cache
from flowcheck.vault.trainer_checkpoint.template_fill import FillReport


def run(request: RestoreRequest, *, as_json: bool) -> int:
    """Writes the requested checkpoints and prints a report. Returns the exit code. Raises as
    `restore` does."""
    done = _restored(request)
    outputs = done.outputs
    several = outputs[0].job is not None
    if as_json:
        told = [_as_dict(one) for one in outputs]
        whole = {"out": str(request.output), "jobs": told}
        result = whole | {"tainted_models": done.tainted_models} if several else told[0]
        print(msgspec.json.encode(result).decode())
    else:
        for one in outputs:
            _print(one)
        if several:
            print_line(
                f"{request.output / INDEX}: which addresses and queue pairs each of them is of"
            )
            if newer := {step for one in outputs for step in one.newer_tainted}:
                _print_newer(sorted(newer))
            print_tainted_models(done.tainted_models)
    if request.warm:
        size, why = warm_page_cache(request.output)
        if not as_json:
            print_line(f"  {why or f'{size >> 20} MiB of it are being read into memory'}")
    return 0


def restore(request: RestoreRequest) -> Sequence[RestoredStep]:
    """Writes the requested step: one checkpoint, or one for each job of a chain. Raises ConfigError
    or StateError if there is no such step or it does not fit, OSError if there is no room."""
    return _restored(request).outputs


def _restored(request: RestoreRequest) -> RestoredSteps:
    request.check()
    protected = protected_paths_of(request)  # of the paths as given, before they lead elsewhere
    with _local_source(request, protected) as source:
        several = is_multi_job(source) or (source.job is None and len(request.templates) > 1)
        if several:
            target = output_of(request, several=True, protected=protected)
            return restore_all_jobs(request, source, target)
        _check_form(request)
        own = restore_step(request, source, output_of(request, protected=protected))
        return RestoredSteps((own,))


@contextmanager
def _local_source(
    request: RestoreRequest, protected: tuple[ProtectedPath, ...]
) -> Iterator[StepSource]:
    """Yields the source as a path on this machine: downloads a URL, and replaces a named job by its
    run directory."""
    source = request.source
    if source.url is None:
        if source.job is not None:
            if source.checkpoint is not None:
                raise ConfigError("--job", source.job, JOB_OF_A_RUN())
            assert source.run is not None
            source = replace(source, run=job_run_root(source.run, source.job))
        source = _of_stores(source)
    if source.url is not None:
        if source.checkpoint is not None:
            raise ConfigError("--from", source.url, NOT_WITH_OPTION("--checkpoint"))
        if source.job is not None:
            raise ConfigError("--job", source.job, URL_NAMES_JOB())
        output_of(request, protected=protected).check()
        with checkpoint_of(source, download_beside=request.output) as there:
            where = f"{source.url.rstrip('/')}/{there.folder.name}"
            yield replace(
                source, url=None, checkpoint=there.folder, shown_as=where, doubts=there.doubts
            )
        return
    yield source


def _of_stores(source: StepSource) -> StepSource:
    """A folder that is one of several stores, or a run that left its step there, as a URL. Raises
    StateError where the folder names another step than the one that is wanted."""
    found, chain = None, source.chain
    if source.checkpoint is not None:
        found = url_of_store(source.checkpoint, source.step)
    elif chain is not None and chain.config.is_file():
        found = step_on_stores(chain, source.step, allow_tainted=source.allow_tainted)
        source = source if found is None else replace(source, run=None, job=None)
    if found is None:
        return source
    url, step = found
    return replace(source, url=url, checkpoint=None, step=step)


def _check_form(request: RestoreRequest) -> None:
    """Raises ConfigError, StateError if the form to write a step in is missing or ambiguous."""
    if request.form is not None:
        if request.templates:
            raise ConfigError("--format", request.form, NOT_WITH_OPTION("--template"))
        format_named(request.form)
    elif not request.templates:
        raise StateError(missing_form())
    elif len(request.templates) > 1:
        raise ConfigError("--template", len(request.templates), ONE_TEMPLATE())


def _as_dict(done: RestoredStep) -> dict[str, Any]:
    """The report on a restored step, for --json: the same keys for every form, and more of a filled
    template."""
    own = done.written
    told = {
        "step": own.step,
        "format": done.form,
        "out": str(done.out),
        "from": done.source,
        "bytes": done.size_bytes,
        "seconds": round(done.took_s, 3),
        "assumed": own.assumed,
        "not_full": own.resume_caveats,
        "older": own.older,
        "audited": done.audited,
        "newer_tainted": done.newer_tainted,
        "later": done.later,
        "doubt": done.doubt,
    }
    if isinstance(own, FillReport):
        told |= {"replaced": own.replaced, "kept": own.unchanged, "untold": own.untold}
        told["template"] = {"file": str(done.template), "step": own.template_step}
    if done.job is not None:
        told |= {"job": done.job, "template": str(done.template)}
    return told


def _print(done: RestoredStep) -> None:
    own, where = done.written, done.source if done.job is None else f"job {done.job}"
    form = f"as {done.form}" if done.template is None else f"in the form of {done.template}"
    print_line(f"{done.out}: step {own.step} of {where}, {form}: {_rate(done)}")
    if isinstance(own, Manifest):
        files, tensors = len(own.files), len(own.tensors)
        named = "1 file" if files == 1 else f"{files} files"
        print_line(f"  {named}, {tensors} tensors; checksums were computed while they were written")
        print_line(
            f"  `flowcheck verify {shlex.quote(str(done.out))}` reads them back and compares"
        )
    print_parts_of_other_steps(own)
    if done.newer_tainted and done.job is None:
        _print_newer(done.newer_tainted)
    if done.later is not None:
        _print_later(done.later)
    if isinstance(own, FillReport) and done.job is None:
        for part in own.replaced:
            print_line(f"  now of step {own.step}: {part}")
        for part in own.unchanged:
            print_line(f"  as the template has it: {part}")
    for finding in own.assumed:
        print_line(f"  {finding}" if finding == done.doubt else f"  assumed: {finding}")
    if done.auditable and done.audited is None:
        audit = f"flowcheck audit FILE{run_option(named_run())}"
        print_line(f"  never audited: `{audit}` compares it with FILE of the trainer")


def _print_newer(tainted: Sequence[Step]) -> None:
    newer = NEWER_TAINTED(step_ranges(tainted))
    print_line(f"  {newer}")
    print_line(f"  {newer.remedy}")


def _print_later(later: Finding) -> None:
    """On stderr, where who reads stdout alone sees it too."""
    for line in filter(None, (str(later), later.cause, later.remedy)):
        print(f"  {printable(line)}", file=sys.stderr)


def _rate(done: RestoredStep) -> str:
    unit, size = ("GB", 1e9) if done.size_bytes >= 1e8 else ("MB", 1e6)
    many = done.size_bytes / size
    return f"{many:.2f} {unit} in {done.took_s:.1f} s, {many / done.took_s:.2f} {unit}/s"


def print_parts_of_other_steps(written: Manifest | FillReport) -> None:
    """Prints the parts of an output that are not from its step."""
    if written.resume_caveats:
        print_line(f"  NOT a full resume: {'; '.join(map(str, written.resume_caveats))}")
    untold = written.untold if isinstance(written, FillReport) else ()
    for name, of in written.older.items():
        if name not in untold:
            print_line(f"  of step {of}: {name}")
