"""What the hook and its client say to each other, over TCP.

The hook sends MAGIC and a nonce. The client sends one request, the hook one answer. Each is a
frame: its length, an HMAC-SHA256 by the shared token over the nonce, who speaks, and the text; then
the text, which is MessagePack. So nobody without the token is answered, and no answer can be made
up or used again. The values themselves are not encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct
import time

import msgspec

MAGIC = b"FCHOOK1\n"
NONCE_BYTES = 32
REQUEST_BYTES_MAX = 4 << 20
"""Most bytes of a request. A choice: it names 200,000 ranges."""
ANSWER_BYTES_MAX = 1 << 30
"""Most bytes of an answer. A choice: elements are limited as well."""
ELEMENTS_MAX = 1 << 24
"""Most elements of a request. A choice: 200 MB of AdamW's state, copied between two steps."""
TOKEN_BYTES_MIN = 16
"""Least bytes of a token. A choice: fewer could be guessed."""
_HEAD = struct.Struct("<I32s")
_REQUEST, _ANSWER = b"request", b"answer"


class AskedParameter(msgspec.Struct, frozen=True, array_like=True):
    """Elements of one parameter."""

    index: int
    """Among the parameters that need gradients, in the order in which DistributedDataParallel
    registers them."""
    ranges: tuple[tuple[int, int], ...]
    """[first element, behind the last) in memory order, ascending."""


class Request(msgspec.Struct, frozen=True):
    """Values at the end of a step."""

    parameters: tuple[AskedParameter, ...]
    wait_s: float
    """Seconds to wait for the end of a step."""


class AnsweredParameter(msgspec.Struct, frozen=True):
    """The asked values of one parameter, range after range."""

    index: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    """torch's word, such as "float32"."""
    value: bytes
    states: dict[str, bytes]
    """{torch's name: bytes} of each optimizer state of the parameter's shape."""
    state_dtypes: dict[str, str]
    own_step: int | None
    """The optimizer's count of steps of this parameter; None: it keeps none."""


class Answer(msgspec.Struct, frozen=True):
    """What the trainer has, or why it does not tell."""

    steps: int = 0
    """Steps that the trainer's optimizers had made since it was launched."""
    parameters: tuple[AnsweredParameter, ...] = ()
    error_text: str = ""
    """Why nothing is told; empty: all is."""


class HookError(Exception):
    """The other side does not speak this protocol, has another token, or is gone."""


def read_exactly(peer: socket.socket, size: int, deadline_s: float) -> bytes:
    """So many bytes. Raises HookError where they do not come until then (time.monotonic)."""
    parts: list[bytes] = []
    left = size
    while left:
        rest_s = deadline_s - time.monotonic()
        if rest_s <= 0:
            raise HookError("it sent nothing in time")
        peer.settimeout(rest_s)
        try:
            part = peer.recv(min(left, 1 << 20))
        except TimeoutError as error:
            raise HookError("it sent nothing in time") from error
        if not part:
            raise HookError("it closed the connection")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def send_all(peer: socket.socket, data: bytes, deadline_s: float) -> None:
    """Raises HookError where it is not taken until then."""
    view = memoryview(data)
    while view:
        rest_s = deadline_s - time.monotonic()
        if rest_s <= 0:
            raise HookError("it took nothing in time")
        peer.settimeout(rest_s)
        try:
            view = view[peer.send(view[: 1 << 20]) :]
        except TimeoutError as error:
            raise HookError("it took nothing in time") from error


def frame_of_request(token: bytes, nonce: bytes, request: Request) -> bytes:
    return _framed(token, nonce, _REQUEST, msgspec.msgpack.encode(request))


def frame_of_answer(token: bytes, nonce: bytes, answer: Answer) -> bytes:
    return _framed(token, nonce, _ANSWER, msgspec.msgpack.encode(answer))


def read_request(peer: socket.socket, token: bytes, nonce: bytes, deadline_s: float) -> Request:
    """Raises HookError of one that is not ours, is too long or makes no sense."""
    text = _read(peer, token, nonce, _REQUEST, REQUEST_BYTES_MAX, deadline_s)
    try:
        request = msgspec.msgpack.decode(text, type=Request)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise HookError(f"its request makes no sense: {error}") from error
    last, elements = -1, 0
    for asked in request.parameters:
        if asked.index <= last:
            raise HookError("its request does not name parameters in order")
        last, at = asked.index, -1
        for start, stop in asked.ranges:
            if not at < start < stop:
                raise HookError("its request does not name elements in order")
            at, elements = stop - 1, elements + stop - start
    if not 0 < elements <= ELEMENTS_MAX:
        raise HookError(f"its request names {elements} elements, not 1 to {ELEMENTS_MAX}")
    return request


def read_answer(peer: socket.socket, token: bytes, nonce: bytes, deadline_s: float) -> Answer:
    """Raises HookError of one that was not made by who has the token, or makes no sense."""
    text = _read(peer, token, nonce, _ANSWER, ANSWER_BYTES_MAX, deadline_s)
    try:
        return msgspec.msgpack.decode(text, type=Answer)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise HookError(f"its answer makes no sense: {error}") from error


def _framed(token: bytes, nonce: bytes, who: bytes, text: bytes) -> bytes:
    return _HEAD.pack(len(text), _signature(token, nonce, who, text)) + text


def _read(
    peer: socket.socket, token: bytes, nonce: bytes, who: bytes, most: int, deadline_s: float
) -> bytes:
    size, signature = _HEAD.unpack(read_exactly(peer, _HEAD.size, deadline_s))
    if size > most:
        raise HookError(f"it announced {size} bytes, more than {most}")
    text = read_exactly(peer, size, deadline_s)
    if not hmac.compare_digest(signature, _signature(token, nonce, who, text)):
        raise HookError("it has another token")
    return text


def _signature(token: bytes, nonce: bytes, who: bytes, text: bytes) -> bytes:
    return hmac.digest(token, nonce + who + hashlib.sha256(text).digest(), "sha256")
