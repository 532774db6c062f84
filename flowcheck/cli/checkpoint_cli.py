"""`flowcheck restore`, `audit`, `base` and `verify`: their arguments and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowcheck.cli.shared_options import DEFAULT_RUN, Json, Run
from flowcheck.errors import ConfigError
from flowcheck.step_numbers import Step
from flowcheck.vault.checkpoint_formats.format_registry import (
    FORMATS,
    FormatOptions,
    formats_taking,
    keys_in,
)

FORMS = "; ".join(f"{one.name} ({one.what})" for one in FORMATS.values())


def _of(option: str, what: str) -> str:
    return f"For {formats_taking(option)}: {what}"


def restore(
    out: Annotated[
        Path,
        typer.Option(
            help="File or folder to write, for the trainer's resume option. A folder if there are "
            "several jobs."
        ),
    ],
    template: Annotated[
        list[Path] | None,
        typer.Option(
            help="Any checkpoint that the trainer wrote in this job: its form is filled. With "
            "several jobs, one of each."
        ),
    ] = None,
    also: Annotated[
        list[Path] | None,
        typer.Option(
            help="Checkpoints of this job at other steps, if no model is stated: buffers that are "
            "equal in all of them are kept."
        ),
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", help=f"Instead of a template: {FORMS}.")
    ] = None,
    run: Run = DEFAULT_RUN,
    step: Annotated[
        str, typer.Option(help="A step that the replica keeps, or latest.", metavar="N|latest")
    ] = "latest",
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="A step-N folder, or a folder of them, instead of a run's step."),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="URL",
            help="Read the step from a server: http://host:port of flowcheck serve, or the target "
            "of [persist], s3://...",
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="For --from http://...: file that holds the bearer token.")
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(help="For --from https://...: CA bundle (PEM)."),
    ] = None,
    keys: Annotated[
        str,
        typer.Option(help=_of("keys", "model=state_dict,optimizer=app.optim,step=global_step,...")),
    ] = "",
    like: Annotated[
        Path | None,
        typer.Option(
            help="An earlier checkpoint of the job, or a model's folder: names, buffers and "
            "configuration come from it."
        ),
    ] = None,
    shard_mb: Annotated[
        int, typer.Option(help=_of("shard_bytes", "largest size of a file, megabytes."), min=1)
    ] = 5000,
    ranks: Annotated[
        int, typer.Option(help=_of("ranks", "number of data-parallel ranks that load it."), min=1)
    ] = 1,
    zero: Annotated[int, typer.Option(help=_of("stage", "stage of ZeRO, 0 to 2."))] = 0,
    job: Annotated[
        str | None, typer.Option(metavar="K", help="With several jobs: the number or name of one.")
    ] = None,
    run_code: Annotated[
        bool,
        typer.Option(
            "--run-code",
            help="Run the code (factory, schedule, rounding) that the step's manifest names. Only "
            "for a --checkpoint or --from that you trust.",
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
    """Write a step as a checkpoint that the trainer resumes from: in its own form, or by format.

    Example: `flowcheck restore --template runs/step-0.pt --out runs/restored.pt`

    Example: `flowcheck restore --format dcp --step 400 --out runs/restored`
    """
    from flowcheck.ops.restore import restore_command
    from flowcheck.ops.restore.restore_output import output_of
    from flowcheck.ops.restore.restore_request import RestoreRequest, StepSource
    from flowcheck.stages.privilege.drop_privileges import for_output

    request = RestoreRequest(
        source=StepSource(
            run=run,
            job=job,
            checkpoint=checkpoint,
            url=source,
            token_file=token_file,
            authority=ca,
            step=_step(step),
            code=run_code,
        ),
        out=out,
        templates=tuple(template or ()),
        form=form,
        options=FormatOptions(keys_in(keys), like, shard_mb * 10**6, ranks, zero),
        also=tuple(also or ()),
        force=force,
        warm=warm,
    )
    several = request.source.is_run and job is None and (run / "jobs").is_dir()
    for_output(
        run,
        output_of(request, several=several),  # the run's owner looks into it: see is_multi_job
        *request.trainer_files,
        *(checkpoint, token_file, ca),
        checkpoint=checkpoint,
        elsewhere=source is not None,
    )
    raise typer.Exit(restore_command.run(request, as_json=as_json))


def _step(stated: str) -> Step | None:
    """None for the newest. Raises ConfigError."""
    if stated == "latest":
        return None
    if not (stated.isascii() and stated.isdigit() and len(stated) < 19):
        raise ConfigError("--step", stated, "must be a number of steps, or latest")
    return Step(int(stated))


def audit(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            metavar="CHECKPOINT",
            help="The trainer's file, or a folder of DCP, Hugging Face, DeepSpeed ...",
        ),
    ],
    run: Run = DEFAULT_RUN,
    step: Annotated[
        int | None, typer.Option(help="Step of the checkpoint, if the file does not hold it.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare the replica with a checkpoint that the trainer wrote, bit for bit.

    Exit code 0: equal; 1: different (the first differences are printed).
    """
    from flowcheck.ops.trainer_checkpoint import audit_command as verb
    from flowcheck.stages.privilege.drop_privileges import for_run

    for_run(run, checkpoint)
    raise typer.Exit(
        verb.run(run, checkpoint, None if step is None else Step(step), as_json=as_json)
    )


def base(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            help="Checkpoint of the trainer: of the step its job began with, or of a logged step."
        ),
    ],
    run: Run = DEFAULT_RUN,
    then: Annotated[
        Path | None, typer.Option(help="If the job was joined midstream: a later checkpoint of it.")
    ] = None,
    after: Annotated[
        int | None, typer.Option(help="Or: number of logged steps that came before the checkpoint.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Give the replica the optimizer state of a job that resumed from a step it does not hold.

    The file's parameters must equal the job's start-up broadcast, bit for bit. If the job was
    joined midstream, any step will do whose next steps are logged: the steps between two files show
    where it belongs. If the replica is up to date, the file replaces its own step where the two
    differ, and the steps since are applied again.
    """
    from flowcheck.ops.trainer_checkpoint import base_command as verb
    from flowcheck.stages.privilege.drop_privileges import for_run

    for_run(run, checkpoint, then)
    place = verb.LogPosition(then=then, after=after)
    raise typer.Exit(verb.run(run, checkpoint, place=place, as_json=as_json))


def verify(
    path: Annotated[
        Path,
        typer.Argument(
            help="File or folder that restore wrote, a step-N folder, or a folder of these."
        ),
    ],
    as_json: Json = False,
) -> None:
    """Check an output against its manifest: sha256 of every file and of every tensor.

    Exit code 0: all is as written; 1: something differs (it is named); 2: it cannot be checked.
    """
    from flowcheck.findings.catalog.privileges import READS_ONLY
    from flowcheck.ops.restore import verify_command as verb
    from flowcheck.stages.privilege.drop_privileges import forbid_user_code

    forbid_user_code(READS_ONLY())
    raise typer.Exit(verb.run(path, as_json=as_json))
