"""What ports will carry, as `flowcheck ports --json` wrote it down."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from flowcheck.errors import MALFORMED, ConfigError, naming
from flowcheck.ops.switch.platforms import Platform
from flowcheck.ops.switch.rates import Figures
from flowcheck.ops.switch.session import Direction, Source

MOST_BYTES = 64 << 20


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """A direction of a port."""

    switch: str
    port: str
    direction: Direction
    mean_gbps: float | None


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the file that matters here."""

    pairs: tuple[Expected, ...]


def figures_in(path: Path, platform: Platform, sources: Sequence[Source]) -> Figures:
    """The largest mean among the sources, since figures are of one direction of any of them.

    Raises ConfigError for a file that is none, that says nothing of a source, or has no means.
    """
    key = "--ports-json"
    with naming(path):
        if path.stat().st_size > MOST_BYTES:
            raise ConfigError(key, str(path), f"is larger than {MOST_BYTES:,} bytes")
        content = path.read_bytes()
    try:
        written = msgspec.json.decode(content, type=Written)
    except MALFORMED as error:
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
    return Figures(direction_gbps=mean, formula=f"{mean:.4g} by {path.name}")


def _is(platform: Platform, one: Expected, port: str, way: Direction) -> bool:
    try:
        return one.direction is way and platform.spelled(one.port) == port
    except ConfigError:  # of a switch of another system
        return False
