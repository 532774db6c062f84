"""All that is known of a choice, for table, JSON and drawing."""

from __future__ import annotations

from pathlib import Path

import msgspec

from flowcheck.errors import ConfigError, LearnError
from flowcheck.ops.ports.choice import Choice, choose
from flowcheck.ops.ports.commands import Command, commands_of
from flowcheck.ops.ports.dump import Dump, read_dump
from flowcheck.ops.ports.groups import groups_of
from flowcheck.ops.ports.monitors import Monitors, monitors_of
from flowcheck.ops.ports.need import Need, need_of
from flowcheck.ops.ports.plugs import plugs_of
from flowcheck.ops.ports.rings import Ring, rings_of
from flowcheck.ops.ports.taps import Pair, Sought, sought_of, tree_of
from flowcheck.ops.ports.topology import Algorithm, Sharding, Topology, load
from flowcheck.wire.logged import RingOrder, read_log

MOST_LOG_BYTES = 64 << 20
SHARDED = (
    "Sharded ({}): each link lacks the block of one rank in a gather of parameters, as it lacks "
    "one chunk of a sum; sums scattered never cross whole, so the replica has parameters alone."
)
TREES = (
    "Trees: both directions of a port are watched, which is what following one asks; Gb/s are "
    "counted as a ring's, and an inner node of a tree sends about as much."
)
SHARED = (
    "Other traffic on these ports is copied, too: it is in the line rates, and in the means as "
    "[traffic] other_gbps states it ({:g} Gb/s)."
)
ANY_ORDER = (
    "Of each ring, ports of one direction, or both directions of one node, are watched: that shows "
    "every chunk in whatever order a ring passes through the nodes."
)
INDIFFERENT = " (here it decides nothing: these ports show every chunk in any order)"
CABLES = (
    "A NIC of several cables shares its traffic by a hash: all of its ports are watched together."
)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says."""

    file: Path
    redundancy: int = 1
    logs: tuple[Path, ...] = ()
    graphs: tuple[Path, ...] = ()
    os: str | None = None


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """A job's rings, what is mirrored of them, and what that takes."""

    topology: Topology
    rings: tuple[Ring, ...]
    sought: Sought
    monitors: Monitors
    choice: Choice
    need: Need
    commands: tuple[Command, ...]
    redundancy: int
    notes: tuple[str, ...]
    assumed: tuple[str, ...]
    order_assumed: bool

    def rings_on(self, pair: Pair) -> list[str]:
        """Names of the rings that pass there."""
        own = [tap for tap in self.sought.taps if pair in tap.pairs]
        return list(dict.fromkeys(name for tap in own for name in tap.shows))

    def pairs_of(self, name: str) -> list[Pair]:
        """Mirrored ones on which a ring or tree of that name passes."""
        return [pair for pair, _ in self.choice.placed if name in self.rings_on(pair)]

    def pairs_on(self, ring: Ring) -> list[Pair]:
        """Mirrored ones on which a ring passes, or the tree of its channel."""
        return list(dict.fromkeys([*self.pairs_of(ring.name), *self.pairs_of(tree_of(ring))]))


def chosen_by(asked: Asked) -> Chosen:
    """Raises ConfigError for what is stated wrongly, contradicts itself, or cannot be covered."""
    topology = load(asked.file)
    dumps = [read_dump(path) for path in asked.graphs]
    plugs = plugs_of(topology, _near(dumps))
    found = rings_of(
        groups_of(topology),
        plugs,
        channels=topology.channels,
        logs=[_orders(path) for path in asked.logs],
        ways=[dump.ways for dump in dumps if dump.ways is not None],
    )
    sought = sought_of(found.rings, plugs, topology.algorithm)
    monitors = monitors_of(topology, plugs, asked.os)
    choice = choose(sought, monitors, asked.redundancy)
    notes = []
    if topology.sharding is not Sharding.NONE:
        notes.append(SHARDED.format(topology.sharding))
    if topology.algorithm is not Algorithm.RING:
        notes.append(TREES)
    if topology.traffic is not None:
        notes.append(SHARED.format(topology.traffic.other_gbps))
    if any(len(each) > 1 for each in plugs.of.values()):
        notes.append(CABLES)
    chosen = Chosen(
        topology=topology,
        rings=found.rings,
        sought=sought,
        monitors=monitors,
        choice=choice,
        need=need_of(topology, found.rings, plugs, monitors, choice),
        commands=commands_of(choice, monitors),
        redundancy=asked.redundancy,
        notes=tuple(notes),
        assumed=found.assumed,
        order_assumed=any(told.startswith("order") for told in found.assumed),
    )
    if any_order(chosen):
        assumed = (one + INDIFFERENT * one.startswith("order") for one in chosen.assumed)
        notes = [*chosen.notes, ANY_ORDER]
        return msgspec.structs.replace(chosen, notes=tuple(notes), assumed=tuple(assumed))
    return chosen


def any_order(chosen: Chosen) -> bool:
    """Whether the order of nodes does not matter: what different nodes send passes different links
    of a ring, and so does what one node sends and receives."""
    for ring in chosen.rings:
        pairs = chosen.pairs_on(ring)
        nodes = {(pair.node, pair.nic) for pair in pairs}
        ways = {pair.direction for pair in pairs}
        if len(ways) > 1 and (len(nodes) > 1 or chosen.redundancy > 1):
            return False
    return True


def _near(dumps: list[Dump]) -> dict[int, int] | None:
    return next((dump.near for dump in dumps if dump.near is not None), None)


def _orders(path: Path) -> tuple[RingOrder, ...]:
    try:
        if path.stat().st_size > MOST_LOG_BYTES:
            why = f"is larger than {MOST_LOG_BYTES:,} bytes: its begin is enough"
            raise ConfigError("--nccl-log", str(path), why)
        text = path.read_text(errors="replace")
    except OSError as error:
        raise ConfigError("--nccl-log", str(path), f"cannot be read: {error.strerror}") from error
    try:
        return read_log(text).orders
    except LearnError as error:
        raise ConfigError("--nccl-log", str(path), str(error)) from error
