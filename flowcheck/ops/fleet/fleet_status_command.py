"""`flowcheck fleet status` and `fleet down`: ask the keepers of all machines. Neither needs Ray."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event

import msgspec
from rich.markup import escape
from rich.table import Table

from flowcheck.errors import DECODE_ERRORS, ConfigError, FlowCheckError
from flowcheck.findings.catalog.fleet_running import (
    NO_COMMON_STEP,
    NO_KEEPER,
    NODE_NEWER,
    RUNS_EARLIER,
    SAVED_HERE,
    SHARD_LOST,
    STATES_DIFFER,
    STEP_ELSEWHERE,
    STOPPED_HERE,
    WANTED_HERE,
)
from flowcheck.findings.finding import Finding
from flowcheck.findings.named_run import texts_about
from flowcheck.fleet.common_step import Holder, common_step
from flowcheck.fleet.fleet_chains import FleetChain
from flowcheck.fleet.fleet_state import FleetState
from flowcheck.fleet.node_report import ChainReport, NodeReport, holder_of
from flowcheck.ops.console_output import SentenceConsole, print_line
from flowcheck.ops.fleet.fleet_place import fleet_of, newest_generation
from flowcheck.ops.fleet.keeper_client import Answer, KeeperClient
from flowcheck.ops.fleet.node_folder import NodeFolder
from flowcheck.ops.watch.state.chain_state import HealthWord
from flowcheck.ops.watch.state.held_steps import newest_exact_step
from flowcheck.stages.run_directory.job_run_dirs import all_run_dirs
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.untrusted_text import printable

LOOK_S = 0.5
"""Seconds between two questions while chains end. A choice: shorter loads the keepers."""


class FleetView(msgspec.Struct, frozen=True, kw_only=True):
    """All machines, as far as they answer."""

    fleet: str
    nodes: dict[str, Answer]
    """{node: its report, or why there is none}"""
    shards: dict[str, list[ChainReport]]
    """{chain that captures: what runs of it and of its copies, on machines that answer}"""
    common_step: int | None
    """The newest step of one life that is exact somewhere for each shard; None: there is none."""
    notes: tuple[Finding, ...]

    @property
    def is_whole(self) -> bool:
        """Whether all machines answer and all of their chains run."""
        reports = [one for one in self.nodes.values() if isinstance(one, NodeReport)]
        runs = all(own.pid is not None for one in reports for own in one.chains)
        return len(reports) == len(self.nodes) and runs


def look(state: FleetState, client: KeeperClient) -> FleetView:
    """Asks all machines, within KeeperClient's limit."""
    answers = client.reports(state.keepers)
    return view_of(state, answers)


def view_of(state: FleetState, answers: dict[str, Answer]) -> FleetView:
    """What the answers come to."""
    shards: dict[str, list[ChainReport]] = {name: [] for name in state.shards}
    places = {own.name: own.node for own in state.chains}
    for answer in answers.values():
        if isinstance(answer, NodeReport) and answer.fleet == state.name:
            for own in answer.chains:
                if own.name in places:  # else of another generation's file
                    shards.setdefault(own.of or own.name, []).append(own)
    notes = []
    for shard, chains in shards.items():
        runs = [own for own in chains if own.pid is not None]
        first = next((own for own in runs if own.of is None), None)
        best = max(runs, key=lambda own: own.exact[-1:], default=None)
        if first is None and best is not None and best.exact:
            notes.append(STEP_ELSEWHERE(chain=shard, node=places[best.name], step=best.exact[-1]))
        elif first is None:
            notes.append(SHARD_LOST(shard))
    notes += [RUNS_EARLIER(own.name) for one in shards.values() for own in one if own.earlier]
    common = common_step(holders_of(state, shards))
    if isinstance(common, Finding) and not common.is_any_of(NO_COMMON_STEP):
        notes.append(common)
    newest = newest_generation(answers, state.name)
    newest_ones = [
        o for o in answers.values() if isinstance(o, NodeReport) and o.generation == newest
    ]
    heard = any(one.newer == newest for one in newest_ones)  # of one that nobody has any more
    if heard or len({(one.wanted, one.stated) for one in newest_ones}) > 1:
        names = tuple(one.node for one in newest_ones)
        notes.append(STATES_DIFFER(nodes=names, generation=newest))
    for node, answer in answers.items():
        if isinstance(answer, NodeReport) and answer.generation < newest:
            notes.append(NODE_NEWER(node=node, own=answer.generation, newest=newest))
    return FleetView(
        fleet=state.name,
        nodes=answers,
        shards=shards,
        common_step=None if isinstance(common, Finding) else common.step,
        notes=tuple(notes),
    )


def holders_of(
    state: FleetState, shards: Mapping[str, Sequence[ChainReport]]
) -> dict[str, list[Holder]]:
    """{shard: what its chains that answer give}"""
    places = {own.name: own.node for own in state.chains}
    return {
        shard: [holder_of(own, places[own.name]) for own in chains]
        for shard, chains in shards.items()
    }


def status(file: Path, *, as_json: bool) -> int:
    """Prints the state of all machines. Returns 0 if all answer and all chains run, else 1. Raises
    ConfigError where the file is refused, or no machine answers."""
    state = fleet_of(file)
    client = KeeperClient(state.token_file, state.ca)
    answers = client.reports(state.keepers)
    known = client.newest_state(state, answers)
    view = look(known, client) if known.keepers != state.keepers else view_of(known, answers)
    if not any(isinstance(one, NodeReport) for one in view.nodes.values()):
        view = msgspec.structs.replace(view, notes=(*view.notes, *_told_here(state)))
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(view), indent=1).decode())
    else:
        print_view(view)
    return 0 if view.is_whole else 1


def print_view(view: FleetView) -> None:
    out = SentenceConsole(highlight=False)
    table = Table("chain", "node", "pid", "health", "step", "exact", "copy of", "Ray")
    for node, answer in view.nodes.items():
        if not isinstance(answer, NodeReport):
            table.add_row("", escape(node), "[red]no answer[/]", "", "", "", "", "")
            continue
        for own in answer.chains:
            exact = "" if own.saved is None else str(own.saved)
            step = "" if own.step is None else str(own.step)
            pid = "[red]gone[/]" if own.pid is None else str(own.pid)
            kept = "keeps it" if own.kept else "[yellow]does not[/]"
            cells = (own.name, node, own.health or "", own.of or "")
            name, place, health, of = (escape(printable(one)) for one in cells)
            table.add_row(name, place, pid, health, step, exact, of, kept)
    out.print(table)
    for answer in view.nodes.values():
        if not isinstance(answer, NodeReport):
            out.print_finding(answer, "- ")
            continue
        for own in answer.chains:
            if (own.pid is None or own.health != HealthWord.EXACT) and own.reason is not None:
                where = escape(printable(f"{own.name} on {answer.node}"))
                with texts_about(Path(own.run)):
                    out.print_finding(own.reason, f"- {where}: ")
    for note in view.notes:
        out.print_finding(note, "- ")
    if view.common_step is None:
        out.print_finding(NO_COMMON_STEP(), "- ")
    else:
        print_line(f"newest step that is exact in each shard: {view.common_step}")


def down(file: Path, *, limit_s: float, as_json: bool) -> int:
    """Stops all chains, and waits for their ends. Returns 0 if all have ended, 1 if a machine does
    not answer or a chain did not end in time. Raises ConfigError where no machine answers."""
    state = fleet_of(file)
    client = KeeperClient(state.token_file, state.ca)
    known = client.reports(state.keepers)
    if not any(isinstance(one, NodeReport) for one in known.values()):
        raise ConfigError("FILE", str(file), NO_KEEPER(tuple(map(_why, known.values()))))
    newest = client.newest_state(state, known)
    if newest.keepers != state.keepers:  # the file has changed since
        state = msgspec.structs.replace(newest, keepers=state.keepers | newest.keepers)
        known = client.reports(state.keepers)
    generation = newest_generation(known, state.name) + 1
    until_s = time.monotonic() + limit_s
    answers = client.stop(state.keepers, generation)
    if newest_generation(answers, state.name) > generation or _wanted(answers):
        # Somebody started it at the same instant: what was said last holds.
        generation = newest_generation(answers, state.name) + 1
        answers = client.stop(state.keepers, generation)
    while _running(answers) and time.monotonic() < until_s:
        Event().wait(LOOK_S)
        answers = client.reports(state.keepers)
    left, gone = _running(answers), [one for one in answers.values() if isinstance(one, Finding)]
    if as_json:
        told = {"generation": generation, "running": left, "not_reached": gone}
        print(msgspec.json.encode(told).decode())
    else:
        out = SentenceConsole(highlight=False)
        print_line(f"{state.name} is stopped, as of generation {generation}")
        if left:
            print_line(f"still ending: {', '.join(left)}")
        for one in gone:
            out.print_finding(one, "- ")
        if gone:
            print_line("a machine that was not reached ends its chains when it reaches another one")
    return 1 if left or gone else 0


def _why(answer: Answer) -> Finding:
    assert isinstance(answer, Finding)
    return answer


def _wanted(answers: dict[str, Answer]) -> bool:
    return any(isinstance(one, NodeReport) and one.wanted for one in answers.values())


def _told_here(state: FleetState) -> list[Finding]:
    """What folders of the fleet on this machine say, where no keeper answers: after `down`, and
    behind a power cut."""
    found = []
    for node in state.keepers:
        folder = NodeFolder.of(state, node)
        with suppress(ConfigError, OSError):
            known = folder.read()
            how = WANTED_HERE if known.wanted else STOPPED_HERE
            found.append(how(generation=known.generation, node=node))
            found += [one for own in known.on(node) for one in _saved_of(node, own)]
    return found


def _saved_of(node: str, chain: FleetChain) -> list[Finding]:
    """The newest step that a chain which does not run gives."""
    run = RunDir(Path(chain.run))
    with suppress(FlowCheckError, OSError, *DECODE_ERRORS):
        if run.config.exists() and (step := newest_exact_step(all_run_dirs(run))) is not None:
            return [SAVED_HERE(chain=chain.name, node=node, step=step, run=chain.run)]
    return []


def _running(answers: dict[str, Answer]) -> list[str]:
    reports = [one for one in answers.values() if isinstance(one, NodeReport)]
    return [own.name for one in reports for own in one.chains if own.pid is not None]
