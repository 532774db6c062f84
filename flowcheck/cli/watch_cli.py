"""`flowcheck watch` and `top`: their arguments and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowcheck.cli.shared_options import DEFAULT_RUN, Json, Run
from flowcheck.config.watch_log_config import LISTEN


def watch(
    run: Run = DEFAULT_RUN,
    listen: Annotated[
        str | None,
        typer.Option(
            help=f"Address and port to listen on; by default the job file's, else {LISTEN}."
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File that holds the bearer token, 16 characters or more; by default the job "
            "file's."
        ),
    ] = None,
    tls_certificate: Annotated[
        Path | None,
        typer.Option(
            help="Certificate (PEM): serve https instead of http; by default the job file's."
        ),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="Private key (PEM), if it is not in the certificate's file.")
    ] = None,
    parent: Annotated[
        int | None, typer.Option(help="Process ID: end when it ends; set by the supervisor.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Serve a chain's state over HTTP: /metrics for Prometheus, /healthz, /state.json, a page at /.

    It reads shared memory and files, as status does, and does not disturb the chain; it may start
    before the chain and run on after it. An address beyond this machine needs a token: browsers ask
    for it as a password, with any user name; programs send `Authorization: Bearer TOKEN`. Without
    --tls-certificate the token and the state are sent in plain text.

    Example: `flowcheck watch --run /run/flowcheck/job`, then open http://127.0.0.1:9464/
    """
    from flowcheck.ops.watch import watch_command
    from flowcheck.stages.privilege.drop_privileges import for_run

    for_run(run, token_file, tls_certificate, tls_key)
    given = (token_file, tls_certificate, tls_key)
    files = (str(file) if file is not None else None for file in given)
    raise typer.Exit(
        watch_command.run(run, watch_command.WatchOptions(listen, *files), parent, as_json=as_json)
    )


def top(run: Run = DEFAULT_RUN, as_json: Json = False) -> None:
    """Show a chain in the terminal until Ctrl-C: rates, lag, ring fill, losses, the last steps.

    Where stdout is not a terminal, it prints once. The chain may start later, and end meanwhile.
    """
    from flowcheck.ops.watch import top_command as verb
    from flowcheck.stages.privilege.drop_privileges import keep_root_to_read

    keep_root_to_read(run)
    raise typer.Exit(verb.run(run, as_json=as_json))
