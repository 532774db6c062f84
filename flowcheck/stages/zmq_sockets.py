"""ZeroMQ sockets between stages: the only file that imports zmq. No wait is without a limit."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import zmq

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.chain_processes import SOCKET_PATH_TOO_LONG
from flowcheck.messages import FramesReady, Message, SpanReady, decode, encode

IPC_PATH_BYTES_MAX = 107
"""sun_path of a Unix socket less its terminating zero (unix(7))."""
INBOX_MESSAGES = 4096
"""Messages that wait in a socket (ZMQ_SNDHWM, ZMQ_RCVHWM). A choice that bounds memory."""
LINGER_MS = 500
"""Milliseconds that an end waits for messages to go (ZMQ_LINGER). A choice: longer delays the end
of a stage, shorter loses its last words."""

DROPPABLE_MESSAGES = (FramesReady, SpanReady)
"""Messages that may be dropped while the neighbour is slow: positions are the truth."""


def ipc_address(sockets: Path, name: str) -> str:
    """The ipc:// address of one inbox. Raises ConfigError when the path is too long."""
    path = sockets / name
    if len(str(path).encode()) > IPC_PATH_BYTES_MAX:
        raise ConfigError(
            "run",
            str(sockets),
            SOCKET_PATH_TOO_LONG(IPC_PATH_BYTES_MAX),
        )
    return f"ipc://{path}"


class PushSocket:
    """One direction to one neighbour. Reconnects by itself when the neighbour is restarted."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], where: str) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, INBOX_MESSAGES)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 20)
        self._socket.connect(where)
        self._waiting: deque[bytes] = deque()

    def send(self, message: Message) -> None:
        """Sends now or, unless it is a nudge, keeps it for `flush`."""
        self.flush()
        frame = encode(message)
        if (self._waiting or not self._sent(frame)) and not isinstance(message, DROPPABLE_MESSAGES):
            self._waiting.append(frame)

    def flush(self) -> None:
        """Sends what waits, as far as the neighbour takes it."""
        while self._waiting and self._sent(self._waiting[0]):
            self._waiting.popleft()

    def _sent(self, frame: bytes) -> bool:
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        self._socket.close()


class Inbox:
    """What a stage receives: its own PULL socket and the supervisor's broadcasts."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], where: str, broadcasts: str | None
    ) -> None:
        self._poller = zmq.Poller()
        self._sockets = [context.socket(zmq.PULL)]
        self._sockets[0].setsockopt(zmq.RCVHWM, INBOX_MESSAGES)
        self._sockets[0].bind(where)
        if broadcasts is not None:
            subscriber = context.socket(zmq.SUB)
            subscriber.setsockopt(zmq.RCVHWM, INBOX_MESSAGES)
            subscriber.setsockopt(zmq.SUBSCRIBE, b"")
            subscriber.connect(broadcasts)
            self._sockets.append(subscriber)
        for socket in self._sockets:
            socket.setsockopt(zmq.LINGER, 0)
            self._poller.register(socket, zmq.POLLIN)

    def drain(self, *, limit: int, wait_ms: int) -> list[Message]:
        """Up to `limit` messages; waits at most `wait_ms` for the first one."""
        received: list[Message] = []
        for socket, _ in self._poller.poll(wait_ms):
            while len(received) < limit:
                try:
                    received.append(decode(socket.recv(zmq.NOBLOCK)))
                except zmq.Again:
                    break
        return received

    def close(self) -> None:
        for socket in self._sockets:
            socket.close()


class Broadcast:
    """The supervisor's word to all: events for whoever watches, and Stop."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], where: str) -> None:
        self._socket = context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.SNDHWM, INBOX_MESSAGES)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.bind(where)

    def send(self, message: Message) -> None:
        self._socket.send(encode(message), zmq.NOBLOCK)

    def close(self) -> None:
        self._socket.close()


class StageSockets:
    """All sockets of one process, by the names of inboxes under the run directory."""

    EVENTS = "events"
    """The supervisor's inbox."""
    CONTROL = "control"
    """The supervisor's broadcasts."""

    def __init__(self, sockets: Path, name: str) -> None:
        self._sockets = sockets
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._outboxes: dict[str, PushSocket] = {}
        self.broadcast: Broadcast | None = None
        control = ipc_address(sockets, self.CONTROL)
        if name == self.EVENTS:
            self.broadcast = Broadcast(self._context, control)
        self.inbox = Inbox(
            self._context,
            ipc_address(sockets, name),
            None if name == self.EVENTS else control,
        )

    def send(self, to: str, message: Message) -> None:
        """To the inbox of stage `to`; never waits."""
        if to not in self._outboxes:
            self._outboxes[to] = PushSocket(self._context, ipc_address(self._sockets, to))
        self._outboxes[to].send(message)

    def report(self, message: Message) -> None:
        """To the supervisor."""
        self.send(self.EVENTS, message)

    def flush(self) -> None:
        for outbox in self._outboxes.values():
            outbox.flush()

    def close(self) -> None:
        """Closes everything within LINGER_MS."""
        self.flush()
        for outbox in self._outboxes.values():
            outbox.close()
        if self.broadcast is not None:
            self.broadcast.close()
        self.inbox.close()
        self._context.term()
