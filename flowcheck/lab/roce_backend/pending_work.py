"""Operations under way: torch's Work objects, and the threads that wait for them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import DistBackendError, Work

from flowcheck.lab.roce_backend.roce_communicator import (
    Operation,
    OperationResult,
    RoceCommunicator,
)

Finish = Callable[[OperationResult], None]
"""Called when the bytes are there, before anybody is told."""


class RoceWork(Work):
    """`parts` operations: done when all have brought their part of `result`."""

    def __init__(self, result: list[torch.Tensor], parts: int = 1) -> None:
        super().__init__()
        self._result, self._parts = result, parts
        self._lock = threading.Lock()
        self._done = threading.Event()
        if parts == 0:
            self._done.set()
        self._error: Exception | None = None
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until done; raises what went wrong. Zero or no `timeout`: the group's own."""
        seconds = timeout.total_seconds() if timeout else None
        if not self._done.wait(seconds if seconds and seconds > 0 else None):
            raise DistBackendError(f"flowcheck lab: not done within {seconds} s")
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the result tensors, as DDP's hooks chain them."""
        with self._lock:
            if self._future is None:
                self._future = torch.futures.Future()
                if self._done.is_set():
                    self._settle(self._future)
            return self._future

    def _settle(self, future: torch.futures.Future[list[torch.Tensor]]) -> None:
        if self._error is not None:
            future.set_exception(self._error)  # type: ignore[arg-type]
        else:
            future.set_result(self._result)

    def complete(self, error: Exception | None = None) -> None:
        """A part has ended; after the last, tell all who wait.

        A future is settled on a thread of its own: what a communication hook has chained to it may
        wait for operations whose end the calling thread would have to tell.
        """
        with self._lock:
            self._parts -= 1
            self._error = self._error or error
            if self._parts > 0:
                return
            self._done.set()
            future = self._future
        if future is not None:
            threading.Thread(target=self._settle, args=(future,), daemon=True).start()

    def is_completed(self) -> bool:
        """Whether it ended, well or not."""
        return self._done.is_set()

    def is_success(self) -> bool:
        """Whether it ended well."""
        return self._done.is_set() and self._error is None

    def exception(self) -> Exception | None:
        """What went wrong, once it ended."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The caller's tensors."""
        return self._result

    def synchronize(self) -> None:
        """Same as wait."""
        self.wait()


class OperationQueue:
    """Operations that end in the order they were queued, and the thread that waits for them."""

    def __init__(self, communicator: RoceCommunicator, peer: int | None = None) -> None:
        self._communicator, self._peer = communicator, peer
        self._queue: queue.SimpleQueue[tuple[Callable[[], int], RoceWork, Finish, Any] | None]
        self._queue = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="flowcheck-lab", daemon=True)
        self._thread.start()

    def add(self, operation: Operation, work: RoceWork, finish: Finish, memory: Any) -> None:
        """Submit it; `memory` is kept until it is done.

        To a peer it is submitted by the lane's own thread, which connects first: who posts a
        receive must not wait until the other side comes to its send.
        """
        if self._peer is None:
            ticket = self._communicator.submit(operation)
            self._queue.put((lambda: ticket, work, finish, memory))
        else:
            self._queue.put((lambda: self._to_peer(operation), work, finish, memory))

    def _to_peer(self, operation: Operation) -> int:
        self._communicator.connect_peer(operation.peer)
        return self._communicator.submit(operation)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            submitted, work, finish, _memory = item
            try:
                finish(self._communicator.wait(submitted()))
            except Exception as error:  # whatever it is, it belongs to the operation's owner
                work.complete(error)
            else:
                work.complete()
            del item, submitted, work, finish, _memory

    def close(self) -> None:
        """End the thread; what is queued must have been failed."""
        self._queue.put(None)
        self._thread.join(timeout=10)
