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
    return f"Of {formats_taking(option)}: {what}"


def restore(
    out: Annotated[
        Path,
        typer.Option(
            help="The file or folder to write; the trainer's resume flag takes it. Of several jobs "
            "a folder."
        ),
    ],
    template: Annotated[
        list[Path] | None,
        typer.Option(
            help="Any checkpoint the trainer wrote in this job: the form to fill. Of several jobs "
            "one of each."
        ),
    ] = None,
    also: Annotated[
        list[Path] | None,
        typer.Option(
            help="Checkpoints of this job of other steps, where no model is stated: buffers that "
            "are the same in them stay."
        ),
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", help=f"Instead of a template: {FORMS}.")
    ] = None,
    run: Run = DEFAULT_RUN,
    step: Annotated[
        str, typer.Option(help="A step that is kept, or latest.", metavar="N|latest")
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
            help="A step from elsewhere: http://host:port of flowcheck serve, or the target of "
            "[persist], s3://...",
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="Of --from http://...: the file with its word.")
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(help="Of --from https://...: PEM of who vouches for it."),
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
        int, typer.Option(help=_of("shard_bytes", "megabytes of a file at most."), min=1)
    ] = 5000,
    ranks: Annotated[
        int, typer.Option(help=_of("ranks", "data-parallel ranks that will load it."), min=1)
    ] = 1,
    zero: Annotated[int, typer.Option(help=_of("stage", "ZeRO's stage, 0 to 2."))] = 0,
    job: Annotated[
        str | None, typer.Option(metavar="K", help="Of several jobs one: its number, or name.")
    ] = None,
    run_code: Annotated[
        bool,
        typer.Option(
            "--run-code",
            help="Run the code (factory, schedule, rounding) that the step's manifest names: of a "
            "--checkpoint or --from of your own.",
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what is there.")] = False,
    warm: Annotated[
        bool, typer.Option("--warm", help="Read it into memory: a trainer here loads it next.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a step as a checkpoint the trainer resumes from: in the form of its own, or by format.

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
        raise ConfigError("--step", stated, "is a number of steps taken, or latest")
    return Step(int(stated))


def audit(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            metavar="CHECKPOINT",
            help="The trainer's file, or a folder of DCP's, Hugging Face's, DeepSpeed's ...",
        ),
    ],
    run: Run = DEFAULT_RUN,
    step: Annotated[
        int | None, typer.Option(help="Where nothing in it tells of which step it is.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Hold the replica against a checkpoint the trainer wrote itself, bit for bit.

    Exit code 0: equal; 1: something differs, and what differs first is named.
    """
    from flowcheck.ops.trainer_checkpoint import audit_command as verb
    from flowcheck.stages.privilege.drop_privileges import for_run

    for_run(run, checkpoint)
    raise typer.Exit(
        verb.run(run, checkpoint, None if step is None else Step(step), as_json=as_json)
    )


def base(
    checkpoint: Annotated[
        Path, typer.Argument(help="The trainer's own file: of the step its job began with, or any.")
    ],
    run: Run = DEFAULT_RUN,
    then: Annotated[
        Path | None, typer.Option(help="Of a job joined amid its run: a later file of it.")
    ] = None,
    after: Annotated[
        int | None, typer.Option(help="Or how many of the logged steps it had taken by then.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Give a job that resumed from a step the replica does not hold its optimizer's state.

    The file's parameters must be those of the job's start-up broadcast, bit for bit. Of a job that
    was joined amid its run any step will do whose next ones are logged; the steps between two files
    tell which these are. Of a replica that is followed, the file of a step it took takes that
    step's place where the two differ, and the steps since are taken again.
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
            help="A file or folder that restore wrote, a step-N folder, or a folder of these."
        ),
    ],
    as_json: Json = False,
) -> None:
    """Check an output against its manifest: sha256 of every file and of every tensor.

    Exit code 0: all as it was written; 1: something is not, and what is named; 2: nothing tells.
    """
    from flowcheck.findings.privileges import READS_ONLY
    from flowcheck.ops.restore import verify_command as verb
    from flowcheck.stages.privilege.drop_privileges import forbid_user_code

    forbid_user_code(READS_ONLY())
    raise typer.Exit(verb.run(path, as_json=as_json))
