"""Reads the expected rate of each port from the output of `flowcheck ports --json`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from flowcheck.errors import DECODE_ERRORS, ConfigError, naming_file
from flowcheck.findings.catalog.refused_mirror_sessions import (
    NO_MEAN_RATE,
    NOT_PORTS_JSON,
    PORT_NOT_IN_FILE,
    TOO_LARGE,
)
from flowcheck.ops.switch.mirror_session import MirrorDirection, MirrorSource
from flowcheck.ops.switch.monitor_capacity import JobRates
from flowcheck.ops.switch.switch_platforms import Platform

MOST_BYTES = 64 << 20
"""Bytes. A choice: a larger file is not a port list and is refused."""


class ExpectedRate(msgspec.Struct, frozen=True, kw_only=True):
    """Expected rate of one direction of one port."""

    switch: str
    port: str
    direction: MirrorDirection
    mean_gbps: float | None


class PortsJson(msgspec.Struct, frozen=True, kw_only=True):
    """The part of `flowcheck ports --json` that is read here."""

    pairs: tuple[ExpectedRate, ...]


def rates_in_ports_json(
    path: Path, platform: Platform, sources: Sequence[MirrorSource]
) -> JobRates:
    """The largest mean rate of the source ports: the rate is per direction of any of them.

    Raises ConfigError if `path` is not such a file, does not list a source port, or has no mean
    rate for it.
    """
    key = "--ports-json"
    with naming_file(path):
        if path.stat().st_size > MOST_BYTES:
            raise ConfigError(key, str(path), TOO_LARGE(MOST_BYTES))
        content = path.read_bytes()
    try:
        written = msgspec.json.decode(content, type=PortsJson)
    except DECODE_ERRORS as error:
        raise ConfigError(key, str(path), NOT_PORTS_JSON(str(error))) from error
    means: list[float] = []
    for source in sources:
        for way in source.direction.ways():
            found = [one for one in written.pairs if _is(platform, one, source.port, way)]
            if not found:
                raise ConfigError(key, f"{source.port}:{way}", PORT_NOT_IN_FILE(path))
            if any(one.mean_gbps is None for one in found):
                raise ConfigError(key, f"{source.port}:{way}", NO_MEAN_RATE())
            means += [one.mean_gbps for one in found if one.mean_gbps is not None]
    mean = max(means)
    return JobRates(direction_gbps=mean, formula=f"{mean:.4g} by {path.name}")


def _is(platform: Platform, one: ExpectedRate, port: str, way: MirrorDirection) -> bool:
    try:
        return one.direction is way and platform.canonical_port(one.port) == port
    except ConfigError:  # of a switch of another system
        return False
