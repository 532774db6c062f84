"""The pace of one store's part of a save."""

from __future__ import annotations

import time

from flowcheck.vault.persist.rate_limit import TransferPace


class StorePace(TransferPace):
    """Waits and stops as the save's own pace, which it tells of its progress: of n blocks that are
    moved k are bytes of the checkpoint."""

    def __init__(self, whole: TransferPace, data: int, blocks: int) -> None:
        super().__init__()
        self._whole, self._data, self._blocks = whole, data, blocks

    def wait_to_send(self, count: int) -> None:
        self._whole.wait_to_send(count)
        self.moved_s = time.monotonic()

    def note_moved(self, count: int) -> None:
        self.moved_s = time.monotonic()
        self._whole.note_moved(count * self._data // self._blocks)

    def note_skipped(self, count: int) -> None:
        self.moved_s = time.monotonic()
        self._whole.note_skipped(count * self._data // self._blocks)

    def heartbeat(self) -> None:
        self.moved_s = time.monotonic()
        self._whole.heartbeat()
