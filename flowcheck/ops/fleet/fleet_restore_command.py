"""`flowcheck fleet restore`: the newest step that is exact in each shard of a fleet and of one life
of the training job, from whichever machine has it. Steps come from the chains' own servers; Ray is
not asked, and keepers need not answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from flowcheck.atomic_write import atomic_path, write_atomically
from flowcheck.errors import ConfigError, FlowCheckError, StateError
from flowcheck.findings.catalog.fleet_running import (
    LIVES_JOINED,
    NO_COMMON_STEP,
    ONE_LIFE,
    OUT_EXISTS,
    STATE_CHANGED,
    STEP_NOWHERE,
    TEMPLATE_OF_ONE,
    UNKNOWN_SHARD,
)
from flowcheck.findings.catalog.refused_restores import OTHER_STATE
from flowcheck.findings.finding import Finding
from flowcheck.fleet.common_step import CommonStep, Holder, Life, common_step
from flowcheck.fleet.fleet_chains import FleetChain
from flowcheck.fleet.fleet_state import FleetState
from flowcheck.ops.console_output import print_line
from flowcheck.ops.fleet.fleet_place import fleet_of
from flowcheck.ops.fleet.fleet_status_command import holders_of, look
from flowcheck.ops.fleet.keeper_client import KeeperClient
from flowcheck.ops.fleet.served_steps import kept_at_servers, served_holders
from flowcheck.ops.restore import restore_command
from flowcheck.ops.restore.restore_request import RestoreRequest, StepSource
from flowcheck.private_files import PRIVATE_FOLDER_MODE
from flowcheck.step_numbers import Step
from flowcheck.untrusted_text import printable

TRIES = 3
"""How often the machines are looked at where a step is lost while it is fetched. A choice: memory
holds several steps, so that a second look nearly always does."""
INDEX = "fleet-step.json"
"""In the folder of several shards: what they are of."""
Shards = dict[str, list[Holder]]


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """A shard that was restored."""

    shard: str
    chain: str
    """That gave it."""
    node: str
    step: int
    digest: str
    """Of its state, in hex, as that chain has it."""
    out: str


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """All that was restored; in the folder of several shards, its index."""

    step: int
    life: Life | None
    """Of the training job, as the chains count them; None: they were not compared."""
    shards: tuple[Given, ...]
    assumed: tuple[Finding, ...]


def run(
    file: Path,
    wanted: RestoreRequest,
    step: Step | None,
    shard: str | None,
    *,
    despite_lives: bool,
    as_json: bool,
) -> int:
    """Writes each shard at one step; of several, each below the folder `wanted.output`. Returns the
    exit code. wanted: without a source; step: None: the newest one.

    Raises ConfigError for what is refused, StateError where there is no such step.
    """
    state = fleet_of(file)
    shards = state.shards if shard is None else (shard,)
    if not set(shards) <= set(state.shards):
        raise ConfigError("--shard", shard, UNKNOWN_SHARD(state.shards))
    if wanted.templates and len(shards) > 1:
        raise ConfigError("--template", str(wanted.templates[0]), TEMPLATE_OF_ONE(len(shards)))
    if len(shards) > 1 and wanted.output.exists():
        raise ConfigError("--out", str(wanted.output), OUT_EXISTS())
    for left in reversed(range(TRIES)):
        try:
            done = _restored(state, shards, wanted, step, despite_lives=despite_lives)
            break
        except StateError as error:
            if not left or not error.finding.is_any_of(STATE_CHANGED, OTHER_STATE):
                raise
    if as_json:
        print(msgspec.json.encode(done).decode())
        return 0
    for made in done.shards:
        print_line(f"{made.out}: step {made.step} of {made.shard}, from {printable(made.chain)}")
    for one in done.assumed:
        print_line(f"assumed: {one}")
    return 0


def _restored(
    state: FleetState,
    shards: Sequence[str],
    wanted: RestoreRequest,
    step: Step | None,
    *,
    despite_lives: bool,
) -> Restored:
    known = look_for_steps(state, shards)
    found = common_step(known, wanted=step, despite_lives=despite_lives)
    if isinstance(found, Finding):
        if step is not None and found.is_any_of(NO_COMMON_STEP):
            found = _nowhere(known, step)
        raise StateError(found)
    places = {own.name: own for own in state.chains}
    asked = {
        name: [(places[one.name], found.digest(name)) for one in holders]
        for name, holders in found.holders.items()
    }
    with kept_at_servers(state, asked, Step(found.step)) as kept:
        if len(shards) == 1:
            [name] = shards
            given = [_given(state, name, kept[name], wanted, found)]
            return _told(found, given, wanted.output, despite_lives=despite_lives)
        with atomic_path(wanted.output) as place:
            place.mkdir(mode=PRIVATE_FOLDER_MODE)
            given = [
                _given(state, name, chains, replace(wanted, output=place / name), found)
                for name, chains in kept.items()
            ]
            done = _told(found, given, wanted.output, despite_lives=despite_lives)
            write_atomically(place / INDEX, msgspec.json.format(msgspec.json.encode(done)))
    return done


def look_for_steps(state: FleetState, shards: Sequence[str]) -> Shards:
    """{shard: who has which steps of it}, as the keepers tell, and where a keeper does not answer
    as the chain itself does."""
    view = look(state, KeeperClient(state.token_file, state.ca))
    known = holders_of(state, view.shards)
    told = {one.name for holders in known.values() for one in holders}
    rest = [own for own in state.chains if own.name not in told and own.shard in shards]
    found: Shards = {name: list(known.get(name, ())) for name in shards}
    for one in served_holders(state, rest):
        found[one.of or one.name].append(one)
    return found


def _nowhere(shards: Shards, step: Step) -> Finding:
    for name, holders in shards.items():
        steps = sorted({one for own in holders for one in own.steps})
        if step not in steps:
            return STEP_NOWHERE(chain=name, step=step, steps=steps)
    return NO_COMMON_STEP()


def _told(found: CommonStep, given: Sequence[Given], out: Path, *, despite_lives: bool) -> Restored:
    assumed: tuple[Finding, ...] = ()
    if len(given) > 1:
        assumed = (LIVES_JOINED() if despite_lives else ONE_LIFE(),)
        given = [msgspec.structs.replace(one, out=str(out / one.shard)) for one in given]
    return Restored(step=found.step, life=found.life, shards=tuple(given), assumed=assumed)


def source_of(state: FleetState, chain: FleetChain, step: Step, digest: str) -> StepSource:
    """A step at a chain's server, with this state and no other."""
    https = chain.served.startswith("https:")
    return StepSource(
        url=chain.served,
        token_file=None if state.token_file is None else Path(state.token_file),
        authority=Path(state.ca) if https and state.ca is not None else None,
        step=step,
        digest=digest,
    )


def _given(
    state: FleetState,
    shard: str,
    chains: Sequence[FleetChain],
    request: RestoreRequest,
    found: CommonStep,
) -> Given:
    """From the first chain that gives it. Where steps are served the fleet's own state tells, not
    what a machine answers."""
    last: FlowCheckError | None = None
    for chain in chains:
        source = source_of(state, chain, Step(found.step), found.digest(shard))
        try:
            restore_command.restore(replace(request, source=source))
        except StateError as error:
            last = last or error
            continue
        return Given(
            shard=shard, chain=chain.name, node=chain.node, step=found.step,
            digest=found.digest(shard), out=str(request.output),
        )  # fmt: skip
    assert last is not None, "`kept_at_servers` leaves one at least"
    raise last
