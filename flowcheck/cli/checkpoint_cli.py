"""`flowcheck restore`, `audit`, `base` and `verify`: their arguments and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowcheck.cli.shared_options import DEFAULT_RUN, Json, Run
from flowcheck.config import AuditConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.file_audits import FILE_OR_WATCH, ONLY_WITH_WATCH
from flowcheck.findings.catalog.refused_options import (
    CHECKPOINT_NEEDED,
    CHECKPOINT_TWICE,
    STEP_OR_LATEST,
)
from flowcheck.findings.named_run import run_option, set_named_run
from flowcheck.step_numbers import Step
from flowcheck.vault.checkpoint_formats.format_registry import (
    FORMATS,
    FormatOptions,
    formats_taking,
    keys_in,
)

NAMES = ", ".join(FORMATS)
FORMS = "\n\n".join(f"    * {one.name} - {one.what}" for one in FORMATS.values())


SameCheckpoint = Annotated[
    Path | None,
    typer.Option("--checkpoint", metavar="CHECKPOINT", help="CHECKPOINT, stated as an option."),
]


def _of(option: str, what: str) -> str:
    return f"For {formats_taking(option)}: {what}"


def restore(
    out: Annotated[
        Path,
        typer.Option(
            help="File or folder to write, for the trainer's resume option; with several jobs a "
            "folder."
        ),
    ],
    template: Annotated[
        list[Path] | None,
        typer.Option(
            help="Any checkpoint that the trainer wrote in this job; the output has its layout."
        ),
    ] = None,
    also: Annotated[
        list[Path] | None,
        typer.Option(
            help="If the job file states no model: other checkpoints of the job, to judge buffers."
        ),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="FORMAT", help=f"Format to write, instead of --template: {NAMES}."
        ),
    ] = None,
    run: Run = DEFAULT_RUN,
    step: Annotated[
        str,
        typer.Option(
            help="Number of a step that the replica keeps, or latest.", metavar="N|latest"
        ),
    ] = "latest",
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Read from this step-N folder, or folder of them, instead of --run."),
    ] = None,
    gradients: Annotated[
        Path | None,
        typer.Option(
            help="With --checkpoint: `[gradient_log] folder`; later steps are made again from it."
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="URL",
            help="Read from `flowcheck serve`, http(s)://host:port, or from a [persist] target.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="With --from http(s)://...: file that holds the bearer token."),
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(
            help="With --from https://...: CA bundle (PEM) that signed the server's certificate."
        ),
    ] = None,
    keys: Annotated[
        str,
        typer.Option(
            help=_of(
                "keys",
                "names of the parts in the file: model=state_dict,optimizer=app.optim,...",
            )
        ),
    ] = "",
    like: Annotated[
        Path | None,
        typer.Option(
            help="Earlier checkpoint of the job, or folder of the model, that gives names, buffers "
            "and configuration."
        ),
    ] = None,
    shard_mb: Annotated[
        int, typer.Option(help=_of("shard_bytes", "largest size of a file, MB."), min=1)
    ] = 5000,
    ranks: Annotated[
        int,
        typer.Option(help=_of("ranks", "number of data-parallel ranks that will load it."), min=1),
    ] = 1,
    zero: Annotated[
        int, typer.Option(help=_of("stage", "ZeRO stage of the job that will load it, 0 to 2."))
    ] = 0,
    job: Annotated[
        str | None,
        typer.Option(
            metavar="K", help="With several jobs: number or name of the one to write; default: all."
        ),
    ] = None,
    allow_tainted: Annotated[
        bool,
        typer.Option(
            "--allow-tainted",
            help="Take the newest step also where elements are tainted; else the newest exact one.",
        ),
    ] = False,
    run_code: Annotated[
        bool,
        typer.Option(
            "--run-code",
            help="Run the code that the manifest names; only if you trust --checkpoint or --from.",
        ),
    ] = False,
    despite_audit: Annotated[
        bool,
        typer.Option(
            "--despite-audit",
            help="Restore a step though an audit found a difference; its manifest then tells it.",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing output.")] = False,
    warm: Annotated[
        bool,
        typer.Option(
            "--warm", help="Read the output into the page cache, for a trainer on this machine."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a step of the replica as a checkpoint from which the trainer resumes.

    Give --template to write it in the layout of the trainer's own checkpoints, or --format.

    Exit code 0: the checkpoint was written; 2: it was not, with the reason.

    Example: `flowcheck restore --template runs/step-0.pt --out runs/restored.pt`

    Example: `flowcheck restore --format dcp --step 400 --out runs/restored`

    Example: `flowcheck restore --checkpoint saved --gradients kept --format torch --out last.pt`
    """
    from flowcheck.ops.restore import restore_command
    from flowcheck.ops.restore.restore_output import output_of
    from flowcheck.ops.restore.restore_request import RestoreRequest, StepSource
    from flowcheck.stages.privilege.drop_privileges import drop_for_output

    request = RestoreRequest(
        source=StepSource(
            run=run,
            job=job,
            checkpoint=checkpoint,
            gradients=gradients,
            url=source,
            token_file=token_file,
            authority=ca,
            step=step_stated(step),
            code=run_code,
            allow_tainted=allow_tainted,
        ),
        output=out,
        templates=tuple(template or ()),
        form=form,
        options=FormatOptions(keys_in(keys), like, shard_mb * 10**6, ranks, zero),
        also=tuple(also or ()),
        despite_audit=despite_audit,
        force=force,
        warm=warm,
    )
    set_named_run(run if request.source.is_run else None)
    several = request.source.is_run and job is None and (run / "jobs").is_dir()
    drop_for_output(
        run,
        output_of(request, several=several),  # the run's owner looks into it: see is_multi_job
        *request.trainer_files,
        *(checkpoint, gradients, token_file, ca),
        checkpoint=checkpoint,
        elsewhere=source is not None,
    )
    raise typer.Exit(restore_command.run(request, as_json=as_json))


restore.__doc__ = f"{restore.__doc__}\n    Formats:\n\n{FORMS}\n"


def step_stated(stated: str) -> Step | None:
    """None for the newest. Raises ConfigError."""
    if stated == "latest":
        return None
    if not (stated.isascii() and stated.isdigit() and len(stated) < 19):
        raise ConfigError("--step", stated, STEP_OR_LATEST())
    return Step(int(stated))


def audit(
    checkpoint: Annotated[
        Path | None,
        typer.Argument(
            metavar="CHECKPOINT",
            help="Checkpoint of the trainer: a file, or a folder of DCP, Hugging Face, DeepSpeed.",
            show_default=False,
        ),
    ] = None,
    same: SameCheckpoint = None,
    run: Run = DEFAULT_RUN,
    step: Annotated[
        int | None, typer.Option(help="Step of the checkpoint; default: as the file states it.")
    ] = None,
    watch: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Compare every checkpoint that appears in this folder or below."
        ),
    ] = None,
    existing: Annotated[
        bool,
        typer.Option(
            "--existing", help="With --watch: also compare the files that are there already."
        ),
    ] = False,
    interval: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="With --watch: time between two looks, between which a file must stand still; "
            "default: 1.",
        ),
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="With --watch: how long a file may stay incomplete, or ahead of the replica; "
            "default: 600.",
        ),
    ] = None,
    parent: Annotated[
        int | None,
        typer.Option(help="End when the process with this ID ends; set by the supervisor."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare the replica with a checkpoint that the trainer wrote, bit for bit.

    With --watch it compares each checkpoint that appears in a folder, each rank's file too, until
    the chain ends or Ctrl-C, and prints a summary. A difference stays on record until `flowcheck
    base` gives the replica a new state: meanwhile no step since the last equal one is called exact.
    A file that is equal makes tainted elements of the replica exact; without --watch the replica
    stays as it is.

    Exit code 0: equal, with --watch all files that appeared; 1: different (the first differences
    are printed); 2: refused, with the reason; 3: with --watch nothing differs, but a file was not
    compared, or there was none.

    Example: `flowcheck audit runs/step-400.pt --run /run/flowcheck/job`

    Example: `flowcheck audit --watch runs --run /run/flowcheck/job`
    """
    from flowcheck.ops.trainer_checkpoint import audit_command as verb
    from flowcheck.stages.privilege.drop_privileges import drop_for_run

    if watch is not None or parent is not None:
        if checkpoint is not None or same is not None or step is not None:
            raise ConfigError("--watch", str(watch), FILE_OR_WATCH())
        stated = _watch_settings(watch, existing=existing, interval=interval, wait=wait)
        raise typer.Exit(_watch(run, stated, parent, as_json=as_json))
    for name, value in (("--existing", existing), ("--interval", interval), ("--wait", wait)):
        if value:
            raise ConfigError(name, value, ONLY_WITH_WATCH())
    file = _one_checkpoint(checkpoint, same, f"flowcheck audit runs/step-400.pt{run_option(run)}")
    set_named_run(run)
    drop_for_run(run, file)
    raise typer.Exit(verb.run(run, file, None if step is None else Step(step), as_json=as_json))


def _watch_settings(
    folder: Path | None, *, existing: bool, interval: float | None, wait: float | None
) -> AuditConfig | None:
    """The settings of the command line, which are those of [audit]; None: the job file's. Raises
    ConfigError for a time that is not above 0."""
    if folder is None:
        return None
    times = {"interval_s": interval, "wait_s": wait}
    given = {key: value for key, value in times.items() if value is not None}
    return AuditConfig(folder=str(folder), existing=existing, **given)


def _watch(run: Path, stated: AuditConfig | None, parent: int | None, *, as_json: bool) -> int:
    from flowcheck.ops.trainer_checkpoint.audit_watch import audit_watch_command
    from flowcheck.stages.privilege.drop_privileges import drop_for_run

    set_named_run(run)
    drop_for_run(run, None if stated is None else Path(stated.folder))
    return audit_watch_command.run(run, stated, parent, as_json=as_json)


def _one_checkpoint(argument: Path | None, option: Path | None, example: str) -> Path:
    """The checkpoint, stated as the argument or as --checkpoint. Raises ConfigError where it is
    stated by none of them, or by both and not the same."""
    file = option if argument is None else argument
    if file is None:
        raise ConfigError("CHECKPOINT", None, CHECKPOINT_NEEDED(example))
    if option not in (None, file):
        raise ConfigError("--checkpoint", str(option), CHECKPOINT_TWICE(file))
    return file


def base(
    checkpoint: Annotated[
        Path | None,
        typer.Argument(
            help="Checkpoint of the trainer: of the step it resumed from, or of a step that "
            "FlowCheck logged.",
            show_default=False,
        ),
    ] = None,
    same: SameCheckpoint = None,
    run: Run = DEFAULT_RUN,
    then: Annotated[
        Path | None,
        typer.Option(
            help="If FlowCheck joined midstream: a later checkpoint, to find CHECKPOINT's step."
        ),
    ] = None,
    after: Annotated[
        int | None,
        typer.Option(help="Number of logged steps before CHECKPOINT was written; replaces --then."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Give the replica its state (base) from a checkpoint that the trainer wrote.

    Needed if the job resumed from a step that the replica does not hold, or if FlowCheck joined
    midstream. The parameters of a file that the job resumed from must equal its start-up broadcast,
    bit for bit. After a midstream join any step whose later steps are logged will do; give --then.
    If the replica is up to date, the file replaces its step of the same number if the two differ,
    and the later steps are applied again.

    Exit code 0: the file was taken; 2: it was refused, with the reason.

    Example: `flowcheck base runs/step-400.pt --then runs/step-405.pt`
    """
    from flowcheck.ops.trainer_checkpoint import base_command as verb
    from flowcheck.ops.trainer_checkpoint.base_proof import LogPosition
    from flowcheck.stages.privilege.drop_privileges import drop_for_run

    file = _one_checkpoint(checkpoint, same, f"flowcheck base runs/step-400.pt{run_option(run)}")
    set_named_run(run)
    drop_for_run(run, file, then)
    place = LogPosition(later_checkpoint=then, after=after)
    raise typer.Exit(verb.run(run, file, place=place, as_json=as_json))


def verify(
    path: Annotated[
        Path,
        typer.Argument(
            help="Output of `flowcheck restore`, a step-N folder, or a folder of step-N folders."
        ),
    ],
    run: Annotated[
        Path | None,
        typer.Option(
            help=f"Run directory that saved it, whose audits count too; default: {DEFAULT_RUN}.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a checkpoint against its manifest: sha256 of every file and of every tensor.

    An audit that failed after the checkpoint was saved is printed, if the job file of --run names
    the checkpoint's folder, or the checkpoint lies in a run directory.

    Exit code 0: all is as written; 1: a file or tensor differs (it is named); 2: it cannot be
    checked.

    Example: `flowcheck verify checkpoints/step-400`
    """
    from flowcheck.findings.catalog.privileges import READS_ONLY
    from flowcheck.ops.restore import verify_command as verb
    from flowcheck.stages.privilege.drop_privileges import forbid_user_code

    set_named_run(run)
    forbid_user_code(READS_ONLY())
    raise typer.Exit(verb.run(path, chain=run or DEFAULT_RUN, as_json=as_json))
