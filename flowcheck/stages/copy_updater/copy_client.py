"""Asks a chain for what a copy needs. Every wait has a limit, and every byte a digest."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

import msgspec
import numpy as np

from flowcheck.config import GradientsConfig
from flowcheck.errors import DECODE_ERRORS, StateError
from flowcheck.findings.catalog.checkpoint_downloads import CONNECTION_FAILED
from flowcheck.findings.catalog.replica_copies import (
    COPY_ANSWER,
    COPY_BLOCK,
    COPY_BLOCKS,
    COPY_SILENT,
)
from flowcheck.findings.finding import Finding, entries
from flowcheck.stages.replica_copies.copy_epoch import Epoch
from flowcheck.stages.replica_copies.copy_messages import (
    DIGEST_BYTES,
    PREFIX,
    AnswerKind,
    CopyAnswer,
    CopyPosition,
    blocks,
    body_bytes,
    decode_head,
    digest_of,
    head_size,
    query_of,
)
from flowcheck.untrusted_text import printable
from flowcheck.vault.http_support.bounded_response import BoundedResponse
from flowcheck.vault.http_support.tls_context import client_tls_context
from flowcheck.vault.serve.step_server import read_token

TRIES = 4
"""Times that a block is fetched. A choice: a link that damages one packet in a million gets by."""
LEAST_BYTES_S = 256 << 10
"""Bytes per second. A chain that sends a block more slowly is given up: a copy would fall behind
any job. A choice."""
REFUSAL_BYTES_MAX = 64 << 10
"""Most bytes of an answer with an error. A choice that bounds memory."""
SHOWN_MAX = 300
"""Most characters of another side's sentence that are shown."""


class NotAnswered(Exception):
    """The chain did not answer, or had nothing to give; asked again later, it may."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding)
        self.finding = finding


class BadBlock(Exception):
    """A block had another digest."""

    def __init__(self, block: int, size_bytes: int) -> None:
        super().__init__(block)
        self.block, self.size_bytes = block, size_bytes


class CopyClient:
    """The connection to one chain, opened anew when it was closed. One thread uses it."""

    def __init__(
        self,
        url: str,
        config: GradientsConfig,
        room: Callable[[CopyAnswer], Sequence[np.ndarray]],
        admits: Callable[[CopyAnswer], Finding | None],
        say: Callable[[Finding], None],
    ) -> None:
        """room: memory for the parts of an answer, or StateError where they are not what they must
        be; admits: why an answer's chain is not to be followed; say: tells the operator. Raises
        ConfigError for a CA or token that cannot be read."""
        self.url, self.received_bytes, self.blocks_again = url.rstrip("/"), 0, 0
        self._parts, self._timeout_s = urlsplit(self.url), config.timeout_s
        tls = client_tls_context(url, config.ca if self._parts.scheme == "https" else None)
        self._tls: ssl.SSLContext | None = tls
        self._headers = {}
        if config.token_file is not None:
            token = read_token(config.token_file).decode("ascii")
            self._headers = {"Authorization": f"Bearer {token}"}
        self._room, self._admits, self._say = room, admits, say
        self._connection: http.client.HTTPConnection | None = None

    def training(self) -> CopyAnswer:
        """What is known of the training job."""
        return self._answered("/training")[0]

    def next(self, at: CopyPosition, epoch: Epoch) -> tuple[CopyAnswer, list[np.ndarray]]:
        """The next change behind a position. Raises NotAnswered, and StateError for an answer that
        is not to be believed."""
        return self._answered("/next", at, epoch)

    def state(self, at: CopyPosition, epoch: Epoch) -> tuple[CopyAnswer, list[np.ndarray]]:
        """A whole state. Raises as `next`."""
        return self._answered("/state", at, epoch)

    def _answered(
        self, path: str, at: CopyPosition | None = None, epoch: Epoch | None = None
    ) -> tuple[CopyAnswer, list[np.ndarray]]:
        held: tuple[CopyAnswer, list[np.ndarray]] | None = None
        first, tries, last = 0, 0, -1
        while True:
            query = "" if at is None or epoch is None else "?" + query_of(at, epoch, first)
            try:
                return self._once(path + query, held)
            except BadBlock as bad:
                self.close()
                tries = tries + 1 if bad.block == last else 1
                last = bad.block
                if tries >= TRIES:
                    raise StateError(COPY_BLOCKS(block=bad.block, tries=tries)) from bad
                self.blocks_again += 1
                told = {"block": bad.block, "bytes": bad.size_bytes}
                self._say(COPY_BLOCK(source=self.url, **told))
                held, first = self._continued(bad.block)

    def _continued(self, block: int) -> tuple[tuple[CopyAnswer, list[np.ndarray]] | None, int]:
        """Where to go on: behind the blocks of a change that came, a state from its begin."""
        answer = self._last
        if answer is None or answer[0].kind is not AnswerKind.CHANGE:
            return None, 0
        return answer, block

    def _once(
        self, path: str, held: tuple[CopyAnswer, list[np.ndarray]] | None
    ) -> tuple[CopyAnswer, list[np.ndarray]]:
        """held: the answer of which some blocks are there."""
        self._last: tuple[CopyAnswer, list[np.ndarray]] | None = None
        try:
            response = self._requested(path)
            prefix = self._exactly(response, PREFIX.size)
            head = self._exactly(response, head_size(prefix))
            answer = decode_head(prefix, head)
            size = len(prefix) + len(head)
            if response.length != body_bytes(answer, size) - size:
                raise StateError(COPY_ANSWER(what="a body of another size"))
            if (why := self._admits(answer)) is not None:
                self.close()
                raise StateError(why)
            parts = self._room(answer) if not self._continues(held, answer) else held[1]  # type: ignore[index]
            self._last = answer, list(parts)
            self._read_parts(response, answer, self._last[1])
            self.received_bytes += body_bytes(answer, size)
            return self._last
        except StateError:
            self.close()
            raise
        except TimeoutError as error:
            self.close()
            raise NotAnswered(COPY_SILENT(self._timeout_s)) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            text = printable(str(error))[:SHOWN_MAX]
            raise NotAnswered(CONNECTION_FAILED(kind=type(error).__name__, error=text)) from error

    def _continues(
        self, held: tuple[CopyAnswer, list[np.ndarray]] | None, answer: CopyAnswer
    ) -> bool:
        """Whether an answer goes on with the change of which blocks are there."""
        if not answer.first:
            return False
        known = None if held is None else (held[0].source, held[0].sequence, held[0].line)
        if known != (answer.source, answer.sequence, answer.line):
            raise StateError(COPY_ANSWER(what="the end of another change"))
        return True

    def _read_parts(
        self, response: BoundedResponse, answer: CopyAnswer, parts: Sequence[np.ndarray]
    ) -> None:
        for part in parts:
            for number, (begin, end) in enumerate(blocks(part.size, answer.first), answer.first):
                block = part[begin:end]
                self._fill(response, block.data)
                digest = self._exactly(response, DIGEST_BYTES)
                if digest != digest_of(block):
                    raise BadBlock(number, block.size)

    def _fill(self, response: BoundedResponse, view: memoryview) -> None:
        response.within.restart(self._timeout_s + len(view) / LEAST_BYTES_S)
        at = 0
        while at < len(view):
            read = response.readinto(view[at:])
            if not read:
                raise ConnectionError("the answer ended early")
            at += read

    def _exactly(self, response: BoundedResponse, size_bytes: int) -> bytes:
        raw = bytearray(size_bytes)
        self._fill(response, memoryview(raw))
        return bytes(raw)

    def _requested(self, path: str) -> BoundedResponse:
        for again in (True, False):
            fresh = self._connection is None
            connection = self._connected()
            try:
                connection.request("GET", self._parts.path + path, headers=self._headers)
                response = connection.getresponse()
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                self.close()  # it had been idle
                if fresh or not again:
                    raise
                continue
            assert isinstance(response, BoundedResponse)
            if response.status != http.HTTPStatus.OK:
                self._refused(response)
            if response.length is None:
                raise StateError(COPY_ANSWER(what="an answer without a length"))
            return response
        raise AssertionError("the last one raises")

    def _refused(self, response: BoundedResponse) -> None:
        """Raises what another status means."""
        response.within.restart(self._timeout_s)
        body = response.read(REFUSAL_BYTES_MAX)
        self.close()
        found = None
        with suppress(*DECODE_ERRORS):
            found = msgspec.json.decode(body, type=_Refusal).finding
        if found is None or found.code not in entries() or len(str(found)) > SHOWN_MAX:
            found = COPY_ANSWER(what=f"HTTP status {response.status}")
        raise NotAnswered(found)

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            host, port, limit_s = self._parts.hostname, self._parts.port, self._timeout_s
            assert host is not None, "checked when the configuration was read"
            made: http.client.HTTPConnection
            if self._tls is not None:
                made = http.client.HTTPSConnection(host, port, timeout=limit_s, context=self._tls)
            else:
                made = http.client.HTTPConnection(host, port, timeout=limit_s)
            made.response_class = BoundedResponse
            self._connection = made
        return self._connection

    def close(self) -> None:
        """The next request opens it again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _Refusal(msgspec.Struct):
    finding: Finding | None = None
