"""Running operations: torch's Work objects, and the threads that wait for them."""

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
"""Callback when the result is in memory, before the operation counts as completed."""


class RoceWork(Work):
    """torch's Work of an operation that consists of `parts` operations on parts of `result`; it is
    completed when all are."""

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
        """Blocks until completed; raises the operation's error. timeout None or zero: the group's
        timeout."""
        seconds = timeout.total_seconds() if timeout else None
        if not self._done.wait(seconds if seconds and seconds > 0 else None):
            raise DistBackendError(f"flowcheck lab: not done within {seconds} s")
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the result tensors, to which DDP's communication hooks attach."""
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
        """Marks a part as completed or failed; the last part completes the operation. The future
        is set on a separate thread: a communication hook attached to it may wait for operations
        that the calling thread must complete."""
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
        """Whether it has ended, with or without error."""
        return self._done.is_set()

    def is_success(self) -> bool:
        """Whether it has ended without error."""
        return self._done.is_set() and self._error is None

    def exception(self) -> Exception | None:
        """The error, once it has ended; None: no error."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The result tensors."""
        return self._result

    def synchronize(self) -> None:
        """Same as wait."""
        self.wait()


class OperationQueue:
    """Operations that complete in the order in which they were queued, with the thread that waits
    for them."""

    def __init__(self, communicator: RoceCommunicator, peer: int | None = None) -> None:
        self._communicator, self._peer = communicator, peer
        self._queue: queue.SimpleQueue[tuple[Callable[[], int], RoceWork, Finish, Any] | None]
        self._queue = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="flowcheck-lab", daemon=True)
        self._thread.start()

    def add(self, operation: Operation, work: RoceWork, finish: Finish, memory: Any) -> None:
        """Queues an operation. memory: kept alive until it is completed. Operations with a peer
        are submitted by the queue's own thread, which connects first, so that posting a receive
        does not wait for the peer's send."""
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
        """Ends the thread. Queued operations must have been aborted before."""
        self._queue.put(None)
        self._thread.join(timeout=10)
