"""Runs one stage in this process: `flowcheck stage NAME --run DIR`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import msgspec

from flowcheck.config import JobConfig, SourceConfig
from flowcheck.errors import ConfigError, FlowCheckError
from flowcheck.findings.catalog.chain_processes import NUMBER_UNKNOWN, STAGE_UNKNOWN
from flowcheck.findings.named_run import set_named_run
from flowcheck.messages import Fault
from flowcheck.stages.file_error import file_error_finding
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
    try:
        service = _made(name, where, number)
    except (FlowCheckError, OSError) as error:
        _report(where, name, number, error)
        raise
    os.nice(launchable_stages()[name].niceness)
    code = run_service(service, StageSockets(where.sockets, service.name), parent=parent)
    sys.stdout.flush()
    return code


def _made(name: str, where: RunDir, number: int) -> Service:
    config = where.settings()
    if (stated := stated_sources(name)) is not None:
        # It has rights that whoever writes the run directory has not.
        sources = msgspec.json.decode(stated, type=tuple[SourceConfig, ...])
        config = msgspec.structs.replace(config, source=sources)
    return _service(name, where, config, number)


def _report(where: RunDir, name: str, number: int, error: FlowCheckError | OSError) -> None:
    """Leaves to the supervisor why a stage could not even be made; where no chain runs, or this
    user may not reach its sockets, the log of the stage is left to tell it."""
    if name not in launchable_stages() or not _is_socket(where.sockets / StageSockets.EVENTS):
        return
    own = launchable_stages()[name].instance(number)
    found = error.finding if isinstance(error, FlowCheckError) else file_error_finding(error)
    with suppress(Exception):  # of ZeroMQ's: the error itself is what is raised on
        links = StageSockets(where.sockets, own)
        links.report(Fault(stage=own, finding=found))
        links.close()


def _is_socket(path: Path) -> bool:
    """Whether it is one, as far as this user may look."""
    with suppress(OSError):
        return path.is_socket()
    return False


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
