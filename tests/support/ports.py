"""One rank of a two-rank exchange over the lab's transport, to be run on a host of its own.

Both ranks send and receive on several connections at once; what is sent follows from the job's
seed, so that each receiver knows every byte it must find, and every byte that must stay as it was.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flowcheck._lab import ffi, lib

SLOTS = 8
UNTOUCHED = 0xEE
FIRST_VA = 0x7F1200000000


class PortError(RuntimeError):
    """The transport's own sentence."""


def check(code: int) -> int:
    if code < 0:
        raise PortError(ffi.string(lib.fcl_error()).decode())
    return code


@dataclass(frozen=True)
class Exchange:
    """What two ranks send each other. `sizes_bytes`: of each connection's messages."""

    folder: str
    sizes_bytes: list[list[int]]
    seed: int = 1
    settings: dict[str, Any] = field(default_factory=dict)
    verify: bool = True

    def payload(self, sender: int, connection: int, number: int) -> bytes:
        size = self.sizes_bytes[connection][number]
        if not self.verify:
            return bytes(size)
        return random.Random(f"{self.seed}/{sender}/{connection}/{number}").randbytes(size)

    def script(self, rank: int) -> str:
        """Python source for one rank."""
        return f"from support.ports import main; main({rank}, {json.dumps(asdict(self))!r})"

    def pipes(self) -> Exchange:
        """Makes what the ranks swap their handles by."""
        for rank in (0, 1):
            os.mkfifo(Path(self.folder) / f"from{rank}")
        return self


DEFAULTS: dict[str, Any] = {
    "interface": b"eth0",
    "pmtu_bytes": 4096,
    "nccl_version": 22900,
    "qps_per_connection": 1,
    "timeout_ms": 30,
    "retries": 40,
    "seed": 7,
}


class Port:
    """An open port with one region of memory for what comes."""

    def __init__(self, region_bytes: int, **settings: Any) -> None:
        self.settings = ffi.new("struct fcl_net_settings *", DEFAULTS | settings)
        pointer = ffi.new("struct fcl_net **")
        check(lib.fcl_net_open(self.settings, pointer))
        self.net = pointer[0]
        self.memory = bytearray([UNTOUCHED]) * region_bytes
        self._pinned = ffi.from_buffer(self.memory)
        region = ffi.new("struct fcl_region **")
        check(lib.fcl_region_open(self.net, self._pinned, region_bytes, FIRST_VA, region))
        self.region = region[0]

    def turn(self) -> None:
        """Does what is to be done, or waits until something is."""
        if check(lib.fcl_net_progress(self.net)) == 0:
            check(lib.fcl_net_wait(self.net, -1, 500))

    def counters(self) -> dict[str, int]:
        out = ffi.new("struct fcl_net_counters *")
        lib.fcl_net_read(self.net, out)
        return {name: int(getattr(out, name)) for name, _ in ffi.typeof(out[0]).fields}

    def close(self) -> None:
        lib.fcl_net_close(self.net)


class Outgoing:
    """A sender of one connection: keeps what it sends until that is acknowledged."""

    def __init__(self, port: Port, exchange: Exchange, rank: int, connection: int) -> None:
        self.exchange, self.rank, self.connection = exchange, rank, connection
        self.handle = ffi.new("uint8_t[]", lib.FCL_HANDLE_BYTES)
        pointer = ffi.new("struct fcl_send_comm **")
        check(lib.fcl_send_open(port.net, self.handle, pointer))
        self.comm = pointer[0]
        self.total = len(exchange.sizes_bytes[connection])
        self.next = self.done = 0
        self.kept: dict[int, Any] = {}
        self.ticket = ffi.new("uint64_t *")
        self.waiting: Any = None

    def connect(self, peer: bytes) -> None:
        check(lib.fcl_send_connect(self.comm, peer))

    def advance(self) -> bool:
        """True when every message is acknowledged."""
        while self.next < self.total:
            if self.waiting is None:
                made = self.exchange.payload(self.rank, self.connection, self.next)
                self.waiting = ffi.from_buffer(made)
            code = lib.fcl_isend(self.comm, self.waiting, len(self.waiting), self.ticket)
            if code == -11:
                break
            check(code)
            assert self.ticket[0] == self.next
            self.kept[self.next], self.waiting = self.waiting, None
            self.next += 1
        while self.done < self.next and check(lib.fcl_send_test(self.comm, self.done)):
            del self.kept[self.done]
            self.done += 1
        return self.done == self.total

    def close(self) -> None:
        lib.fcl_send_close(self.comm)


class Incoming:
    """A receiver of one connection with SLOTS places of the port's region."""

    def __init__(self, port: Port, exchange: Exchange, rank: int, connection: int) -> None:
        self.port, self.exchange, self.peer, self.connection = port, exchange, 1 - rank, connection
        self.handle = ffi.new("uint8_t[]", lib.FCL_HANDLE_BYTES)
        pointer = ffi.new("struct fcl_recv_comm **")
        check(lib.fcl_recv_open(port.net, self.peer, self.handle, pointer))
        self.comm = pointer[0]
        self.total = len(exchange.sizes_bytes[connection])
        self.posted = self.done = 0
        self.room = room_bytes(exchange)
        self.ticket = ffi.new("uint64_t *")
        self.came = ffi.new("uint32_t *")

    def connect(self, peer: bytes) -> None:
        check(lib.fcl_recv_connect(self.comm, peer))

    def _slot(self, number: int) -> int:
        return (self.connection * SLOTS + number % SLOTS) * self.room

    def _verify(self, number: int) -> None:
        right = self.exchange.payload(self.peer, self.connection, number)
        assert self.came[0] == len(right), (number, self.came[0], len(right))
        slot = memoryview(self.port.memory)[self._slot(number) :][: self.room]
        assert slot[: len(right)] == right, f"message {number} differs"
        assert slot[len(right) :] == bytes([UNTOUCHED]) * (self.room - len(right))
        slot[: len(right)] = bytes([UNTOUCHED]) * len(right)

    def advance(self) -> bool:
        """True when every message has come and was right."""
        while self.done < self.posted and lib.fcl_recv_test(self.comm, self.done, self.came):
            if self.exchange.verify:
                self._verify(self.done)
            self.done += 1
        while self.posted < min(self.total, self.done + SLOTS):
            capacity = self.exchange.sizes_bytes[self.connection][self.posted]
            code = lib.fcl_irecv(
                self.comm, self.port.region, self._slot(self.posted), capacity, self.ticket
            )
            if code == -11:
                break
            check(code)
            assert self.ticket[0] == self.posted
            self.posted += 1
        return self.done == self.total

    def close(self) -> None:
        lib.fcl_recv_close(self.comm)


def room_bytes(exchange: Exchange) -> int:
    """Of one receive slot: the largest message and some bytes that must stay untouched."""
    return max(max(sizes, default=0) for sizes in exchange.sizes_bytes) + 64


def swap(folder: str, rank: int, own: list[bytes]) -> list[bytes]:
    """Handles through two named pipes; opening one waits for the other rank."""
    paths = [Path(folder) / f"from{sender}" for sender in (0, 1)]
    text = json.dumps([one.hex() for one in own])
    if rank == 0:
        paths[0].write_text(text)
        come = paths[1].read_text()
    else:
        come = paths[0].read_text()
        paths[1].write_text(text)
    return [bytes.fromhex(one) for one in json.loads(come)]


def part(port: Port, folder: str, rank: int) -> None:
    """Answers until the peer has all its ACKs as well, as jobs do through their store."""
    own, peer = (Path(folder) / f"ended{one}" for one in (rank, 1 - rank))
    own.touch()
    while not peer.exists():
        check(lib.fcl_net_progress(port.net))
        check(lib.fcl_net_wait(port.net, -1, 10))


def main(rank: int, description: str) -> None:
    """The rank's whole life; prints counters and seconds as JSON."""
    exchange = Exchange(**json.loads(description))
    ways = range(len(exchange.sizes_bytes))
    port = Port(len(ways) * SLOTS * room_bytes(exchange), **exchange.settings)
    outs = [Outgoing(port, exchange, rank, way) for way in ways]
    ins = [Incoming(port, exchange, rank, way) for way in ways]
    every: list[Outgoing | Incoming] = [*outs, *ins]
    handles = swap(exchange.folder, rank, [bytes(one.handle) for one in every])
    for out, peer in zip(outs, handles[len(outs) :], strict=True):
        out.connect(peer)
    for come, peer in zip(ins, handles[: len(outs)], strict=True):
        come.connect(peer)
    began, cpu_began = time.monotonic(), time.process_time()
    while sum(one.advance() for one in every) < len(every):
        port.turn()
    result: dict[str, float] = {
        "seconds": time.monotonic() - began,
        "cpu_seconds": time.process_time() - cpu_began,
    }
    part(port, exchange.folder, rank)
    result |= port.counters()
    for one in every:
        one.close()
    port.close()
    json.dump(result, sys.stdout)
