"""`flowcheck serve`: serves the steps of a run, or a folder of checkpoints, over HTTP."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from threading import Event

from flowcheck.config import ServeConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_restores import NOT_A_FOLDER, SERVE_UNENCRYPTED, SERVE_WHAT
from flowcheck.ops.restore.checkpoint_doubts import doubts_since_save
from flowcheck.stages.checkpointing.serve_stage import catalogues_of
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.service_loop import Signals
from flowcheck.vault.serve.step_catalog import StepCatalog
from flowcheck.vault.serve.step_server import StepServer

LOOK_S = 0.5
"""Seconds between two checks of the server. A choice: shorter costs processor time."""


def run(root: Path | None, checkpoints: Path | None, config: ServeConfig, *, as_json: bool) -> int:
    """Serves steps until a signal. Returns the exit code. Raises ConfigError if there is nothing to
    serve, or if the server cannot listen."""
    if (root is None) == (checkpoints is None):
        raise ConfigError("--run", None if root is None else str(root), SERVE_WHAT())
    if root is not None:
        where = RunDir(root)
        with tempfile.TemporaryDirectory(prefix="flowcheck-serve-") as own:
            staging = ServeConfig(host=config.host, staging=own, token_file=config.token_file)
            return _serve(catalogues_of(where, where.settings(), staging), config, as_json=as_json)
    assert checkpoints is not None
    if not checkpoints.is_dir():
        raise ConfigError("checkpoints", str(checkpoints), NOT_A_FOLDER())
    catalogue = StepCatalog([checkpoints.resolve()], doubts=doubts_since_save)
    return _serve(catalogue, config, as_json=as_json)


def _serve(
    catalogue: StepCatalog | dict[str, StepCatalog], config: ServeConfig, *, as_json: bool
) -> int:
    server = StepServer(
        catalogue, config, lambda line: None if as_json else print(line, flush=True)
    )
    with Signals() as signals:
        server.start()
        try:
            where = "/jobs" if isinstance(catalogue, dict) else "/steps"
            told = f"serving {server.url}{where}, until Ctrl-C"
            if config.tls_certificate is None and config.token_file is not None and not as_json:
                print(f"not encrypted: {SERVE_UNENCRYPTED()}", flush=True)
            print(json.dumps({"url": server.url}) if as_json else told, flush=True)
            while not signals.received:
                Event().wait(LOOK_S)
                server.end_leases()
        finally:
            server.stop()
    return 0
