"""`flowcheck fleet drill`: fetches the newest common step from everybody who has it, as a restore
does, compares what comes, and removes it. It shows what a restore would take, and what would be
left with nodes lost, while the fleet runs on."""

from __future__ import annotations

import tempfile
import time
from fractions import Fraction
from pathlib import Path

import msgspec
from rich.markup import escape
from rich.table import Table

from flowcheck.errors import ConfigError, FlowCheckError, StateError
from flowcheck.findings.catalog.fleet_running import (
    DRILL_AT_THIS_RATE,
    DRILL_DIFFERS,
    DRILL_SHARD_LOST,
    STATE_CHANGED,
    UNKNOWN_SHARD,
)
from flowcheck.findings.catalog.general_errors import ERROR_TEXT
from flowcheck.findings.finding import Finding, plain_error_text
from flowcheck.fleet.common_step import CommonStep, Holder, Life, common_step
from flowcheck.fleet.fleet_chains import FleetChain
from flowcheck.fleet.fleet_state import FleetState
from flowcheck.fleet.kept_odds import survives
from flowcheck.ops.console_output import SentenceConsole, print_line
from flowcheck.ops.fleet.fleet_place import fleet_of
from flowcheck.ops.fleet.fleet_restore_command import TRIES, look_for_steps, source_of
from flowcheck.ops.fleet.served_steps import kept_at_servers
from flowcheck.ops.restore.remote_checkpoint import checkpoint_of
from flowcheck.replica.checkpoint_files.manifest import load_manifest
from flowcheck.step_numbers import Step
from flowcheck.untrusted_text import printable
from flowcheck.vault.persist.checkpoint_listing import read_listing

LOST_SHOWN = 4
"""Nodes lost together up to which the table goes. A choice."""
Sums = dict[str, tuple[str, str]]
"""{tensor: its type, its sha256}"""


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """One shard from one chain."""

    shard: str
    chain: str
    node: str
    copies: bool
    """It is a copy's."""
    bytes: int = 0
    seconds: float = 0.0
    """From the question to the last byte compared: files written there, sent, and verified here."""
    why_not: Finding | None = None
    """None: it gave the state that it told of, whole."""


class Odds(msgspec.Struct, frozen=True, kw_only=True):
    """So many nodes are lost together."""

    lost: int
    survive: float
    """Share of such sets of nodes that leave each shard with somebody who gave it, rounded down."""


class Drill(msgspec.Struct, frozen=True, kw_only=True):
    """What was tried, and what came of it."""

    step: int
    life: Life | None
    ways: tuple[Way, ...]
    fastest: dict[str, str]
    """{shard: chain that gave it first}; without those that nobody gave"""
    seconds: float | None
    """Of all shards, one after the other, each the fastest way; None: some shard did not come."""
    odds: tuple[Odds, ...]
    assumed: tuple[Finding, ...]

    @property
    def is_whole(self) -> bool:
        return all(one.why_not is None for one in self.ways)


def run(file: Path, shard: str | None, *, as_json: bool) -> int:
    """Returns 0 if everybody who told of the step gave it, else 1. Raises ConfigError for what is
    refused, StateError where the shards have no common step."""
    state = fleet_of(file)
    shards = state.shards if shard is None else (shard,)
    if not set(shards) <= set(state.shards):
        raise ConfigError("--shard", shard, UNKNOWN_SHARD(state.shards))
    for left in reversed(range(TRIES)):
        found = common_step(look_for_steps(state, shards))
        if isinstance(found, Finding):
            raise StateError(found)
        drill = tried(state, found)
        lost = any(w.why_not is not None and w.why_not.is_any_of(STATE_CHANGED) for w in drill.ways)
        if not lost or not left:  # else the job went on so fast that the step is gone
            break
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(drill), indent=1).decode())
    else:
        _print(drill, len(state.keepers))
    return 0 if drill.is_whole else 1


def tried(state: FleetState, found: CommonStep) -> Drill:
    """All who have the step, one after the other: the network of a running job is shared."""
    places = {own.name: own for own in state.chains}
    ways: list[Way] = []
    for shard, holders in found.holders.items():
        first: Sums | None = None
        for holder in holders:
            way, sums = _tried(state, found, shard, holder, places[holder.name])
            if sums is not None and first is not None and sums != first:
                why = DRILL_DIFFERS(chain=holder.name, step=found.step)
                way = msgspec.structs.replace(way, why_not=why)
            first = first or sums
            ways.append(way)
    good = [one for one in ways if one.why_not is None]
    fastest = {
        shard: min(own, key=lambda one: one.seconds)
        for shard in found.holders
        if (own := [one for one in good if one.shard == shard])
    }
    whole = len(fastest) == len(found.holders)
    return Drill(
        step=found.step,
        life=found.life,
        ways=tuple(ways),
        fastest={shard: one.chain for shard, one in fastest.items()},
        seconds=round(sum(one.seconds for one in fastest.values()), 3) if whole else None,
        odds=_odds(good, tuple(found.holders), tuple(state.keepers)),
        assumed=(DRILL_AT_THIS_RATE(),),
    )


def _tried(
    state: FleetState, found: CommonStep, shard: str, holder: Holder, chain: FleetChain
) -> tuple[Way, Sums | None]:
    began_s, step, digest = time.monotonic(), Step(found.step), found.digest(shard)
    way = Way(shard=shard, chain=chain.name, node=chain.node, copies=holder.of is not None)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="flowcheck-drill-") as beside,
            kept_at_servers(state, {shard: [(chain, digest)]}, step),
        ):
            source = source_of(state, chain, step, digest)
            with checkpoint_of(source, Path(beside) / "step") as there:
                size = read_listing(there.folder).size_bytes
                tensors = load_manifest(there.folder).tensors
                sums = {name: (one.dtype, one.sha256) for name, one in tensors.items()}
    except (FlowCheckError, OSError) as error:
        why = error.finding if isinstance(error, FlowCheckError) else _plain(error)
        return msgspec.structs.replace(way, why_not=why), None
    seconds = round(time.monotonic() - began_s, 3)
    return msgspec.structs.replace(way, bytes=size, seconds=seconds), sums


def _plain(error: OSError) -> Finding:
    return ERROR_TEXT(kind="system", text=plain_error_text(error))


def _odds(good: list[Way], shards: tuple[str, ...], nodes: tuple[str, ...]) -> tuple[Odds, ...]:
    holders = [{one.node for one in good if one.shard == shard} for shard in shards]
    found = []
    for lost in range(1, min(LOST_SHOWN, len(nodes)) + 1):
        share = survives(holders, nodes, lost)
        if share is not None:
            found.append(Odds(lost=lost, survive=float(Fraction(int(share * 10**6), 10**6))))
    return tuple(found)


def _print(drill: Drill, nodes: int) -> None:
    out = SentenceConsole(highlight=False)
    table = Table("shard", "from", "node", "MB", "seconds", "MB/s", "state")
    for one in drill.ways:
        size = one.bytes / 1e6
        rate = f"{size / one.seconds:.1f}" if one.seconds else ""
        taken = f"{one.seconds:.1f}" if one.why_not is None else ""
        kind = f"{one.chain} (copy)" if one.copies else one.chain
        cells = (one.shard, kind, one.node, f"{size:.1f}" if one.bytes else "", taken, rate)
        verdict = "as told" if one.why_not is None else "[red]not given[/]"
        table.add_row(*(escape(printable(cell)) for cell in cells), verdict)
    out.print(table)
    for one in drill.ways:
        if one.why_not is not None:
            out.print_finding(one.why_not, f"- {escape(printable(one.chain))}: ")
    lost = sorted({one.shard for one in drill.ways} - set(drill.fastest))
    for shard in lost:
        out.print_finding(DRILL_SHARD_LOST(shard), "- ")
    if drill.seconds is not None:
        who = ", ".join(f"{shard} from {chain}" for shard, chain in drill.fastest.items())
        print_line(f"step {drill.step} of all shards comes in {drill.seconds:.1f} s: {who}")
    for odds in drill.odds:
        named = "1 node" if odds.lost == 1 else f"{odds.lost} nodes"
        print_line(f"with {named} of {nodes} lost, all shards survive with {odds.survive:.6g}")
    for assumed in drill.assumed:
        print_line(f"assumed: {assumed}")
    print_line("nothing of it is left")
