"""Which state of a fleet its machines go by: three machines whose fleet is started by different
files, stopped, cut apart, wiped and restarted in random order. The decisions are the program's, on
folders of their own; the chains' processes, the network and Ray are made up here."""

from __future__ import annotations

import itertools
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from flowcheck.findings.catalog import fleet_running as told
from flowcheck.fleet.fleet_chains import FleetChain
from flowcheck.fleet.fleet_state import FleetState, StateRank
from flowcheck.fleet.node_report import NodeReport
from flowcheck.ops.fleet import chain_keeping
from flowcheck.ops.fleet.chain_keeping import ChainKeeping
from flowcheck.ops.fleet.fleet_place import newest_generation
from flowcheck.ops.fleet.fleet_status_command import view_of
from flowcheck.ops.fleet.fleet_up_command import _generation, _not_taken
from flowcheck.ops.fleet.keeper_client import Answer
from flowcheck.ops.fleet.node_folder import NodeFolder
from flowcheck.ops.fleet.state_fence import given_to, hear_others, is_newest

NODES = ("a", "b", "c")
CHAINS = ("x", "y")
FILES = tuple(itertools.product(NODES, repeat=len(CHAINS)))
"""[file] the machine of each chain."""


class Machine:
    """What outlives a command: the disk, what runs, and the state that Ray has for its actor."""

    def __init__(self, root: Path) -> None:
        self.folder = NodeFolder(root)
        self.runs: dict[str, StateRank] = {}
        """{chain: rank of the state that it was started by}"""
        self.ray: FleetState | None = None
        self.seen = StateRank(0, False, "")

    @property
    def state(self) -> FleetState | None:
        return self.folder.read() if self.folder.file.exists() else None


class World:
    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.machines = {name: Machine(root / "f" / name) for name in NODES}
        self.parts = [set(NODES)]
        self.doing: list[Iterator[None]] = []
        """Commands that are not over."""
        patch.setattr(chain_keeping, "chain_supervisor", self._supervisor)
        patch.setattr(ChainKeeping, "_start", lambda own, chain, *_: self._starts(own, chain))

    def _supervisor(self, chain: FleetChain) -> int | None:
        return 1 if chain.name in self.machines[chain.node].runs else None

    def _starts(self, keeping: ChainKeeping, chain: FleetChain) -> None:
        own = self.machines[chain.node]
        state = own.state
        assert state is not None and state.wanted and keeping._folder is own.folder
        for other in self.machines.values():
            under = other.runs.get(chain.name)
            assert other is own or under != state.rank, "on two machines under one state"
        own.runs[chain.name] = state.rank

    def file(self, number: int, generation: int) -> FleetState:
        chains = tuple(
            FleetChain(
                name=name, node=node, of=None, job=f"# {name} {number}", served="http://127.0.0.1:1",
                run=str(self.root / "f" / node / "runs" / name), copied=None,
            )
            for name, node in zip(CHAINS, FILES[number], strict=True)
        )  # fmt: skip
        return FleetState(
            name="f", generation=generation, wanted=True, folder="/", state=str(self.root),
            keepers={node: f"http://{node}:1" for node in NODES}, chains=chains,
        )  # fmt: skip

    def report(self, name: str) -> NodeReport:
        state = self.machines[name].state
        assert state is not None
        newer = self.machines[name].folder.outranks(state)
        return NodeReport(
            fleet="f", node=name, generation=state.generation, wanted=state.wanted,
            stated=state.stated_digest, newer=None if newer is None else newer.generation,
            places={own.name: own.node for own in state.chains}, chains=(),
        )  # fmt: skip

    def reached(self, name: str) -> list[str]:
        """Other machines that are reached from one, and have a keeper."""
        [part] = [part for part in self.parts if name in part]
        return [one for one in part if one != name and self.machines[one].state is not None]

    def others(self, name: str) -> list[NodeReport]:
        return [self.report(one) for one in self.reached(name)]

    def answers(self, name: str) -> dict[str, Answer]:
        """That a command on this machine gets."""
        here = [name] if self.machines[name].state is not None else []
        found: dict[str, Answer] = {one: told.KEEPER_SILENT(node=one, seconds=5) for one in NODES}
        return found | {one: self.report(one) for one in (*here, *self.reached(name))}

    def up(self, name: str, number: int) -> Iterator[None]:
        """`fleet up`, which is not one instant."""
        generation = _generation(self.file(number, 0), self.answers(name))
        yield
        state = self.file(number, generation)
        for one in random_order(NODES):
            [part] = [part for part in self.parts if name in part]
            if one not in part:
                continue
            own = self.machines[one]
            own.ray = own.ray or state.for_node(one)
            empty = own.state is None
            over = any(other.rank > state.rank for other in self.others(one))
            known = given_to(own.folder, state.for_node(one), lambda one=one: self.others(one))
            told_rank = {
                "generation": known.generation,
                "wanted": not known.stopped,
                "stated": known.stated,
            }
            refused = bool(_not_taken({"x": msgspec.json.encode(told_rank)}, state))
            mine = own.state
            assert mine is not None
            goes_by = mine.rank == state.rank and own.folder.outranks(mine) is None
            assert refused is not goes_by, "what is told is what holds"
            assert refused or not (empty and over), "a wiped disk takes what is over"
            yield

    def down(self, name: str) -> Iterator[None]:
        generation = newest_generation(self.answers(name), "f") + 1
        yield
        for one in random_order((name, *self.reached(name))):
            if self.machines[one].state is not None:
                self.machines[one].folder.stop(generation)
            yield

    def keeper(self, name: str) -> None:
        own = self.machines[name]
        if (state := own.state) is not None:
            state = hear_others(own.folder, state, self.others(name))
            wanted = own.folder.wanted_here(state)
            own.runs = {chain: rank for chain, rank in own.runs.items() if chain in wanted}

    def actors(self, name: str) -> None:
        own = self.machines[name]
        if own.state is None:
            others = self.others(name)
            if own.ray is None or not is_newest(own.ray, others):
                return
            assert all(own.ray.rank >= one.rank for one in others), "obsolete"
            own.folder.take(own.ray)
        for chain in CHAINS:
            ChainKeeping(own.folder, chain).look()

    def ends(self, name: str, *, wiped: bool) -> None:
        """The machine starts anew."""
        own = self.machines[name]
        own.runs = {}
        if wiped:
            shutil.rmtree(own.folder.root, ignore_errors=True)
            own.seen = StateRank(0, False, "")

    def holds(self) -> None:
        """At each instant."""
        for own in self.machines.values():
            if (state := own.state) is not None:
                assert state.rank >= own.seen, "no state goes back"
                own.seen = state.rank

    def settled(self) -> None:
        """When all have been reachable for a while."""
        for command in self.doing:
            for _ in command:
                self.holds()
        self.parts = [set(NODES)]
        for _ in range(3):
            for name in NODES:
                self.keeper(name)
                self.actors(name)
                self.holds()
        states = {n: own.state for n, own in self.machines.items() if own.state is not None}
        if not states:
            assert not any(own.runs for own in self.machines.values())
            return
        top = max(states.values(), key=lambda one: one.rank)
        for name, own in self.machines.items():
            mine = {one.name for one in top.on(name)} if top.wanted else set()
            assert set(own.runs) <= mine, "nothing that the highest state does not give it"
            if name in states and states[name].rank == top.rank:
                # One that heard of a higher state, which was wiped everywhere since, waits for it.
                assert set(own.runs) == (set() if own.folder.outranks(top) else mine)
        where = [chain for own in self.machines.values() for chain in own.runs]
        assert len(where) == len(set(where)), "no chain runs twice"
        notes = view_of(top, self.answers(NODES[0])).notes
        equal = {one.rank[:2] for one in states.values()} == {top.rank[:2]}
        same = len({one.stated_digest for one in states.values()}) == 1
        heard = any(self.machines[name].folder.outranks(one) for name, one in states.items())
        said = {one.code for one in notes} & {told.NODE_NEWER.code, told.STATES_DIFFER.code}
        assert bool(said) is not (equal and same and not heard), "what is told is what holds"


def random_order(names: tuple[str, ...]) -> list[str]:
    return random.sample(names, len(names))


def life_of(world: World, events: int) -> None:
    for _ in range(events):
        name = random.choice(NODES)
        match random.choice("uuudkkaaaaaaapprwnnnnnnnnnnn"):
            case "u":
                world.doing.append(world.up(name, random.randrange(len(FILES))))
            case "d":
                world.doing.append(world.down(name))
            case "k":
                world.keeper(name)
            case "a":
                world.actors(name)
            case "p":
                left = set(random.sample(NODES, random.randrange(3)))
                world.parts = [part for part in (left, set(NODES) - left) if part]
            case "r":
                world.ends(name, wiped=False)
            case "w":
                world.ends(name, wiped=True)
            case "n" if world.doing:
                command = random.choice(world.doing)
                if next(command, command) is command:
                    world.doing.remove(command)
        world.holds()
    world.settled()


@pytest.mark.parametrize(
    "seeds", [range(120), pytest.param(range(120, 2000), marks=pytest.mark.nightly)]
)
@pytest.mark.timeout(900)
def test_machines_agree_whatever_happens(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowcheck.ops.fleet.node_folder.write_atomically", written)
    for seed in seeds:
        random.seed(seed)
        with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="fleet-fence-") as root:
            try:
                life_of(World(Path(root), monkeypatch), 40)
            except BaseException as error:
                raise AssertionError(f"with seed {seed}") from error


def written(path: Path, data: bytes, *, durable: bool = True) -> None:
    """In memory, a file is whole as it is."""
    path.write_bytes(data)
    path.chmod(0o600)
