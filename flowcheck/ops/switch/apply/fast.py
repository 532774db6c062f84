"""Whether the monitor port is as fast as its sources together, by what the switch says of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from flowcheck.errors import ConfigError
from flowcheck.ops.switch.session import Session

SYSFS = Path("/sys/class/net")


def check_fast(
    session: Session, gbps: Callable[[str], float | None], beside: Sequence[str] = ()
) -> None:
    """gbps: line rate of a port, Gb/s; None where nobody knows, as of a virtual one: then nothing
    is refused. beside: ports that others than this session copy there, one for each direction. An
    all-reduce runs at line rate in bursts (ops/switch/rates.py, speed).

    Raises ConfigError with the sum.
    """
    if session.monitor is None or (room := gbps(session.monitor)) is None:
        return
    found = [(gbps(source.port), len(source.direction.ways())) for source in session.sources]
    found += [(gbps(port), 1) for port in beside]
    known = [(speed, ways) for speed, ways in found if speed is not None]
    total = sum(speed * ways for speed, ways in known)
    if total <= room:
        return
    parts = " + ".join(f"{speed:g}" if ways == 1 else f"2 * {speed:g}" for speed, ways in known)
    others = f" and what is copied there already, of {', '.join(beside)}," if beside else ""
    right = (
        f"runs at {room:g} Gb/s, its sources{others} at {parts} = {total:g} Gb/s: "
        "copies of a burst would be dropped. Fewer directions, a faster port, or --oversubscribe, "
        "where `flowcheck switch check` warns of the job's own figures and does not refuse them"
    )
    raise ConfigError("--monitor", session.monitor, right)


def of_device(name: str) -> float | None:
    """Line rate of a network device with hardware behind it, Gb/s (Linux
    Documentation/ABI/testing/sysfs-class-net: speed, in Mb/s, -1 or an error where unknown)."""
    place = SYSFS / name
    try:
        speed = int((place / "speed").read_text())
    except (OSError, ValueError):
        return None
    return speed / 1000 if speed > 0 and (place / "device").exists() else None
