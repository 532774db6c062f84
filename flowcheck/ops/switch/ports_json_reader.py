"""Reads the expected rate of each port from the output of `flowcheck ports --json`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from flowcheck.errors import DECODE_ERRORS, ConfigError, naming_file
from flowcheck.ops.switch.mirror_session import MirrorDirection, MirrorSource
from flowcheck.ops.switch.monitor_capacity import JobRates
from flowcheck.ops.switch.switch_platforms import Platform

MOST_BYTES = 64 << 20
"""Bytes. A choice: a larger file is not a port list, and is not read."""


class ExpectedRate(msgspec.Struct, frozen=True, kw_only=True):
    """A direction of a port."""

    switch: str
    port: str
    direction: MirrorDirection
    mean_gbps: float | None


class PortsJson(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the file that matters here."""

    pairs: tuple[ExpectedRate, ...]


def rates_in_ports_json(
    path: Path, platform: Platform, sources: Sequence[MirrorSource]
) -> JobRates:
    """The largest mean among the sources, since figures are of one direction of any of them.

    Raises ConfigError for a file that is none, that says nothing of a source, or has no means.
    """
    key = "--ports-json"
    with naming_file(path):
        if path.stat().st_size > MOST_BYTES:
            raise ConfigError(key, str(path), f"is larger than {MOST_BYTES:,} bytes")
        content = path.read_bytes()
    try:
        written = msgspec.json.decode(content, type=PortsJson)
    except DECODE_ERRORS as error:
        right = f"is not what `flowcheck ports --json` prints: {error}"
        raise ConfigError(key, str(path), right) from error
    means: list[float] = []
    for source in sources:
        for way in source.direction.ways():
            found = [one for one in written.pairs if _is(platform, one, source.port, way)]
            if not found:
                raise ConfigError(key, f"{source.port}:{way}", f"is not among those in {path}")
            if any(one.mean_gbps is None for one in found):
                right = "has no mean: state [traffic] in the layout it was made of"
                raise ConfigError(key, f"{source.port}:{way}", right)
            means += [one.mean_gbps for one in found if one.mean_gbps is not None]
    mean = max(means)
    return JobRates(direction_gbps=mean, formula=f"{mean:.4g} by {path.name}")


def _is(platform: Platform, one: ExpectedRate, port: str, way: MirrorDirection) -> bool:
    try:
        return one.direction is way and platform.spelled(one.port) == port
    except ConfigError:  # of a switch of another system
        return False
