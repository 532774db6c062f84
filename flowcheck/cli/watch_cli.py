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
        str | None, typer.Option(help=f"Address and port; by default the job file's, or {LISTEN}.")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="A file with one word of 16 characters or more; or the job file's."),
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="PEM: https instead of http; or the job file's.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="PEM of its key, where that is not in the same file.")
    ] = None,
    parent: Annotated[
        int | None, typer.Option(help="End when this process does; set by the supervisor.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a chain over HTTP: /metrics for Prometheus, /healthz, /state.json, a page at /.

    It reads shared memory and files, as status does: the chain does not notice it, and it may begin
    before the chain and outlive it. Beyond this machine a token is needed: a browser asks for it as
    a password, with any name; programs send `Authorization: Bearer WORD`. With --tls-certificate
    nobody on the way reads it.

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
    """Show a chain in the terminal until Ctrl-C: rates, lag, ring fill, loss, the last steps.

    Where stdout is no terminal, one frame. The chain may begin later, and end meanwhile.
    """
    from flowcheck.ops.watch import top_command as verb
    from flowcheck.stages.privilege.drop_privileges import keep_root_to_read

    keep_root_to_read(run)
    raise typer.Exit(verb.run(run, as_json=as_json))
