"""The emulated NIC of a process, and communicators like NCCL's on it, through the lab's C
library."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

from torch.distributed import DistBackendError

from flowcheck._lab import ffi, lib
from flowcheck.lab.roce_backend.rank_places import Place, RankLayout, rank_layout
from flowcheck.lab.roce_backend.trainer_environment import ALL_BYTES, BackendSettings

NET_FIELDS = (
    "pmtu_bytes",
    "nccl_version",
    "qps_per_connection",
    "split_data",
    "adaptive",
    "random_qpn",
    "traffic_class",
    "timeout_ms",
    "retries",
    "loss",
    "reorder",
    "seed",
)
"""Fields of struct fcl_net_settings that are copied by name from BackendSettings."""


POLL_S = 0.002
"""Seconds between two reads of the store while a peer has not written yet. A choice: a shorter
time costs CPU time, a longer one delays the start."""


def check(code: int) -> int:
    """Returns `code`, or raises DistBackendError with the message of the C library if it is
    negative."""
    if code < 0:
        raise DistBackendError(f"flowcheck lab: {ffi.string(lib.fcl_error()).decode()}")
    return code


class EmulatedNic:
    """The NIC of this process and the thread that runs it; the first process group opens it."""

    _open: ClassVar[EmulatedNic | None] = None
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, settings: BackendSettings) -> None:
        wanted = ffi.new("struct fcl_net_settings *")
        wanted.interface = settings.interface.encode()
        for field in NET_FIELDS:
            setattr(wanted, field, getattr(settings, field))
        opened = ffi.new("struct fcl_node **")
        check(lib.fcl_node_open(wanted, opened))
        self.pointer: Any = opened[0]
        # Processes of one network namespace are on one host, whatever they are called.
        self.place = Place(str(Path("/proc/thread-self/ns/net").stat().st_ino), settings.nic)

    @classmethod
    def get(cls, settings: BackendSettings) -> EmulatedNic:
        """The process's NIC, opened if necessary. Raises DistBackendError if the port cannot be
        opened."""
        with cls._lock:
            if cls._open is None:
                cls._open = cls(settings)
            return cls._open

    @classmethod
    def close(cls) -> None:
        """Closes the NIC and ends its thread. All communicators must be closed before."""
        with cls._lock:
            node, cls._open = cls._open, None
        if node is not None:
            lib.fcl_node_close(node.pointer)

    @classmethod
    def counters(cls) -> dict[str, int]:
        """Counters of frames and bytes so far, by field of struct fcl_net_counters; {} without a
        NIC."""
        with cls._lock:
            if cls._open is None:
                return {}
            out = ffi.new("struct fcl_net_counters *")
            lib.fcl_node_read(cls._open.pointer, out)
        return {name: int(getattr(out, name)) for name, _ in ffi.typeof(out[0]).fields}


@dataclass(frozen=True, slots=True)
class Operation:
    """One collective. Its memory must be contiguous and must not be freed or changed until the
    collective is done."""

    kind: int
    type: int
    reduction: int
    count: int
    """Elements of the tensor; of all-gather and reduce-scatter, elements per rank."""
    input: int
    output: int
    peer: int = 0


def _in_c(operation: Operation) -> Any:
    """The operation as C has it."""
    made = ffi.new("struct fcl_operation *")
    for field in ("kind", "type", "reduction", "count", "peer"):
        setattr(made, field, getattr(operation, field))
    made.input = ffi.cast("void *", operation.input)
    made.output = ffi.cast("void *", operation.output)
    return made


@dataclass(frozen=True, slots=True)
class OperationResult:
    """Facts about a completed operation."""

    algorithm: int
    protocol: int
    channels: int
    messages: int


CONNECTS_WHEN_USED = 22200
"""First release that connects an algorithm when it is first used, not at the start (NCCL,
src/group.cc)."""


class RoceCommunicator:
    """A communicator whose connections are made when they are first needed, as in NCCL."""

    def __init__(
        self, settings: BackendSettings, store: Any, rank: int, ranks: int, timeout_ms: int
    ) -> None:
        self.rank, self.ranks, self._store = rank, ranks, store
        self._timeout_ms, self._version = timeout_ms, settings.nccl_version
        self._linked, self._connected = set[int](), set[int]()
        self._peers: dict[int, threading.Lock] = {}
        self._connecting, self._leaving = threading.Lock(), threading.Event()
        nic = EmulatedNic.get(settings)
        self.layout = self._meet_all(nic.place)
        whole = [one for c in range(settings.channels) for one in self.layout.ring(c)]
        heads = [] if settings.nvls_from == ALL_BYTES else self.layout.heads(self._version)
        of_heads = [one for host in heads for one in host]
        chains = [one for c in range(settings.channels) for one in self.layout.chain(c)]
        kept = [
            ffi.new("uint32_t[]", numbers or 1)
            for numbers in (whole, self.layout.host_of, of_heads, chains)
        ]
        wanted = ffi.new(
            "struct fcl_comm_settings *",
            {
                "rank": rank,
                "ranks": ranks,
                "channels": settings.channels,
                "protocol": settings.protocol,
                "buffer_bytes": settings.buffer_bytes,
                "tree_below": settings.tree_below,
                "orders": kept[0],
                "hosts": kept[1],
                "chains": kept[3] if chains else ffi.NULL,
                "found": self.layout.found(settings.channels),
                "nvls_from": settings.nvls_from,
                "heads": len(heads[0]) if heads else 0,
                "head_ranks": kept[2],
            },
        )
        opened = ffi.new("struct fcl_comm **")
        check(lib.fcl_comm_open(nic.pointer, wanted, opened))
        self.pointer: Any = opened[0]
        self._bytes = int(lib.fcl_comm_handles_bytes(self.pointer))

    def _meet_all(self, place: Place) -> RankLayout:
        """Where all ranks are; blocks until each has said it."""
        self._store.set(f"place/{self.rank}", f"{place.host} {place.nic}".encode())
        self._meet("place/told", self.ranks)
        places = []
        for told in self._store.multi_get([f"place/{rank}" for rank in range(self.ranks)]):
            host, nic = bytes(told).decode().split()
            places.append(Place(host, int(nic)))
        return rank_layout(places)

    def connect_for(self, operation: Operation) -> None:
        """Makes the connections that a collective needs and are not there yet. All ranks must call
        it; blocks until they do. Raises DistBackendError."""
        algorithm = int(lib.fcl_comm_algorithm(self.pointer, _in_c(operation)))
        if algorithm < 0 or algorithm in self._linked:
            return
        if self._version >= CONNECTS_WHEN_USED:
            self._link(algorithm)
            return
        for each in range(lib.FCL_ALGORITHMS):
            if lib.fcl_comm_uses(self.pointer, each):
                self._link(each)

    def _link(self, algorithm: int) -> None:
        """Connects to all ranks that an algorithm links to this one, exchanging handles through
        the store."""
        ranks, size = ffi.new("uint32_t[]", self.ranks), int(lib.fcl_comm_link_bytes(self.pointer))
        count = check(lib.fcl_comm_open_links(self.pointer, algorithm, ranks))
        peers = [int(rank) for rank in ranks[0:count]]
        for peer in peers:
            mine = ffi.new("uint8_t[]", size)
            check(lib.fcl_comm_link_handles(self.pointer, peer, mine))
            self._store.set(f"link/{algorithm}/{self.rank}/{peer}", bytes(ffi.buffer(mine)))
        for peer in peers:
            theirs = self._handles(f"link/{algorithm}/{peer}/{self.rank}", size)
            check(lib.fcl_comm_link_connect(self.pointer, algorithm, peer, theirs))
        # Who sends before the other has connected would only be retransmitted.
        self._meet(f"link/{algorithm}/connected", self.ranks)
        self._linked.add(algorithm)

    def connect_peer(self, peer: int) -> None:
        """Connects to one peer, which must also send to or receive from this rank. Any thread may
        call it. Raises DistBackendError."""
        with self._connecting:
            lock = self._peers.setdefault(peer, threading.Lock())
        with lock:
            if peer not in self._connected:
                self._connect(peer)

    def _connect(self, peer: int) -> None:
        mine = ffi.new("uint8_t[]", 2 * self._bytes)
        check(lib.fcl_comm_peer_handles(self.pointer, peer, mine))
        self._store.set(f"peer/{self.rank}/{peer}", bytes(ffi.buffer(mine)))
        theirs = self._handles(f"peer/{peer}/{self.rank}", 2 * self._bytes)
        check(lib.fcl_comm_peer_connect(self.pointer, peer, theirs))
        low, high = sorted((self.rank, peer))
        self._meet(f"peer/{low}/{high}/connected", 2)
        self._connected.add(peer)

    def _handles(self, key: str, length: int) -> bytes:
        handles = self._await(key)
        if len(handles) != length:
            raise DistBackendError(
                f"flowcheck lab: {key} has {len(handles)} bytes where {length} were due: "
                "all ranks need the same number of channels"
            )
        return handles

    def _meet(self, key: str, number: int) -> None:
        if self._store.add(f"{key}/count", 1) == number:
            self._store.set(key, b"1")
        self._await(key)

    def _await(self, key: str) -> bytes:
        """The value of `key` once it is there. Asks again and again: a blocking get keeps a store
        from its other users, whom the rank that is to set `key` may be waiting for."""
        deadline = time.monotonic() + self._timeout_ms / 1000
        while not self._store.check([key]):
            if self._leaving.wait(POLL_S):
                raise DistBackendError("flowcheck lab: the process group was ended")
            if time.monotonic() > deadline:
                raise DistBackendError(f"flowcheck lab: no peer has written {key} in time")
        return bytes(self._store.get(key))

    def part(self, limit: timedelta) -> None:
        """Waits until all ranks have come here, at most `limit`. Otherwise a rank that missed last
        ACKs would retransmit to nobody; a failed rank never comes."""
        try:
            if self._store.add("parting", 1) == self.ranks:
                self._store.set("parted", b"1")
            self._store.wait(["parted"], limit)
        except RuntimeError:
            return  # c10d's stores raise nothing narrower; nobody to wait for

    def submit(self, operation: Operation) -> int:
        """Queues an operation; returns its ticket. Raises DistBackendError."""
        ticket = ffi.new("uint64_t *")
        check(lib.fcl_submit(self.pointer, _in_c(operation), ticket))
        return int(ticket[0])

    def wait(self, ticket: int) -> OperationResult:
        """Waits for an operation without holding the GIL. Raises DistBackendError if it failed or
        timed out."""
        outcome = ffi.new("struct fcl_outcome *")
        check(lib.fcl_wait(self.pointer, ticket, self._timeout_ms, outcome))
        fields = (outcome.algorithm, outcome.protocol, outcome.channels, outcome.messages)
        return OperationResult(*map(int, fields))

    def abort(self, sentence: str) -> None:
        """Fails all queued operations with this message; waiting threads return."""
        self._leaving.set()
        lib.fcl_comm_abort(self.pointer, sentence.encode())

    def close(self) -> None:
        """Closes all connections. No thread may be waiting."""
        pointer, self.pointer = self.pointer, None
        lib.fcl_comm_close(pointer)
