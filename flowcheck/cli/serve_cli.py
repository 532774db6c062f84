"""`flowcheck serve`: its arguments and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowcheck.cli.shared_options import Json
from flowcheck.findings.named_run import set_named_run

TokenFile = Annotated[
    Path | None,
    typer.Option(help="File that holds the bearer token that clients send; default: no token."),
]


def serve(
    checkpoints: Annotated[
        Path | None,
        typer.Argument(help="Folder that holds step-N folders; needed unless --run is given."),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option("--run", help="Run directory of a chain: its steps in memory are served too."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="TCP port to listen on; 0: any free one.", min=0, max=65535)
    ] = 7377,
    token_file: TokenFile = None,
    tls_certificate: Annotated[
        Path | None,
        typer.Option(
            help="Certificate (PEM): serve https instead of http. A renewed file is read again."
        ),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="Private key (PEM); default: in the certificate's file.")
    ] = None,
    connections: Annotated[
        int, typer.Option(help="Largest number of connections at a time.", min=1)
    ] = 256,
    as_json: Json = False,
) -> None:
    """Serve checkpoints over HTTP(S) to any number of trainers, with ranges and checksums.

    An address beyond this machine needs --token-file. Without --tls-certificate the token and the
    checkpoints are sent in plain text.

    Exit code 0: it was stopped (Ctrl-C, SIGTERM); 2: it cannot listen, or an option is refused.

    Example: `flowcheck serve --run /run/flowcheck/job --host 10.0.0.5 --token-file /etc/fc.token`,
    then on a trainer `flowcheck restore --from http://10.0.0.5:7377 --token-file fc.token
    --format torch --out resume.pt`
    """
    from flowcheck.config import ServeConfig
    from flowcheck.ops.restore import serve_command as verb
    from flowcheck.stages.privilege.drop_privileges import drop_for_run, drop_for_user_code

    set_named_run(run)
    read = [file for file in (token_file, tls_certificate, tls_key) if file is not None]
    if run is not None:
        drop_for_run(run, *read)
    elif checkpoints is not None:
        drop_for_user_code(files=[checkpoints, *read])
    config = ServeConfig(
        host=host,
        port=port,
        token_file=str(token_file) if token_file is not None else None,
        tls_certificate=str(tls_certificate) if tls_certificate is not None else None,
        tls_key=str(tls_key) if tls_key is not None else None,
        connections=connections,
    )
    raise typer.Exit(verb.run(run, checkpoints, config, as_json=as_json))
