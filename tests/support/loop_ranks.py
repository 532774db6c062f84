"""The lab's collectives on a network inside this process (loop_net.c): several ranks, one test."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from cffi import FFI

from flowcheck.lab.roce_backend.tensor_memory import REDUCTIONS, TYPES

HERE = Path(__file__).resolve().parent
LAB = HERE.parents[1] / "dpdk_ext" / "lab"
ABOVE_THE_NETWORK = re.compile(
    r"fcl_(comm|node|ring|kernel|lines|reduce|enqueue|tree|places|shared|nvls)"
)

KINDS = {
    "all_reduce": 0,
    "broadcast": 1,
    "all_gather": 2,
    "reduce_scatter": 3,
    "send": 4,
    "recv": 5,
}
PROTOCOLS = {"LL": 0, "LL128": 1, "SIMPLE": 2, "ANY": 3}
FLAGS = ("-std=gnu11", "-O2", "-g", "-Wall", "-ffp-contract=off")


_BUILT: list[Any] = []


def module(folder: Path) -> Any:
    """The library over loop_net, built into `folder` where this process has none yet: (ffi, lib) as
    attributes."""
    if not _BUILT:
        _BUILT.append(_build(folder))
    return _BUILT[0]


def _build(folder: Path) -> Any:
    text = (
        "\n".join((LAB / name).read_text() for name in ("fcl_net.h", "fcl_comm.h"))
        + (HERE / "loop_net.h").read_text()
    )
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
    ffi = FFI()
    ffi.cdef(re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE))
    sources = [str(p) for p in sorted(LAB.glob("*.c")) if ABOVE_THE_NETWORK.match(p.name)]
    ffi.set_source(
        "_loop",
        '#include "fcl_comm.h"\n#include "loop_net.h"\n',
        sources=[*sources, str(HERE / "loop_net.c")],
        include_dirs=[str(LAB), str(HERE)],
        extra_compile_args=list(FLAGS),
        libraries=["pthread", "m"],
    )
    built = ffi.compile(tmpdir=str(folder))
    spec = importlib.util.spec_from_file_location("_loop", built)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@dataclass(frozen=True)
class Message:
    """One message of one sending end."""

    bytes: int
    capacity: int
    flag: int
    va: int


class Ranks:
    """Ranks of one communicator, each with a node of its own; closed with `close`.

    hosts: [rank] the rank's host, by default one each; orders: [channel] the ring, from rank 0 on;
    chains: [channel] ranks by host, from the one in the tree on;
    heads: [host] ranks of its heads: all-reduces go by NVLS trees where they can.
    """

    def __init__(
        self,
        loop: Any,
        ranks: int,
        channels: int = 1,
        protocol: str = "ANY",
        version: int = 22900,
        *,
        hosts: Sequence[int] | None = None,
        orders: Sequence[Sequence[int]] | None = None,
        heads: Sequence[Sequence[int]] = (),
        chains: Sequence[Sequence[int]] = (),
        **more: Any,
    ) -> None:
        self.loop, self.ffi, self.lib = loop, loop.ffi, loop.lib
        self.ranks, self.channels = ranks, channels
        self.hosts = tuple(range(ranks)) if hosts is None else tuple(hosts)
        self.nodes: list[Any] = []
        self.comms: list[Any] = []
        self.wires: dict[int, tuple[int, int, int]] = {}
        """Number of a sending end of the network -> (rank, peer, channel)."""
        whole = [rank for order in orders or [range(ranks)] * channels for rank in order]
        for rank in range(ranks):
            node = self.ffi.new("struct fcl_node **")
            wanted = self.ffi.new("struct fcl_net_settings *", {"nccl_version": version})
            self.check(self.lib.fcl_node_open(wanted, node))
            self.nodes.append(node[0])
            comm = self.ffi.new("struct fcl_comm **")
            kept = self.ffi.new("uint32_t[]", whole), self.ffi.new("uint32_t[]", self.hosts)
            settings = self.ffi.new("struct fcl_comm_settings *", more)
            settings.rank, settings.ranks, settings.channels = rank, ranks, channels
            settings.protocol = PROTOCOLS[protocol]
            settings.orders, settings.hosts = kept
            heads_kept = self.ffi.new("uint32_t[]", [one for host in heads for one in host] or 1)
            chained = self.ffi.new("uint32_t[]", [one for row in chains for one in row] or 1)
            settings.chains = chained if chains else self.ffi.NULL
            settings.heads = len(heads[0]) if heads else 0
            settings.head_ranks = heads_kept
            self.check(self.lib.fcl_comm_open(node[0], settings, comm))
            self.comms.append(comm[0])
        if ranks > 1:
            self.connect(self.lib.FCL_RING)
        self.wire_messages()

    def check(self, code: int) -> int:
        """`code`; raises OSError with C's sentence."""
        if code < 0:
            raise OSError(-code, self.ffi.string(self.lib.fcl_error()).decode())
        return code

    def connect(self, algorithm: int) -> None:
        """Open and connect what an algorithm needs."""
        size, told = self.lib.fcl_comm_link_bytes(self.comms[0]), {}
        for rank, comm in enumerate(self.comms):
            room = self.ffi.new("uint32_t[]", self.ranks)
            count = self.check(self.lib.fcl_comm_open_links(comm, algorithm, room))
            for peer in room[0:count]:
                mine = self.ffi.new("uint8_t[]", size)
                self.check(self.lib.fcl_comm_link_handles(comm, peer, mine))
                told[rank, peer] = mine
                if self.hosts[rank] != self.hosts[peer]:
                    self._number(rank, peer, bytes(self.ffi.buffer(mine)))
        for (rank, peer), mine in told.items():
            self.check(self.lib.fcl_comm_link_connect(self.comms[peer], algorithm, rank, mine))

    def _number(self, rank: int, peer: int, handles: bytes) -> None:
        """Which sending ends there are towards `peer`: the first half of the first room."""
        bytes_each = self.lib.fcl_comm_handles_bytes(self.comms[0]) // self.channels
        for channel in range(self.channels):
            handle = handles[channel * bytes_each :][:12]
            if any(handle):
                number = int.from_bytes(handle[8:], "little")
                self.wires[number] = rank, peer, channel

    def pair(self, one: int, other: int) -> None:
        """Connect two ranks for send and receive."""
        size = 2 * self.lib.fcl_comm_handles_bytes(self.comms[0])
        handles = {rank: self.ffi.new("uint8_t[]", size) for rank in (one, other)}
        for rank, peer in ((one, other), (other, one)):
            self.check(self.lib.fcl_comm_peer_handles(self.comms[rank], peer, handles[rank]))
        for rank, peer in ((one, other), (other, one)):
            self.check(self.lib.fcl_comm_peer_connect(self.comms[rank], peer, handles[peer]))

    def submit(
        self,
        rank: int,
        kind: str,
        taken: torch.Tensor,
        made: torch.Tensor,
        count: int,
        peer: int = 0,
        reduction: str = "sum",
    ) -> int:
        """Queue one operation of one rank; its ticket."""
        operation = self.ffi.new("struct fcl_operation *")
        operation.kind, operation.type = KINDS[kind], TYPES[taken.dtype]
        operation.reduction, operation.peer, operation.count = REDUCTIONS[reduction], peer, count
        operation.input = self.ffi.cast("void *", taken.data_ptr())
        operation.output = self.ffi.cast("void *", made.data_ptr())
        ticket = self.ffi.new("uint64_t *")
        self.check(self.lib.fcl_submit(self.comms[rank], operation, ticket))
        return int(ticket[0])

    def wait(self, rank: int, ticket: int, timeout_ms: int = 20_000) -> tuple[int, int, int]:
        """(protocol, channels, messages sent) of a finished operation."""
        outcome = self.ffi.new("struct fcl_outcome *")
        self.check(self.lib.fcl_wait(self.comms[rank], ticket, timeout_ms, outcome))
        return outcome.protocol, outcome.channels, outcome.messages

    def all(self, kind: str, taken: list[torch.Tensor], made: list[torch.Tensor], count: int,
            root: int = 0, reduction: str = "sum") -> list[tuple[int, int, int]]:  # fmt: skip
        """One collective of all ranks, waited for."""
        tickets = [
            self.submit(rank, kind, taken[rank], made[rank], count, root, reduction)
            for rank in range(self.ranks)
        ]
        return [self.wait(rank, ticket) for rank, ticket in enumerate(tickets)]

    def sent(self) -> dict[tuple[int, int], list[Message]]:
        """Messages on the network since the last call, by (rank, channel)."""
        by_end: dict[tuple[int, int], list[Message]] = {}
        for (rank, _, channel), messages in self.wire_messages().items():
            by_end.setdefault((rank, channel), []).extend(messages)
        return by_end

    def wire_messages(self) -> dict[tuple[int, int, int], list[Message]]:
        """Messages on the network since the last call, by (rank, peer, channel)."""
        room = 1 << 16
        out = self.ffi.new("struct loop_message[]", room)
        found: dict[tuple[int, int, int], list[Message]] = {}
        for i in range(self.lib.loop_messages(out, room)):
            one = out[i]
            if one.sender in self.wires:
                message = Message(one.bytes, one.capacity, one.flag, one.va)
                found.setdefault(self.wires[one.sender], []).append(message)
        return found

    def close(self) -> None:
        """Communicators, then nodes."""
        for comm in self.comms:
            self.lib.fcl_comm_close(comm)
        for node in self.nodes:
            self.lib.fcl_node_close(node)
