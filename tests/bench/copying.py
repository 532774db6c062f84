"""A copy on another machine: the gradient of a step to one peer, against a plain socket that brings
the same bytes from the same memory between the same two processes, in turns in the same run."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import shutil
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.measure import Figure, Scale
from flowcheck.config import CopiesConfig, GradientsConfig, encode_config, job_from
from flowcheck.plane.shared_memory.shared_memory_location import SHM
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.param_layout import Layout
from flowcheck.stages.copy_updater.copy_client import CopyClient
from flowcheck.stages.replica_copies.change_ring import ChangeRing
from flowcheck.stages.replica_copies.change_ring_sizes import change_slot_bytes
from flowcheck.stages.replica_copies.copies_server import CopiesServer
from flowcheck.stages.replica_copies.copy_epoch import Epoch
from flowcheck.stages.replica_copies.copy_messages import AnswerKind, CopyPosition
from flowcheck.stages.replica_update.kept_steps import KeptSteps
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step

TARGET = 0.8
GRADIENT_BYTES, QUICK_BYTES = 64 << 20, 16 << 20
STEPS = 6
"""That a turn fetches; a ring holds them all."""
READ_BYTES = 4 << 20
"""Of a call of the plain socket: as much as a block has."""


def figures(how_much: Scale, _: Sequence[Figure]) -> Iterator[Figure]:
    """GB/s of gradients, and what it is of the plain socket's."""
    size_bytes = QUICK_BYTES if how_much.quick else GRADIENT_BYTES
    spawned = multiprocessing.get_context("spawn")
    mine, theirs = spawned.Pipe()
    other = spawned.Process(target=_gives, args=(theirs, size_bytes), daemon=True)
    other.start()
    try:
        ready = mine.recv() if mine.poll(120) else None
        if ready is None:
            raise AttributeError("the other process did not come up")
        taken = _in_turn(ready, size_bytes, how_much.repeats)
        mine.send("end")
        other.join(30)
    finally:
        other.kill()
        other.join()
    plain, copied = taken["plain"], taken["copy"]
    what = f"of {size_bytes >> 20} MiB, between two processes, loopback"
    yield Figure("copies", f"a plain socket, {what}", size_bytes / plain / 1e9, "GB/s")
    yield Figure(
        "copies",
        f"the gradient of a step to one copy, {what}",
        size_bytes / copied / 1e9,
        "GB/s",
        ratio=plain / copied,
        against="plain socket",
        target=TARGET,
        note="with the digests of its blocks made there and checked here",
    )
    yield Figure(
        "copies",
        "what the updater pays: the copy to shared memory",
        size_bytes / ready["put_s"] / 1e9,
        "GB/s",
    )


def _in_turn(ready: dict[str, Any], size_bytes: int, repeats: int) -> dict[str, float]:
    room = np.empty(size_bytes, np.uint8)
    room[:] = 1  # its pages are there
    client = CopyClient(
        ready["url"],
        GradientsConfig(chains=(ready["url"],)),
        lambda answer: [room] * len(answer.parts),
        lambda _: None,
        lambda _: None,
    )
    plain = socket.create_connection(("127.0.0.1", ready["port"]), 30)
    seconds: dict[str, list[float]] = {"plain": [], "copy": []}
    works: dict[str, Callable[[], None]] = {
        "plain": lambda: _plain(plain, room),
        "copy": lambda: _copied(client, ready["start"]),
    }
    for turn in range(repeats + 1):
        for name in works if turn % 2 else reversed(works):
            began_s = time.perf_counter()
            works[name]()
            if turn:  # the first one opens connections and pages
                seconds[name].append((time.perf_counter() - began_s) / STEPS)
    client.close()
    plain.close()
    return {name: statistics.median(own) for name, own in seconds.items()}


def _plain(connection: socket.socket, room: np.ndarray) -> None:
    for _ in range(STEPS):
        connection.sendall(b"1")
        view, at = room.data, 0
        while at < len(view):
            at += connection.recv_into(view[at : at + READ_BYTES])


def _copied(client: CopyClient, start: tuple[int, str]) -> None:
    at = CopyPosition((Step(start[0]), start[1]))
    for _ in range(STEPS):
        answer, _ = client.next(at, Epoch(0, 0, 0))
        assert answer.kind is AnswerKind.CHANGE and answer.line is not None
        at = CopyPosition(answer.line.behind, answer.source, answer.sequence)


def _gives(pipe: multiprocessing.connection.Connection, size_bytes: int) -> None:
    """The other process: a replica that has made its steps, its server, and a plain socket."""
    folder = Path(tempfile.mkdtemp(prefix="flowcheck-bench-", dir=SHM))
    try:
        _given(pipe, folder, size_bytes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _given(pipe: multiprocessing.connection.Connection, folder: Path, size_bytes: int) -> None:
    memory_bytes = (STEPS + 1) * change_slot_bytes(size_bytes)
    tables = {"source": [{"file": "0"}], "optimizer": {"name": "sgd", "learning_rate": 0.1}}
    config = job_from(tables | {"copies": {"port": 0, "memory_bytes": memory_bytes}})
    run = RunDir.create(folder / "run", folder)
    run.config.write_bytes(encode_config(config))
    layout = Layout.of_shapes([(size_bytes // 4,)])
    assert config.optimizer is not None and config.copies is not None
    replica = Replica.create(
        run.replica, layout, config.optimizer, np.ones(size_bytes // 4, np.float32)
    )
    start, puts = (replica.step, replica.digest), list[float]()
    kept = KeptSteps(run, config, replica, print, gathered=False)
    real = ChangeRing.put

    def timed(ring: ChangeRing, *words: Any) -> None:
        began_s = time.perf_counter()
        real(ring, *words)
        puts.append(time.perf_counter() - began_s)

    ChangeRing.put = timed  # type: ignore[method-assign,assignment]
    for step in range(1, STEPS + 1):
        gradient = np.full(size_bytes // 4, step, np.float32)
        kept.before_step(gradient, None)
        replica.apply(Step(step), gradient)
    server = CopiesServer(run, CopiesConfig(port=0), lambda _: None)
    server.start()
    changes = ChangeRing.open(run.changes).changes()
    payload = changes[0].payload
    assert payload is not None and len(changes) == STEPS
    listens = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_serves, args=(listens, payload), daemon=True).start()
    ready = {"url": server.url, "port": listens.getsockname()[1], "start": start}
    pipe.send(ready | {"put_s": statistics.median(puts)})
    pipe.recv()
    server.stop()


def _serves(listens: socket.socket, payload: np.ndarray) -> None:
    connection, _ = listens.accept()
    while connection.recv(1):
        connection.sendall(payload.data)
