"""Two hosts that talk over the lab's transport, and what a switch between them saw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.hosts import Hosts
from support.ports import Exchange

TESTS = Path(__file__).resolve().parents[1]
"""To be on a rank's path, which runs support/ports.py."""

MIXED = [0, 1, 3, 4, 255, 256, 257, 4095, 4096, 4097, 8192, 8193, 70_001, 128, 127, 0, 0, 300_000]


def talk(pair: Hosts, exchange: Exchange) -> list[dict[str, Any]]:
    """Both ranks' counters. Each has asserted that it received the right bytes."""
    exchange.pipes()
    scripts = [pair.start(rank, exchange.script(rank)) for rank in (0, 1)]
    results = []
    for process in scripts:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        results.append(json.loads(out))
    return results


def captured(pair: Hosts, exchange: Exchange, folder: Path) -> Path:
    with pair.capture(0, folder / "wire.pcap"):
        talk(pair, exchange)
    return folder / "wire.pcap"
