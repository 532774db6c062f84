"""Where a command finds a fleet: its file, or the copy of its state that a machine has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from flowcheck.fleet.fleet_state import FleetState
from flowcheck.fleet.node_report import NodeReport
from flowcheck.ops.fleet.checked_fleet import CheckedFleet, placed_fleet
from flowcheck.ops.fleet.keeper_client import Answer
from flowcheck.ops.fleet.node_folder import NodeFolder

STATE_SUFFIX = ".json"


def fleet_of(file: Path) -> FleetState:
    """Of a fleet file, or of a machine's fleet-state.json. Raises ConfigError."""
    if file.suffix == STATE_SUFFIX:
        return NodeFolder(file.parent).read()
    return fleet_state_of(placed_fleet(file), generation=0)


def fleet_state_of(fleet: CheckedFleet, generation: int) -> FleetState:
    """The fleet's state as its file has it; generation: as checked_fleet was given it."""
    config = fleet.config
    return FleetState(
        name=config.name,
        generation=generation,
        wanted=True,
        folder=os.fspath(Path.cwd()),
        state=os.fspath(Path(config.state).absolute()),
        keepers=fleet.keepers,
        chains=tuple(
            msgspec.structs.replace(own, run=os.fspath(Path(own.run).absolute()))
            for own in fleet.chains
        ),
        token_file=config.token_file,
        tls_certificate=config.tls_certificate,
        tls_key=config.tls_key,
        ca=config.ca,
    )


def newest_generation(answers: Mapping[str, Answer], name: str) -> int:
    """The highest that any machine of this fleet knows of; 0: none answers."""
    own = [one for one in answers.values() if isinstance(one, NodeReport) and one.fleet == name]
    return max((max(one.generation, one.newer or 0) for one in own), default=0)
