"""`flowcheck fleet restore`: the newest step that is exact in each shard of a fleet, from whichever
machine has it. Steps come from the chains' own servers; Ray is not asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from flowcheck.atomic_write import atomic_path
from flowcheck.errors import ConfigError, FlowCheckError, StateError
from flowcheck.findings.catalog.fleet_running import (
    NO_COMMON_STEP,
    ONE_LIFE,
    OUT_EXISTS,
    STEP_NOWHERE,
    TEMPLATE_OF_ONE,
    UNKNOWN_SHARD,
)
from flowcheck.fleet.fleet_state import FleetState
from flowcheck.fleet.node_report import ChainReport, newest_common_step
from flowcheck.ops.console_output import print_line
from flowcheck.ops.fleet.fleet_place import fleet_of
from flowcheck.ops.fleet.fleet_status_command import look
from flowcheck.ops.fleet.keeper_client import KeeperClient
from flowcheck.ops.restore import restore_command
from flowcheck.ops.restore.restore_request import RestoreRequest, StepSource
from flowcheck.private_files import PRIVATE_FOLDER_MODE
from flowcheck.step_numbers import Step
from flowcheck.untrusted_text import printable


@dataclass(frozen=True, slots=True)
class Given:
    """A shard that was restored."""

    shard: str
    chain: str
    step: int
    out: Path


def run(
    file: Path, wanted: RestoreRequest, step: Step | None, shard: str | None, *, as_json: bool
) -> int:
    """Writes each shard at one step; of several, each below the folder `wanted.output`. Returns the
    exit code. wanted: without a source.

    Raises ConfigError for what is refused, StateError where there is no such step.
    """
    state = fleet_of(file)
    view = look(state, KeeperClient(state.token_file, state.ca))
    shards = _chosen(state, view.shards, shard)
    if wanted.templates and len(shards) > 1:
        raise ConfigError("--template", str(wanted.templates[0]), TEMPLATE_OF_ONE(len(shards)))
    at = newest_common_step(shards) if step is None else step
    if at is None and len(shards) > 1:
        raise StateError(NO_COMMON_STEP())
    if len(shards) == 1:
        [(name, chains)] = shards.items()
        done = [_given(state, name, chains, wanted, None if at is None else Step(at))]
    else:
        assert at is not None
        done = _all_given(state, shards, wanted, Step(at))
    assumed = [ONE_LIFE()] if len(shards) > 1 else []
    if as_json:
        print(msgspec.json.encode({"shards": done, "assumed": assumed}).decode())
        return 0
    for made in done:
        print_line(f"{made.out}: step {made.step} of {made.shard}, from {printable(made.chain)}")
    for one in assumed:
        print_line(f"assumed: {one}")
    return 0


def _all_given(
    state: FleetState,
    shards: Mapping[str, list[ChainReport]],
    wanted: RestoreRequest,
    step: Step,
) -> list[Given]:
    """All of them below one folder, or nothing: it gets its name when all are there."""
    if wanted.output.exists():
        raise ConfigError("--out", str(wanted.output), OUT_EXISTS())
    done = []
    with atomic_path(wanted.output) as place:
        place.mkdir(mode=PRIVATE_FOLDER_MODE)
        for name, chains in shards.items():
            made = _given(state, name, chains, replace(wanted, output=place / name), step)
            done.append(replace(made, out=wanted.output / name))
    return done


def _chosen(
    state: FleetState, shards: Mapping[str, list[ChainReport]], shard: str | None
) -> dict[str, list[ChainReport]]:
    if shard is None:
        return dict(shards)
    if shard not in shards:
        raise ConfigError("--shard", shard, UNKNOWN_SHARD(state.shards))
    return {shard: shards[shard]}


def _given(
    state: FleetState,
    shard: str,
    chains: Sequence[ChainReport],
    request: RestoreRequest,
    step: Step | None,
) -> Given:
    """From the first chain that gives it: the one that captures, then its copies. Those whose
    keeper does not answer are asked too, last. step: None: the newest exact one of whichever chain
    answers. Where steps are served the fleet's own state tells, not what a machine answers."""
    known = {own.name: own for own in chains}
    have = [own for own in chains if own.pid is not None and step in own.exact]
    order = [own.name for own in sorted(have, key=lambda one: one.of is not None)]
    order += [one.name for one in state.chains if one.shard == shard and one.name not in known]
    last: FlowCheckError | None = None
    for name in order:
        place = next(one for one in state.chains if one.name == name)
        https = place.served.startswith("https:")
        source = StepSource(
            url=place.served,
            token_file=None if state.token_file is None else Path(state.token_file),
            authority=Path(state.ca) if https and state.ca is not None else None,
            step=step,
        )
        try:
            [made] = restore_command.restore(replace(request, source=source))
        except StateError as error:
            last = last or error
            continue
        return Given(shard, name, int(made.written.step), request.output)
    if last is not None:
        raise last
    if step is None:
        raise StateError(NO_COMMON_STEP())
    steps = sorted({one for own in chains for one in own.exact})
    raise StateError(STEP_NOWHERE(chain=shard, step=step, steps=steps))
