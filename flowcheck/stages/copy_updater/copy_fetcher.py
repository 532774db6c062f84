"""The thread of a copy's updater that asks chains, one change ahead of the one that is applied. The
updater never waits for it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

import numpy as np

from flowcheck.config import GradientsConfig
from flowcheck.errors import FlowCheckError, StateError
from flowcheck.findings.catalog.chain_processes import BROKE
from flowcheck.findings.catalog.replica_copies import COPIES_NOTHING_YET, COPY_ANSWER
from flowcheck.findings.finding import Finding, plain_error_text
from flowcheck.replica.step_journal.journal_records import ChangeKind
from flowcheck.stages.copy_updater.copy_client import CopyClient, NotAnswered
from flowcheck.stages.copy_updater.epoch_fence import EpochFence
from flowcheck.stages.replica_copies.copy_messages import AnswerKind, CopyAnswer, CopyPosition

WAIT_FIRST_S, WAIT_MAX_S = 0.1, 5.0
"""Seconds before a chain that did not answer is asked again, doubled up to the most. A choice."""
MODULE_BYTES_MAX = 1 << 30
"""Most bytes of what a module holds beside its parameters, behind as many as the state has: frozen
weights and buffers. A choice that bounds memory."""
END_S = 1.0
"""Seconds that the end of the updater waits for the thread, which holds nothing that is lost."""


class Want(Enum):
    """What is asked for."""

    NOTHING = auto()
    TRAINING = auto()
    NEXT = auto()
    STATE = auto()


class Fetched(NamedTuple):
    """An answer, with the bytes of its parts."""

    url: str
    answer: CopyAnswer
    parts: list[np.ndarray]


@dataclass(slots=True)
class LinkFigures:
    """What is known of the link, for records."""

    url: str
    answers: bool = False
    newest: int = 0
    answer_s: float = 0.0
    """When the last answer came (time.monotonic)."""
    why_not: Finding | None = None


class CopyFetcher:
    """Fetches; `take` gives what came, each once."""

    def __init__(self, config: GradientsConfig, fence: EpochFence) -> None:
        """Raises ConfigError for a CA or token that cannot be read."""
        self._fence = fence
        self._clients = [
            CopyClient(
                url,
                config,
                self._room,
                lambda answer, url=url: fence.admit(answer, url),  # type: ignore[misc]
                self._tell,
            )
            for url in config.chains
        ]
        self.link = LinkFigures(self._clients[0].url)
        self.findings: deque[Finding] = deque()
        self._lock = threading.Condition()
        self._want, self._at, self._turn = Want.NOTHING, CopyPosition((0, "0" * 32)), 0  # type: ignore[arg-type]
        self._ready: Fetched | None = None
        self._closing = False
        self._told: Finding | None = None
        self._sizes: tuple[int, Sequence[int]] = 0, ()
        self._buffers = [np.empty(0, np.uint8), np.empty(0, np.uint8)]
        self._filled = 0
        self._thread = threading.Thread(target=self._run, name="copy", daemon=True)
        self._thread.start()

    @property
    def received_bytes(self) -> int:
        """Of whole answers."""
        return sum(client.received_bytes for client in self._clients)

    @property
    def blocks_again(self) -> int:
        """Blocks that were fetched anew."""
        return sum(client.blocks_again for client in self._clients)

    def expect(self, gradient_bytes: int, sections: Sequence[int]) -> None:
        """Which sizes answers may have. sections: bytes of each section of a state."""
        self._sizes = gradient_bytes, sections
        self._buffers = [np.empty(gradient_bytes, np.uint8) for _ in self._buffers]

    def ask(self, want: Want, at: CopyPosition | None = None) -> None:
        """Asks for this from now on; what came before is let go, so that its bytes are not to be
        used any more."""
        with self._lock:
            self._want, self._at = want, at or self._at
            self._turn += 1
            self._ready = None
            self._lock.notify_all()

    def take(self) -> Fetched | None:
        """What came; None: nothing yet. The bytes of a change are good until the next call."""
        with self._lock:
            ready, self._ready = self._ready, None
            if ready is not None:
                self._lock.notify_all()
            return ready

    def close(self) -> None:
        """Within END_S; a thread that is in a call ends with the process."""
        with self._lock:
            self._closing = True
            self._lock.notify_all()
        self._thread.join(END_S)

    def _run(self) -> None:
        number, wait_s = 0, WAIT_FIRST_S
        while True:
            with self._lock:
                while not self._closing and (self._want is Want.NOTHING or self._ready is not None):
                    self._lock.wait()
                if self._closing:
                    break
                want, at, turn = self._want, self._at, self._turn
            client = self._clients[number % len(self._clients)]
            try:
                answer, parts = self._fetch(client, want, at)
            except (NotAnswered, FlowCheckError) as error:
                self._failed(client, error.finding)
            except Exception as error:  # nobody else would tell that nothing is asked any more
                self._failed(client, BROKE(kind=type(error).__name__, text=plain_error_text(error)))
            else:
                self._came(client, answer, parts, turn)
                wait_s = WAIT_FIRST_S
                continue
            number += 1
            with self._lock:
                if not self._closing:
                    self._lock.wait(wait_s)
            wait_s = min(2 * wait_s, WAIT_MAX_S)
        for client in self._clients:
            client.close()

    def _fetch(
        self, client: CopyClient, want: Want, at: CopyPosition
    ) -> tuple[CopyAnswer, list[np.ndarray]]:
        if want is Want.TRAINING:
            return client.training(), []
        asked = client.state if want is Want.STATE else client.next
        return asked(at, self._fence.epoch)

    def _came(
        self, client: CopyClient, answer: CopyAnswer, parts: list[np.ndarray], turn: int
    ) -> None:
        link = self.link
        link.url, link.answers, link.why_not = client.url, True, None
        link.newest, link.answer_s = answer.newest[0], time.monotonic()
        self._told = None
        with self._lock:
            if turn != self._turn:
                return
            if answer.kind is AnswerKind.NOTHING:
                self._ready = Fetched(client.url, answer, parts)
            elif answer.kind is AnswerKind.CHANGE:
                assert answer.line is not None, "decode_head has checked it"
                self._filled ^= 1
                at = CopyPosition(answer.line.behind, answer.source, answer.sequence)
                self._at, self._ready = at, Fetched(client.url, answer, parts)
            else:  # what follows is for the updater to decide
                self._want, self._ready = Want.NOTHING, Fetched(client.url, answer, parts)

    def _failed(self, client: CopyClient, why: Finding) -> None:
        self.link.answers, self.link.why_not = why.is_any_of(COPIES_NOTHING_YET), why
        if self._told is None or self._told.code != why.code:
            self._told = why
            if len(self._clients) > 1 or not self.link.answer_s:
                self.link.url = client.url

    def _tell(self, found: Finding) -> None:
        self.findings.append(found)

    def _room(self, answer: CopyAnswer) -> list[np.ndarray]:
        """Memory for the parts of an answer, which are as large as this replica needs them."""
        gradient_bytes, sections = self._sizes
        if answer.kind is AnswerKind.CHANGE and answer.line is not None:
            size, wanted = answer.parts[0], gradient_bytes
            if answer.line.kind is ChangeKind.VALUES and size <= wanted:
                return [np.empty(size, np.uint8)]
            if answer.line.kind is ChangeKind.TAINT and not size:
                return [np.empty(0, np.uint8)]
            if answer.line.kind is not ChangeKind.STEP or size != wanted:
                raise StateError(COPY_ANSWER(what=f"a change of {size:,} bytes, not {wanted:,}"))
            return [self._buffers[self._filled]]
        if answer.kind is AnswerKind.STATE:
            *own, module = answer.parts
            if own != list(sections) or module > sum(sections) + MODULE_BYTES_MAX:
                raise StateError(COPY_ANSWER(what="a state of other sizes"))
            return [np.empty(size, np.uint8) for size in answer.parts]
        if answer.parts:
            raise StateError(COPY_ANSWER(what="bytes that were not asked for"))
        return []
