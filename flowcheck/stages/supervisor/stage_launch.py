"""Runs one stage in this process: `flowcheck stage NAME --run DIR`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from flowcheck.config import JobConfig, SourceConfig
from flowcheck.errors import ConfigError
from flowcheck.stages.privilege.capture_starter import SOURCES
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.service_loop import Service, run_service
from flowcheck.stages.zmq_sockets import StageSockets

NAMES = ("capture", "parse", "extract", "update", "persist", "serve")


def run_stage(name: str, root: Path, number: int, parent: int | None) -> int:
    """Runs one stage to its end; its exit code. Raises ConfigError for a wrong name or run."""
    where = RunDir(root)
    config = where.settings()
    if name == "capture" and (told := os.environ.get(SOURCES)) is not None:
        # It has rights that whoever writes the run directory has not.
        stated = msgspec.json.decode(told, type=tuple[SourceConfig, ...])
        config = msgspec.structs.replace(config, source=stated)
    service = _service(name, where, config, number)
    code = run_service(service, StageSockets(where.sockets, service.name), parent=parent)
    sys.stdout.flush()
    return code


def _service(name: str, where: RunDir, config: JobConfig, number: int) -> Service:
    """Imports only what the stage needs: torch stays out of the packet path."""
    if name == "capture":
        from flowcheck.stages.packet_capture.capture_stage import capture_service

        return capture_service(where, config, _checked(number, len(config.source), "source"))
    if name == "parse":
        from flowcheck.stages.packet_capture.parse_stage import ParseService

        return ParseService(where, config, _checked(number, len(config.rings), "ring"))
    if name == "extract":
        from flowcheck.stages.extraction.extract_stage import ExtractService

        return ExtractService(where, config)
    if name == "update":
        from flowcheck.stages.replica_update.update_stage import UpdateService

        return UpdateService(where, config)
    if name == "persist" and config.persist is not None:
        from flowcheck.stages.checkpointing.persist_stage import PersistService

        return PersistService(where, config)
    if name == "serve" and config.serve is not None:
        from flowcheck.stages.checkpointing.serve_stage import ServeService

        return ServeService(where, config)
    raise ConfigError("stage", name, f"is one of {', '.join(NAMES)}")


def _checked(number: int, count: int, what: str) -> int:
    if not 0 <= number < count:
        raise ConfigError("number", number, f"there are {count} {what}s, counted from 0")
    return number
