"""All connections of the mirrored ranks, and the order in which things can happen on them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from support.netib import pat
from support.netib.bonded import Bonded
from support.netib.branches import Branches
from support.netib.grouped import Grouped
from support.netib.nodes import ranks_of
from support.netib.nvls import Heads
from support.netib.options import Options
from support.netib.packets import Port
from support.netib.reduction import Operation
from support.netib.transport import Connection, QueuePair

PIPELINE_RANK = 200
"""Stands for the neighbour in the second communicator."""
METRIC_TREE = "metric tree"
OF_TREES = {"tree": "dp", METRIC_TREE: "metrics", "nvls": "dp"}
"""{name of trees' own connections: communicator}."""
TENSOR_RANK = 199
"""Stands for the rank that shares layers with the mirrored one."""


@dataclass(frozen=True)
class Emitted:
    """One frame on some wire."""

    at_us: int
    src: Port
    dst: Port
    frame: bytes


class Fabric:
    """Runs operations on the connections a mirror can see; everything else is implied."""

    def __init__(self, options: Options, rng: np.random.Generator) -> None:
        self.options, self.rng = options, rng
        self.clock_us = 1_700_000_000_000_000
        self.log: list[Emitted] = []
        self.next_qpn: dict[int, int] = {}
        self.group: list[Operation] = []
        self.connections: dict[tuple[str, int, int], Connection] = {}
        self.members = members_of(options)
        for communicator in sorted(self.members, reverse=options.beside_first):
            self.join(communicator)
        self.trees = Branches(options)
        if options.tree_below:
            self.trees.join(self.connections, self.connect)
        self.metric_trees = Branches(options, METRIC_TREE)
        if options.metric_trees:
            self.metric_trees.join({}, self.connect)
        self.heads = Heads(options, "nvls")
        if options.nvls_above:
            dp = [one for (of, *_), one in self.connections.items() if of == "dp"]
            there = {(*one.ranks, one.channel): one for one in dp}
            there |= {(s, r, c): one for (s, c, r), one in self.trees.connections.items()}
            self.heads.join({(s, c, r): one for (s, r, c), one in there.items()}, self.connect)
        if options.pipeline_bytes:
            self.join_pairs()
        if options.pat:
            self.join_aggregated()

    def join(self, communicator: str) -> None:
        """The connections of its ring that touch a mirrored node."""
        hosts = self.members[communicator]
        for host in self.options.mirrored:
            for inward in (True, False):
                for channel in range(self.options.channels):
                    for sender in range(len(hosts)):
                        source, target = self.ends(communicator, sender, channel)
                        near = target == host if inward else source == host
                        new = (communicator, sender, channel) not in self.connections
                        if source != target and near and new:
                            self.connect(communicator, sender, channel, source, target)

    def join_aggregated(self) -> None:
        """The connections of PAT's all-gathers, for ranks that are alone on their nodes."""
        ranks = self.options.ranks
        for dimension in range(pat.dimensions(ranks)):
            for channel in range(self.options.channels):
                for sender in range(ranks):
                    target = (sender - (1 << dimension)) % ranks
                    if {sender, target} & set(self.options.mirrored):
                        name = pat.name_of(dimension)
                        if target == (sender + 1) % ranks:  # that of the ring
                            ring = self.connections["dp", sender, channel]
                            self.connections[name, sender, channel] = ring
                        else:
                            self.connect(name, sender, channel, sender, target, target)

    def join_pairs(self) -> None:
        """The connections that carry sends from one rank to another."""
        ours = self.options.mirrored[0]
        if not self.options.pairs:
            for channel in range(2):
                self.connect("pp", 0, channel, ours, PIPELINE_RANK)
                self.connect("pp", 1, channel, PIPELINE_RANK, ours)
        for source, target in self.options.pairs:
            if {source, target} & set(self.options.mirrored):
                for channel in range(2):
                    self.connect(
                        pair_name(source, target), int(source > target), channel, source, target
                    )

    def ends(self, communicator: str, sender: int, channel: int) -> tuple[int, int]:
        """Hosts of the rank at a ring index and of the next one."""
        hosts = self.members[communicator]
        pair = sender, (sender + 1) % len(hosts)
        if communicator in ("dp", "metrics"):
            ranks = ranks_of(self.options, channel)
            pair = ranks[pair[0]], ranks[pair[1]]
        return hosts[pair[0]], hosts[pair[1]]

    def connect(
        self,
        communicator: str,
        sender: int,
        channel: int,
        source: int,
        target: int,
        receiver: int = -1,
        head: int = -1,
    ) -> Connection:
        """sender: ring index; of a tree's connection rank, as `receiver` is. head: of an NVLS
        tree."""
        ranks = sender, receiver
        if communicator in ("dp", "metrics"):
            around = ranks_of(self.options, channel)
            ranks = around[sender], around[(sender + 1) % len(around)]
        rails = (channel % self.options.ports,) * 2 if head < 0 else (head, head)
        if self.options.ring_exits and head < 0:
            gpus, each = self.options.gpus, self.options.ports
            rails = ranks[0] % gpus * each // gpus, ranks[1] % gpus * each // gpus
        src, dst = self.port(source, rails[0]), self.port(target, rails[1])
        udp = self.options.manners.udp
        own = rails if self.options.manners.numbers_of_nics else (0, 0)
        pairs = [
            QueuePair(self.qpn(source, own[0]), self.qpn(target, own[1]), udp=udp)
            for _ in range(self.options.qps * self.options.bonded)
        ]
        kind = Grouped if communicator.startswith("pp") and self.options.grouped > 1 else Connection
        if self.options.bonded > 1:
            kind = Bonded
        made = kind(
            self.options, self.rng, communicator, sender, channel, src, dst, pairs,
            self.emit, self.ready, ranks[0], ranks,
        )  # fmt: skip
        if isinstance(made, Bonded):
            made.ends = [
                (self.port(source, n), self.port(target, n)) for n in range(self.options.bonded)
            ]
        if communicator not in OF_TREES:
            self.connections[communicator, sender, channel] = made
        return made

    def qpn(self, node: int, nic: int) -> int:
        """The next QP number of a node, or of one of its NICs."""
        name = node + nic * (self.options.ranks + 2)
        if self.options.random_qpns:
            taken = set(self.next_qpn.values())
            number = int(self.rng.integers(0x40, 0xFFFFF0))
            while number in taken:
                number += 1
            self.next_qpn[-len(self.next_qpn)] = number
            return number
        if self.options.manners.same_qpns:
            self.next_qpn[name] = self.next_qpn.get(name, 0x110) + 1
            return self.next_qpn[name]
        if name not in self.next_qpn:
            self.next_qpn[name] = int(self.rng.integers(0x100, 0x40000))
        self.next_qpn[name] += int(self.rng.integers(1, 4))
        return self.next_qpn[name]

    def port(self, rank: int, rail: int) -> Port:
        high, low = divmod(rank + 1, 256)
        mac = bytes([0x02, 0, 0, *divmod(rank, 256), rail])
        if self.options.manners.macs == "router":
            mac = bytes([0x02, 1, 0, 0, 0, 1])
        if self.options.ipv6:
            return Port(mac, bytes.fromhex("fd00") + bytes(11) + bytes([high, rail, low]))
        return Port(mac, bytes([10, high, rail, low]))

    def emit(self, src: Port, dst: Port, frame: bytes, operation: Operation | None) -> None:
        if operation is not None:
            operation.last_frame = len(self.log)
            if operation.first_frame < 0:
                operation.first_frame = len(self.log)
        self.clock_us += 1
        self.log.append(Emitted(self.clock_us, src, dst, frame))

    def run(self, operations: list[Operation], background: list[Operation]) -> None:
        """Operations in order on the ring, each begun as soon as its ranks may; p2p meanwhile."""
        self.group = [*operations, *background]
        for operation in [*operations, *background]:
            for sender, channel in operation.loads:
                key = (operation.about.communicator, sender, channel)
                if key in self.connections and operation.loads[sender, channel]:
                    self.connections[key].enqueue(operation)
            branches = self.branches_of(operation)
            for place in operation.links:
                if place in branches.connections:
                    branches.connections[place].enqueue(operation)
        everyone = [*self.connections.values()]
        for branches in (self.trees, self.metric_trees, self.heads):
            own = branches.connections.values()
            everyone += [each for each in own if each.communicator == branches.name]
        busy = True
        while busy:
            busy = False
            if self.options.manners.turns:
                for each in everyone:
                    while each.work():
                        busy = True
                continue
            for at in self.rng.permutation(len(everyone)):
                busy = everyone[at].work() or busy
        left = [each for each in everyone if each.queue]
        assert not left, f"{len(left)} connections are stuck"

    def branches_of(self, operation: Operation) -> Branches | Heads:
        if operation.nvls:
            return self.heads
        return self.metric_trees if operation.about.communicator == "metrics" else self.trees

    def wait(self, gap_us: int) -> None:
        if self.options.manners.clock != "even":
            self.clock_us += gap_us

    def ready(self, connection: Connection, operation: Operation, message: int) -> bool:
        """Whether the sender has what it is to send."""
        if operation.about.communicator.startswith(("pp", "pat")):
            return True
        index, channel = connection.sender, connection.channel
        own = connection.communicator
        if own in OF_TREES:
            own, index = OF_TREES[own], ranks_of(self.options, channel).index(index)
        for earlier in self.group:
            if earlier is operation:
                break
            place = connection.ranks[0] if earlier.links else index
            if earlier.about.communicator == own and not self.finished(place, earlier):
                return False
        if operation.links:
            return self.branches_of(operation).fed(
                *connection.ranks, channel, operation, message + 1
            )
        return self.fed(index, channel, operation, message + 1)

    def fed(self, rank: int, channel: int, operation: Operation, sends: int) -> bool:
        """Whether a rank has received what its first `sends` messages need."""
        if operation.shift == 0:
            begins = rank == self.root(operation, channel)
            return begins or self.received(rank, channel, operation, sends)
        return self.received(rank, channel, operation, sends - operation.slices)

    def root(self, operation: Operation, channel: int) -> int:
        """Ring index of a broadcast's root."""
        return ranks_of(self.options, channel).index(operation.root) if operation.root else 0

    def received(self, rank: int, channel: int, operation: Operation, number: int) -> bool:
        communicator = operation.about.communicator
        while number > 0:
            rank = (rank - 1) % len(self.members[communicator])
            source = self.connections.get((communicator, rank, channel))
            if source is not None:
                return source.done[id(operation)] >= number
            if operation.shift == 0 and rank == self.root(operation, channel):
                return True
            number -= operation.slices * operation.shift
        return True

    def finished(self, rank: int, operation: Operation) -> bool:
        """Whether a rank's kernel has ended: everything sent, everything received. rank: ring
        index, but for trees."""
        if operation.links:
            return self.branches_of(operation).done_with(rank, operation)
        communicator = operation.about.communicator
        before = (rank - 1) % len(self.members[communicator])
        for channel in operation.channels:
            own = self.connections.get((communicator, rank, channel))
            sends = len(operation.loads.get((rank, channel), ()))
            if own is not None and sends and own.done[id(operation)] < sends:
                return False
            number = len(operation.loads.get((before, channel), ()))
            if not self.received(rank, channel, operation, number):
                return False
        return True


def pair_name(source: int, target: int) -> str:
    """Of the communicator of two ranks."""
    return f"pp {min(source, target)} {max(source, target)}"


def members_of(options: Options) -> dict[str, tuple[int, ...]]:
    """{communicator of a ring: its ranks' hosts, by rank}."""
    whole = tuple(rank // options.gpus for rank in range(options.ranks))
    found = {"dp": whole}
    ours = options.mirrored[0]
    if options.tensor_layers:
        near = (ours + 1) % options.nodes
        found["tp"] = (ours, near if options.tensor_near else TENSOR_RANK)
    if options.metrics_group:
        found["metrics"] = whole
    return found
