"""Stores that are asked at the same time. One that hangs, as a mount of a dead server does, is
given up after a while and not asked again by the same group: the others go on without it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.general_errors import ERROR_TEXT
from flowcheck.findings.catalog.striped_saves import NO_ANSWER
from flowcheck.findings.finding import Finding, plain_error_text
from flowcheck.vault.erasure.block_store import BlockStore

LIMIT_S = 60.0
"""Seconds without an answer, or progress, after which a store is down. A choice, that of `[persist]
timeout_s`: longer delays a save or restore, shorter gives up a slow store."""
Made = TypeVar("Made")


class StoreGroup:
    """The stores of a set. Methods may be called in any thread."""

    def __init__(self, stores: Sequence[BlockStore], limit_s: float = LIMIT_S) -> None:
        self.stores, self.limit_s = tuple(stores), limit_s
        self.down: dict[BlockStore, Finding] = {}
        """{store: why it is not asked any more}."""

    def __len__(self) -> int:
        return len(self.stores)

    def ask(
        self,
        question: Callable[[BlockStore], Made],
        among: Sequence[BlockStore] | None = None,
        moved_s: Callable[[BlockStore], float] = lambda _: 0.0,
    ) -> list[Made | Finding]:
        """What each store gives; why not, where it raised FlowCheckError or OSError, or is down.
        moved_s: time.monotonic() of a store's last progress. Raises what else a question raises."""
        asked = self.stores if among is None else among
        calls: list[_Call[Made]] = [_Call(question, store) for store in asked]
        for call in calls:
            if (why := self.down.get(call.store)) is not None:
                call.made.append(why)
                call.ended.set()
            else:
                threading.Thread(target=call.run, daemon=True).start()
        for call in calls:
            began_s = time.monotonic()
            while not call.ended.wait(0.5 if self.limit_s > 1 else self.limit_s / 4):
                if time.monotonic() - max(began_s, moved_s(call.store)) > self.limit_s:
                    self.down[call.store] = NO_ANSWER(
                        store=call.store.url, seconds=round(self.limit_s)
                    )
                    break
        made: list[Made | Finding] = []
        for call in calls:
            answer = self._answer(call)
            made.append(answer)
        return made

    def _answer(self, call: _Call[Made]) -> Made | Finding:
        if not call.ended.is_set():
            return self.down[call.store]
        if call.raised is not None:
            raise call.raised
        return call.made[0]


class _Call(Generic[Made]):
    def __init__(self, question: Callable[[BlockStore], Made], store: BlockStore) -> None:
        self._question, self.store = question, store
        self.ended = threading.Event()
        self.made: list[Made | Finding] = []
        self.raised: BaseException | None = None

    def run(self) -> None:
        try:
            self.made.append(self._question(self.store))
        except FlowCheckError as error:
            self.made.append(error.finding)
        except OSError as error:
            self.made.append(ERROR_TEXT(kind="system", text=plain_error_text(error)))
        except BaseException as error:
            self.raised = error
        self.ended.set()
