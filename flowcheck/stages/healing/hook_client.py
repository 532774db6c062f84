"""Asks the hook in the trainer for values at the end of a step."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

from flowcheck.errors import StateError
from flowcheck.findings.catalog.trainer_hook import (
    HOOK_PROTOCOL,
    HOOK_REFUSES,
    HOOK_UNREACHABLE,
)
from flowcheck.hook.protocol import (
    MAGIC,
    NONCE_BYTES,
    Answer,
    HookError,
    Request,
    frame_of_request,
    read_answer,
    read_exactly,
    send_all,
)

CONNECT_S = 20.0
"""Seconds for the connection and the request. A choice: clients before this one, which say nothing,
may hold the hook for some times CLIENT_S (hook/server.py); longer delays the error."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the hook answered."""

    answer: Answer
    bytes: int
    """Of the values that it sent."""


def ask_hook(host: str, port: int, token: bytes, request: Request) -> Told:
    """Asks, and waits for the end of the trainer's step. Raises StateError with the reason where
    the hook is not there, has another token, or does not tell."""
    address = f"{host}:{port}"
    try:
        with socket.create_connection((host, port), CONNECT_S) as peer:
            answer = _talk(peer, token, request)
    except HookError as error:
        raise StateError(HOOK_PROTOCOL(address=address, error=error)) from error
    except OSError as error:
        told = error.strerror or str(error)
        raise StateError(HOOK_UNREACHABLE(address=address, error=told)) from error
    if answer.error_text:
        raise StateError(HOOK_REFUSES(address=address, reason=answer.error_text))
    sent = sum(len(one.value) + sum(map(len, one.states.values())) for one in answer.parameters)
    return Told(answer, sent)


def _talk(peer: socket.socket, token: bytes, request: Request) -> Answer:
    deadline_s = time.monotonic() + CONNECT_S
    greeting = read_exactly(peer, len(MAGIC) + NONCE_BYTES, deadline_s)
    if not greeting.startswith(MAGIC):
        raise HookError("it is no hook of FlowCheck")
    nonce = greeting[len(MAGIC) :]
    send_all(peer, frame_of_request(token, nonce, request), deadline_s)
    return read_answer(peer, token, nonce, deadline_s + request.wait_s + CONNECT_S)
