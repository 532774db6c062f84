"""The verbs of one step: given back, held against the trainer's own, begun from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowcheck.errors import ConfigError
from flowcheck.options import DEFAULT_RUN, Json, Run


def restore(
    template: Annotated[
        list[Path],
        typer.Option(
            help="Any checkpoint the trainer wrote in this job: the form to fill. Of several jobs "
            "one of each."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="The file to write; the trainer's resume flag takes it. Of several jobs a folder."
        ),
    ],
    run: Run = DEFAULT_RUN,
    checkpoint: Annotated[
        Path | None, typer.Option(help="A step-N folder instead of a run's newest step.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    as_json: Json = False,
) -> None:
    """Write the newest step as a checkpoint of the trainer's own, ready to resume from.

    Example: `flowcheck restore --template runs/step-0.pt --out runs/restored.pt`
    """
    from flowcheck.ops import restore as verb
    from flowcheck.ops import restore_all

    if len(template) > 1 or restore_all.asked(run, checkpoint):
        if checkpoint is not None:
            raise ConfigError("--checkpoint", str(checkpoint), "is of one job: give its template")
        raise typer.Exit(restore_all.run(run, template, out, force=force, as_json=as_json))
    raise typer.Exit(
        verb.run(run, template[0], out, checkpoint=checkpoint, force=force, as_json=as_json)
    )


def audit(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="The trainer's file.")],
    run: Run = DEFAULT_RUN,
    as_json: Json = False,
) -> None:
    """Hold the replica against a checkpoint the trainer wrote itself, bit for bit.

    Exit code 0: equal; 1: something differs, and what differs first is named.
    """
    from flowcheck.ops import audit as verb

    raise typer.Exit(verb.run(run, checkpoint, as_json=as_json))


def base(
    checkpoint: Annotated[
        Path, typer.Argument(help="The trainer's own file of the step its job began with.")
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
    tell which these are.
    """
    from flowcheck.ops import base as verb

    place = verb.Place(then=then, after=after)
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
    from flowcheck.ops import verify as verb

    raise typer.Exit(verb.run(path, as_json=as_json))
