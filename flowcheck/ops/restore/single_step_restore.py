"""Writes one step: in a named format, or into a copy of a checkpoint that the trainer wrote."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog.file_audits import RESTORE_DOUBTED
from flowcheck.findings.catalog.hybrid_jobs import ONE_SHARD, SHARD_NOT_WHOLE
from flowcheck.findings.catalog.refused_restores import TEMPLATE_IS_A_FOLDER
from flowcheck.findings.finding import Finding
from flowcheck.ops.console_output import file_growth_bar
from flowcheck.ops.lifecycle.run_outcome import last_step
from flowcheck.ops.restore.restore_request import RestoreRequest, StepSource
from flowcheck.ops.restore.step_lookup import FoundStep, found_step
from flowcheck.replica.checkpoint_files.manifest import Manifest
from flowcheck.replica.optimizer.param_groups import ParamGroupSettings
from flowcheck.stages.job_state.audit_history import audit_history_of, doubt_among
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step
from flowcheck.vault.audit.param_group_check import check_groups
from flowcheck.vault.checkpoint_formats.checkpoint_contents import CheckpointContents
from flowcheck.vault.checkpoint_formats.checkpoint_io import DEFAULT_FILE_FORMAT, write
from flowcheck.vault.checkpoint_formats.format_registry import SHARD_FORMATS
from flowcheck.vault.overwrite_guard import OutputTarget
from flowcheck.vault.trainer_checkpoint import template_fill
from flowcheck.vault.trainer_checkpoint.template_fill import FillReport


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredStep:
    """One output of `flowcheck restore`."""

    out: Path
    source: str
    """Name of the step's source in messages."""
    written: Manifest | FillReport
    """The output's manifest, or the report on a filled template, which has no manifest."""
    template: Path | None = None
    job: int | None = None
    """Number of the job, from 1, if there are several; else None."""
    form: str = DEFAULT_FILE_FORMAT
    """Name of the format; a filled template is a file of torch.save's."""
    size_bytes: int
    """Of all files written."""
    took_s: float
    """Seconds that reading and writing the step took."""
    auditable: bool = False
    """Whether `flowcheck audit` can compare the step with a file: a run applied it."""
    audited: Step | None = None
    """The run's last step that an audit found equal, before the first that one did not; None: there
    is none."""
    doubt: Finding | None = None
    """Why the step is not proved exact; None: no audit says so."""
    newer_tainted: tuple[Step, ...] = ()
    """Newer steps that were not taken because elements of them are tainted."""
    later: Finding | None = None
    """What a folder of gradients holds behind the step, or why it has nothing; None: nothing is
    known."""


def restore_step(request: RestoreRequest, source: StepSource, target: OutputTarget) -> RestoredStep:
    """Writes one step from a source on this machine. Raises ConfigError or StateError if there is
    no such step or it does not fit, OSError if there is no room."""
    target.check()
    template = request.templates[0] if request.templates else None
    if template is not None and template.is_dir():
        raise ConfigError("--template", str(template), TEMPLATE_IS_A_FOLDER())
    chain, form = source.chain, request.form
    with found_step(source, in_place=template is None) as here:
        found = here.with_files(request.also)
        refuse_doubted(found, despite_audit=request.despite_audit)
        refuse_shard(found, None if template is not None else form)
        audited = audit_history_of(chain).equal_step if chain is not None else None
        auditable = chain is not None and _applied(chain, found.snapshot.step)
        if template is not None:
            done = fill_and_write(found, template, target, target.path)
            return replace(done, auditable=auditable, audited=audited)
        assert form is not None, "asked before"
        contents = found.contents(form, request.options)
        begun_s = time.monotonic()
        with file_growth_bar(target.path, _bytes(contents)):
            own = (contents, target.path, form, request.options)
            written = write(*own, force=target.force, protected=target.protected)
        return RestoredStep(
            out=target.path,
            source=found.where,
            written=written,
            form=written.form,
            size_bytes=sum(file.bytes for file in written.files.values()),
            took_s=time.monotonic() - begun_s,
            auditable=auditable,
            audited=audited,
            newer_tainted=found.newer_tainted,
            later=found.later,
            doubt=doubt_among(found.assumed),
        )


def refuse_doubted(found: FoundStep, *, despite_audit: bool) -> None:
    """Raises StateError if an audit found the replica different before this step, unless the user
    restores it all the same."""
    doubt = doubt_among(found.assumed)
    if doubt is not None and not despite_audit:
        raise StateError(RESTORE_DOUBTED(step=found.snapshot.step, why=doubt))


def refuse_shard(found: FoundStep, form: str | None) -> None:
    """Raises StateError if the step is one shard of a model, and the form is one of whole models.
    form: name of the format; None: a filled template."""
    shard = next((one for one in found.assumed if one.is_any_of(ONE_SHARD)), None)
    if shard is not None and form not in SHARD_FORMATS:
        named = form or "a template"
        raise StateError(SHARD_NOT_WHOLE(form=named, formats=SHARD_FORMATS, **shard.arguments))


def _applied(chain: RunDir, step: Step) -> bool:
    """Whether the run itself applied the step: another run may have saved it in the same folder."""
    last = last_step(chain)
    return last is not None and step <= int(str(last["step"]))


def fill_and_write(
    found: FoundStep, template: Path, target: OutputTarget, out: Path, job: int | None = None
) -> RestoredStep:
    """`write_filled_template`, and the report on it. out: where the file will be; job: its number,
    if there are several."""
    begun_s = time.monotonic()
    written = write_filled_template(found, template, target)
    return RestoredStep(
        out=out,
        source=found.where,
        written=written,
        template=template,
        job=job,
        size_bytes=target.path.stat().st_size,
        took_s=time.monotonic() - begun_s,
        newer_tainted=found.newer_tainted,
        later=found.later,
        doubt=doubt_among(found.assumed),
    )


def write_filled_template(found: FoundStep, template: Path, target: OutputTarget) -> FillReport:
    """Writes a step in the form of the trainer's checkpoint `template`. Raises StateError if the
    template does not fit or has other optimizer settings than the job file, ConfigError if the
    target may not be replaced."""
    taken, pattern = found.snapshot, found.template(template)
    settings = (
        ParamGroupSettings(taken.optimizer, taken.layout) if not taken.parameters_only else None
    )
    rate = settings.rate if settings is not None else lambda step: 0.0
    if settings is not None:
        check_groups(pattern, taken.optimizer, settings, str(template))
    filled = template_fill.fill_template(pattern, taken, rate, settings, found.observed_files)
    template_fill.write_torch_file(pattern.tree, target)
    return replace(filled, assumed=(*found.assumed, *filled.assumed))


def _bytes(contents: CheckpointContents) -> int:
    """The number of bytes of the step's tensors, a tied weight counted once."""
    states = contents.named_states.values()
    held = [value for state in states for value in state.values() if hasattr(value, "nbytes")]
    return sum(tensor.nbytes for tensor in (*contents.untied.values(), *held))
