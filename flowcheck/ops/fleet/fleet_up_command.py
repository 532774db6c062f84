"""`flowcheck fleet up`: gives the fleet's state to each machine, and an actor of Ray's to each
chain, which finds it running or starts it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import Any

import msgspec

from flowcheck.errors import StateError
from flowcheck.findings.catalog.fleet_running import (
    CHAIN_ELSEWHERE,
    GENERATION_OUTBID,
    NO_NODE_THERE,
    RAY_OPEN,
)
from flowcheck.findings.finding import Finding
from flowcheck.fleet.fleet_state import FleetState
from flowcheck.fleet.node_report import NodeReport
from flowcheck.ops.console_output import SentenceConsole, print_line
from flowcheck.ops.fleet.checked_fleet import checked_fleet
from flowcheck.ops.fleet.fleet_place import fleet_state_of, newest_generation
from flowcheck.ops.fleet.fleet_status_command import FleetView, look, print_view
from flowcheck.ops.fleet.keeper_client import Answer, KeeperClient
from flowcheck.ops.fleet.ray_cluster import RayCluster

LOOK_S = 0.5
"""Seconds between two looks while chains start. A choice: shorter loads the keepers."""


def run(file: Path, *, address: str, limit_s: float, open_ray: bool, as_json: bool) -> int:
    """Returns 0 if all chains run, 1 if some do not within the limit. Raises ConfigError where the
    file is refused, StateError without ray, a cluster, or a machine of the fleet in it."""
    plain = fleet_state_of(checked_fleet(file), 0)
    client = KeeperClient(plain.token_file, plain.ca)
    until_s = time.monotonic() + limit_s
    cluster = RayCluster(address, limit_s)
    if plain.token_file is not None and not cluster.asks_for_token and not open_ray:
        raise StateError(RAY_OPEN())
    absent = cluster.absent(plain)
    if len(absent) == len(plain.keepers):
        raise StateError(NO_NODE_THERE(tuple(absent.values())))
    known = client.reports(plain.keepers)
    _refuse_orphans(plain, known)
    generation = _generation(plain, known)
    state = fleet_state_of(checked_fleet(file, generation), generation)
    actors = {own.name: cluster.keep(state, own) for own in state.chains if own.node not in absent}
    left_s = max(1.0, until_s - time.monotonic())
    taken = cluster.give(state, actors, left_s)
    why = _not_taken(taken, state)
    for own in state.chains:
        if own.node in absent:
            why[own.name] = absent[own.node]
            cluster.keep(state, own)  # it is started when its machine is there
    view = _settled(state, client, set(actors) - set(why), until_s)
    cluster.close()
    _print(view, why, as_json=as_json)
    return 0 if view.is_whole and not why else 1


def _refuse_orphans(plain: FleetState, answers: Mapping[str, Answer]) -> None:
    """Raises StateError where a chain runs that the file has not, or has elsewhere: two chains of
    one shard would both write where its job file says."""
    places = {(own.name, own.node) for own in plain.chains}
    for one in answers.values():
        if isinstance(one, NodeReport) and one.fleet == plain.name and one.wanted:
            for name, at in one.places.items():
                if (name, at) not in places:
                    raise StateError(CHAIN_ELSEWHERE(chain=name, node=at))


def _generation(plain: FleetState, answers: Mapping[str, Answer]) -> int:
    """The newest one, if all that answers runs what the file states now; else one more."""
    newest = newest_generation(answers, plain.name)
    stated = plain.stated_digest
    for one in answers.values():
        if not isinstance(one, NodeReport) or one.fleet != plain.name:
            continue
        same = one.generation == newest and one.wanted and one.stated == stated
        if not same or any(own.pid is None for own in one.chains):
            return newest + 1
    return max(newest, 1)


def _not_taken(taken: Mapping[str, bytes | Finding], state: FleetState) -> dict[str, Finding]:
    """{chain: why its machine has not this state}"""
    why: dict[str, Finding] = {}
    for name, answer in taken.items():
        if isinstance(answer, Finding):
            why[name] = answer
            continue
        known: dict[str, Any] = msgspec.json.decode(answer)
        wanted = {"generation": state.generation, "wanted": True}
        if known != wanted | {"stated": state.stated_digest}:
            why[name] = GENERATION_OUTBID(own=state.generation, known=known["generation"])
    return why


def _settled(
    state: FleetState, client: KeeperClient, awaited: set[str], until_s: float
) -> FleetView:
    """Once all awaited chains run, or none can any more, or the limit is over."""
    while True:
        view = look(state, client)
        chains = [own for shard in view.shards.values() for own in shard]
        runs = {own.name for own in chains if own.pid is not None}
        reports = [one for one in view.nodes.values() if isinstance(one, NodeReport)]
        known = all(one.generation >= state.generation for one in reports)
        if (known and awaited <= runs) or time.monotonic() > until_s:
            return view
        Event().wait(LOOK_S)


def _print(view: FleetView, why: Mapping[str, Finding], *, as_json: bool) -> None:
    if as_json:
        told = {"view": view, "not_started": why}
        print(msgspec.json.format(msgspec.json.encode(told), indent=1).decode())
        return
    print_view(view)
    out = SentenceConsole(highlight=False)
    for name, one in why.items():
        out.print_finding(one, f"- {name}: ")
    print_line("`flowcheck fleet status` asks the machines again, `flowcheck fleet down` ends all")
