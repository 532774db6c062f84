"""Runs one stage in this process: `flowcheck stage NAME --run DIR`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import msgspec

from flowcheck.config import JobConfig, SourceConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.chain_processes import NUMBER_UNKNOWN, STAGE_UNKNOWN
from flowcheck.findings.named_run import set_named_run
from flowcheck.stages.privilege.capture_starter import stated_sources
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.run_directory.run_dir_checks import chain_root
from flowcheck.stages.service_loop import Service, run_service
from flowcheck.stages.stage_table import launchable_stages
from flowcheck.stages.zmq_sockets import StageSockets


def run_stage(name: str, root: Path, number: int, parent: int | None) -> int:
    """Runs one stage to its end; its exit code. Raises ConfigError for a wrong name or run."""
    set_named_run(chain_root(root))
    where = RunDir(root)
    config = where.settings()
    if (stated := stated_sources(name)) is not None:
        # It has rights that whoever writes the run directory has not.
        sources = msgspec.json.decode(stated, type=tuple[SourceConfig, ...])
        config = msgspec.structs.replace(config, source=sources)
    service = _service(name, where, config, number)
    code = run_service(service, StageSockets(where.sockets, service.name), parent=parent)
    sys.stdout.flush()
    return code


def _service(name: str, where: RunDir, config: JobConfig, number: int) -> Service:
    """Imports only what the stage needs: torch stays out of the packet path."""
    rows = launchable_stages()
    if name not in rows or not rows[name].exists(config):
        raise ConfigError("stage", name, STAGE_UNKNOWN(list(rows)))
    spec = rows[name]
    count, own = spec.instances(config), (number,) if spec.numbered else ()
    if own and not 0 <= number < count:
        raise ConfigError("number", number, NUMBER_UNKNOWN(count=count, per=spec.per))
    module, _, factory = spec.factory.partition(":")
    service: Service = getattr(import_module(module), factory)(where, config, *own)
    return service
