"""`flowcheck watch` and `top`: their arguments and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowcheck.cli.shared_options import DEFAULT_RUN, Json, Run
from flowcheck.config.watch_log_config import LISTEN
from flowcheck.findings.named_run import set_named_run


def watch(
    run: Run = DEFAULT_RUN,
    listen: Annotated[
        str | None,
        typer.Option(
            help=f"Address and port to listen on; default: as the job file states, else {LISTEN}."
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File that holds the bearer token, 16 characters or more; default: as the job "
            "file states."
        ),
    ] = None,
    tls_certificate: Annotated[
        Path | None,
        typer.Option(
            help="Certificate (PEM): serve https instead of http; default: as the job file states."
        ),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="Private key (PEM); default: in the certificate's file.")
    ] = None,
    parent: Annotated[
        int | None,
        typer.Option(help="End when the process with this ID ends; set by the supervisor."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Serve a chain's state over HTTP: a page at /, /metrics for Prometheus, /healthz, /state.json.

    It only reads shared memory and files, so the chain never waits for it. It may start before the
    chain and run on after it. An address beyond this machine needs --token-file: browsers ask for
    the token as a password, with any user name; programs send `Authorization: Bearer TOKEN`.
    Without --tls-certificate the token and the state are sent in plain text.

    Exit code 0: it was stopped (Ctrl-C, SIGTERM); 2: it cannot listen, or an option is refused.

    Example: `flowcheck watch --run /run/flowcheck/job`, then open http://127.0.0.1:9464/
    """
    from flowcheck.ops.watch import watch_command
    from flowcheck.stages.privilege.drop_privileges import drop_for_run

    set_named_run(run)
    drop_for_run(run, token_file, tls_certificate, tls_key)
    given = (token_file, tls_certificate, tls_key)
    files = (str(file) if file is not None else None for file in given)
    raise typer.Exit(
        watch_command.run(run, watch_command.WatchOptions(listen, *files), parent, as_json=as_json)
    )


def top(run: Run = DEFAULT_RUN, as_json: Json = False) -> None:
    """Show a chain in the terminal until Ctrl-C: rates, lag, ring fill, losses, the last steps.

    In a terminal it may start before the chain and outlive it. If stdout is not a terminal, it
    prints once; exit code 2: no chain was started in this run directory.

    Example: `flowcheck top --run /run/flowcheck/job`
    """
    from flowcheck.ops.watch import top_command as verb
    from flowcheck.stages.privilege.drop_privileges import keep_root_to_read

    set_named_run(run)
    keep_root_to_read(run)
    raise typer.Exit(verb.run(run, as_json=as_json))
