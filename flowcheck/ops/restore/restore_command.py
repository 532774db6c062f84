"""`flowcheck restore`: checks the options and chooses between a template, a named format, and
several jobs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from flowcheck.errors import ConfigError, StateError
from flowcheck.ops.console_output import print_line
from flowcheck.ops.restore import format_restore, multi_job_restore, template_restore
from flowcheck.ops.restore.protected_paths import protected_paths_of
from flowcheck.ops.restore.remote_checkpoint import checkpoint_of
from flowcheck.stages.run_directory.job_run_dirs import job_names, job_run_root
from flowcheck.step_numbers import Step
from flowcheck.vault.checkpoint_formats import FORMATS
from flowcheck.vault.checkpoint_formats.checkpoint_contents import FormatOptions
from flowcheck.vault.overwrite_guard import ProtectedPath, check_out
from flowcheck.vault.page_cache_warmup import warm

FORM_MISSING = (
    "the form of what is to be written is missing: --template FILE, a checkpoint the trainer wrote "
    f"in this job, or --format NAME, one of {', '.join(FORMATS)}"
)
OF_A_FORM = {
    "keys": ("--keys", ("torch", "dcp")),
    "shard_bytes": ("--shard-mb", ("huggingface",)),
    "ranks": ("--ranks", ("deepspeed",)),
    "stage": ("--zero", ("deepspeed",)),
}
"""Options that not all forms have: how they are given, and whose they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRequest:
    """The options, as they were given."""

    out: Path
    templates: tuple[Path, ...]
    form: str | None
    options: FormatOptions
    also: tuple[Path, ...] = ()
    """More checkpoints of the trainer's, of other steps."""
    run: Path
    job: str | None
    """Of several: its number, or its name."""
    step: Step | None
    """None: the newest."""
    checkpoint: Path | None
    source: str | None
    """A URL."""
    token_file: Path | None
    authority: Path | None = None
    """Of https: a file of PEM."""
    where: str | None = None
    """What the checkpoint's folder is called to the user."""
    force: bool
    spared: tuple[ProtectedPath, ...] = ()
    """What it is made from."""
    code: bool = False
    """Code that the checkpoint names is run: the user vouches for it."""
    warm: bool = False
    """It is read into memory at the end."""
    as_json: bool


def run(asked: RestoreRequest) -> int:
    """Writes what is asked for; an exit code. Raises ConfigError, StateError where there is no such
    step, or it does not fit."""
    code = _written(asked)
    if asked.warm:
        size, why = warm(asked.out)
        if not asked.as_json:
            print_line(f"  {why or f'{size >> 20} MiB of it are being read into memory'}")
    return code


def _written(asked: RestoreRequest) -> int:
    _check_options(asked)
    if not asked.spared:  # of the path that was given, before it is led elsewhere
        like = [] if asked.options.like is None else [asked.options.like]
        files = [*asked.templates, *like, *asked.also]
        own = protected_paths_of(asked.run, asked.checkpoint, asked.source, files)
        asked = replace(asked, spared=own)
    if asked.source is not None:
        return _fetched(asked, asked.source)
    if asked.job is not None:
        if asked.checkpoint is not None:
            raise ConfigError("--job", asked.job, "is of a run, not of --checkpoint or --from")
        root = job_run_root(asked.run, asked.job)
        return _of_one(replace(asked, run=root))
    if multi_job_restore.is_multi_job(asked.run, asked.checkpoint) or len(asked.templates) > 1:
        return _of_all(asked)
    return _of_one(asked)


def _check_options(asked: RestoreRequest) -> None:
    """Raises ConfigError for an option that the form does not have: it would do nothing."""
    plain, form = FormatOptions(), asked.form or "--template"
    for name, (option, forms) in OF_A_FORM.items():
        value = getattr(asked.options, name)
        if value != getattr(plain, name) and form not in forms:
            right = f"is of --format {' and '.join(forms)}, not of {form}: leave it out"
            shown = value // 1_000_000 if name == "shard_bytes" else value
            raise ConfigError(option, shown, right)
    if asked.options.like is not None and asked.form is None:
        right = "is of --format: a --template tells all of it itself"
        raise ConfigError("--like", str(asked.options.like), right)
    if asked.also and not (asked.templates or asked.options.like):
        right = "tells of buffers that a --template or a --like has: give one of them"
        raise ConfigError("--also", str(asked.also[0]), right)


def _fetched(asked: RestoreRequest, source: str) -> int:
    if asked.checkpoint is not None:
        raise ConfigError("--from", source, "does not go with --checkpoint: give one of them")
    if asked.job is not None:
        right = "is of --run: the URL names a job, http://host:port/jobs/K or the target's folder"
        raise ConfigError("--job", asked.job, right)
    form = FORMATS.get(asked.form or "")
    is_folder = form is not None and form.folder
    check_out(asked.out, force=asked.force, folder=is_folder, spared=asked.spared)
    out = asked.out.absolute()
    word, authority = asked.token_file, asked.authority
    with checkpoint_of(source, asked.step, word, beside=out, authority=authority) as folder:
        where = f"{source.rstrip('/')}/{folder.name}"
        return _written(replace(asked, source=None, checkpoint=folder, where=where))


def _of_one(asked: RestoreRequest) -> int:
    if asked.form is not None:
        if asked.templates:
            right = "does not go with --template: give one of them"
            raise ConfigError("--format", asked.form, right)
        words = (asked.form, asked.out, asked.options, asked.step, asked.force, asked.spared)
        one = format_restore.FormatRequest(*words)
        source = format_restore.StepSource(
            asked.run, asked.checkpoint, asked.where, asked.also, asked.code
        )
        return format_restore.run(source, one, as_json=asked.as_json)
    if not asked.templates:
        raise StateError(FORM_MISSING)
    if len(asked.templates) > 1:
        raise ConfigError("--template", len(asked.templates), "one goes with --job")
    where = (asked.checkpoint, asked.step, asked.where)
    which = template_restore.StepRequest(*where, asked.spared, asked.also, asked.code)
    return template_restore.run(
        asked.run,
        asked.templates[0],
        asked.out,
        which=which,
        force=asked.force,
        as_json=asked.as_json,
    )


def _of_all(asked: RestoreRequest) -> int:
    if asked.checkpoint is not None:
        raise ConfigError("--checkpoint", str(asked.checkpoint), "is of one job: give its template")
    held = " or ".join(job_names(asked.run))
    if asked.form is not None:
        right = f"is of one of several jobs: --job {held} (or 1, 2 ...) says of which"
        raise ConfigError("--format", asked.form, right)
    if not asked.templates:
        raise StateError(f"{FORM_MISSING}; of several jobs a --template each, or --job {held}")
    if asked.also:
        right = f"is of one job: --job {held} says of which"
        raise ConfigError("--also", str(asked.also[0]), right)
    if asked.step is not None:
        raise ConfigError("--step", asked.step, f"is of one job: --job {held} says of which")
    own = (asked.run, asked.templates, asked.out)
    spared = asked.spared
    return multi_job_restore.run(*own, force=asked.force, as_json=asked.as_json, spared=spared)
