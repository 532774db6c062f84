"""The emulated NIC of a process and NCCL-like communicators on it, through the C library."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from torch.distributed import DistBackendError

from flowcheck._lab import ffi, lib
from flowcheck.lab.roce_backend.trainer_environment import BackendSettings

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
"""Fields of struct fcl_net_settings that are copied by name."""


POLL_S = 0.002
"""Seconds between two looks at the store while a peer has not written yet. A choice: shorter costs
processor time, longer delays the start."""


def check(code: int) -> int:
    """`code`, or DistBackendError with the sentence C left."""
    if code < 0:
        raise DistBackendError(f"flowcheck lab: {ffi.string(lib.fcl_error()).decode()}")
    return code


class EmulatedNic:
    """The port of this process and the thread that drives it; opened by the first group."""

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

    @classmethod
    def get(cls, settings: BackendSettings) -> EmulatedNic:
        """The one node; raises DistBackendError when the port cannot be opened."""
        with cls._lock:
            if cls._open is None:
                cls._open = cls(settings)
            return cls._open

    @classmethod
    def close(cls) -> None:
        """Ends the thread; communicators must be closed before."""
        with cls._lock:
            node, cls._open = cls._open, None
        if node is not None:
            lib.fcl_node_close(node.pointer)

    @classmethod
    def counters(cls) -> dict[str, int]:
        """Frames and bytes so far, by field of struct fcl_net_counters; {} without a node."""
        with cls._lock:
            if cls._open is None:
                return {}
            out = ffi.new("struct fcl_net_counters *")
            lib.fcl_node_read(cls._open.pointer, out)
        return {name: int(getattr(out, name)) for name, _ in ffi.typeof(out[0]).fields}


@dataclass(frozen=True, slots=True)
class Operation:
    """One collective; its memory is contiguous and stays alive and untouched till it is done."""

    kind: int
    type: int
    reduction: int
    count: int
    """Elements: of the tensor; per rank for all_gather and reduce_scatter."""
    input: int
    output: int
    peer: int = 0


@dataclass(frozen=True, slots=True)
class OperationResult:
    """What was done."""

    protocol: int
    channels: int
    messages: int


class RoceCommunicator:
    """Ranks that talk over rings and pairs; connections are made when first needed, as by NCCL."""

    def __init__(
        self, settings: BackendSettings, store: Any, rank: int, ranks: int, timeout_ms: int
    ) -> None:
        self.rank, self.ranks, self._store = rank, ranks, store
        self._timeout_ms = timeout_ms
        self._ring, self._connected = False, set[int]()
        self._peers: dict[int, threading.Lock] = {}
        self._connecting, self._leaving = threading.Lock(), threading.Event()
        wanted = ffi.new(
            "struct fcl_comm_settings *",
            {
                "rank": rank,
                "ranks": ranks,
                "channels": settings.channels,
                "protocol": settings.protocol,
                "buffer_bytes": settings.buffer_bytes,
                "tree_below": settings.tree_below,
            },
        )
        opened = ffi.new("struct fcl_comm **")
        check(lib.fcl_comm_open(EmulatedNic.get(settings).pointer, wanted, opened))
        self.pointer: Any = opened[0]
        self._bytes = int(lib.fcl_comm_handles_bytes(self.pointer))

    def connect_ring(self) -> None:
        """Swap handles with both neighbours through the store; blocks until they are there."""
        if self._ring or self.ranks == 1:
            return
        to_previous = ffi.new("uint8_t[]", self._bytes)
        to_next = ffi.new("uint8_t[]", self._bytes)
        check(lib.fcl_comm_handles(self.pointer, to_previous, to_next))
        self._store.set(f"ring/{self.rank}/previous", bytes(ffi.buffer(to_previous)))
        self._store.set(f"ring/{self.rank}/next", bytes(ffi.buffer(to_next)))
        before, after = (self.rank - 1) % self.ranks, (self.rank + 1) % self.ranks
        from_previous = self._handles(f"ring/{before}/next", self._bytes)
        from_next = self._handles(f"ring/{after}/previous", self._bytes)
        check(lib.fcl_comm_connect(self.pointer, from_previous, from_next))
        # Who sends before the other has connected would only be retransmitted.
        self._connect_trees()
        self._meet("ring/connected", self.ranks)
        self._ring = True

    def _connect_trees(self) -> None:
        """The same with those whom only trees link to this rank."""
        ranks = ffi.new("uint32_t[]", lib.FCL_MOST_BRANCHES)
        peers = [int(ranks[i]) for i in range(lib.fcl_comm_branches(self.pointer, ranks))]
        for peer in peers:
            mine = ffi.new("uint8_t[]", 2 * self._bytes)
            check(lib.fcl_comm_branch_handles(self.pointer, peer, mine))
            self._store.set(f"tree/{self.rank}/{peer}", bytes(ffi.buffer(mine)))
        for peer in peers:
            theirs = self._handles(f"tree/{peer}/{self.rank}", 2 * self._bytes)
            check(lib.fcl_comm_branch_connect(self.pointer, peer, theirs))

    def connect_peer(self, peer: int) -> None:
        """The same with one peer, which must come to send or receive as well. Any thread."""
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
        """Wait until all ranks are here, but no longer than `limit`: a rank whose last ACKs were
        lost would else retransmit to nobody, and one that failed never comes."""
        try:
            if self._store.add("parting", 1) == self.ranks:
                self._store.set("parted", b"1")
            self._store.wait(["parted"], limit)
        except RuntimeError:
            return  # c10d's stores raise nothing narrower; nobody to wait for

    def submit(self, operation: Operation) -> int:
        """Queue it; its ticket."""
        wanted = ffi.new("struct fcl_operation *")
        for field in ("kind", "type", "reduction", "count", "peer"):
            setattr(wanted, field, getattr(operation, field))
        wanted.input = ffi.cast("void *", operation.input)
        wanted.output = ffi.cast("void *", operation.output)
        ticket = ffi.new("uint64_t *")
        check(lib.fcl_submit(self.pointer, wanted, ticket))
        return int(ticket[0])

    def wait(self, ticket: int) -> OperationResult:
        """Wait without the GIL; raises DistBackendError when it failed or took too long."""
        outcome = ffi.new("struct fcl_outcome *")
        check(lib.fcl_wait(self.pointer, ticket, self._timeout_ms, outcome))
        return OperationResult(int(outcome.protocol), int(outcome.channels), int(outcome.messages))

    def abort(self, sentence: str) -> None:
        """Fail all that is queued; whoever waits returns."""
        self._leaving.set()
        lib.fcl_comm_abort(self.pointer, sentence.encode())

    def close(self) -> None:
        """Give back connections; nobody may wait any more."""
        pointer, self.pointer = self.pointer, None
        lib.fcl_comm_close(pointer)
