"""The hook's server: a thread of the trainer that waits for a client and answers it.

It serves one client at a time, and every wait has a limit. A client without the token gets nothing.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from queue import Empty, SimpleQueue

from flowcheck.hook.protocol import (
    MAGIC,
    NONCE_BYTES,
    Answer,
    HookError,
    Request,
    frame_of_answer,
    read_request,
    send_all,
)
from flowcheck.hook.step_values import Finish, StepValues

CLIENT_S = 5.0
"""Seconds in which a client must have sent its request, and taken the answer. A choice: longer lets
a dead one keep others out."""
WAIT_S_MAX = 600.0
"""Most seconds that a client may wait for the end of a step. A choice: longer than any step."""


class HookServer:
    """Listens at an address."""

    def __init__(self, values: StepValues, host: str, port: int, token: bytes) -> None:
        """Raises OSError where the address cannot be listened at. Port 0: a free one."""
        self._values, self._token = values, token
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=4)
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, name="flowcheck hook", daemon=True)
        self._pid = os.getpid()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return  # closed
            try:
                with peer:
                    self._answer(peer)
            except (HookError, OSError):
                continue  # what a client does is no matter of the trainer's

    def _answer(self, peer: socket.socket) -> None:
        nonce = os.urandom(NONCE_BYTES)
        deadline_s = time.monotonic() + CLIENT_S
        send_all(peer, MAGIC + nonce, deadline_s)
        request = read_request(peer, self._token, nonce, deadline_s)
        answer = self._values_at_step(request)
        frame = frame_of_answer(self._token, nonce, answer)
        send_all(peer, frame, time.monotonic() + CLIENT_S + len(frame) / 1e6)

    def _values_at_step(self, request: Request) -> Answer:
        told: SimpleQueue[Finish | str] = SimpleQueue()
        self._values.ask(request, told.put)
        wait_s = min(max(request.wait_s, 0.0), WAIT_S_MAX)  # NaN: 0.0
        try:
            found = told.get(timeout=wait_s)
        except Empty:
            self._values.forget()
            return Answer(error_text=f"no step ended within {wait_s:g} s")
        return Answer(error_text=found) if isinstance(found, str) else found()
