"""The extractor's staging file: payload of messages kept until the plan of their flow is
proved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowcheck._core import ffi, lib
from flowcheck.closing_context import Closeable
from flowcheck.plane.shared_memory.flow_table import FlowTable, record_dtype
from flowcheck.plane.shared_memory.shared_file_errors import check_shared_memory
from flowcheck.wire.traffic.observed_messages import Range

STAGED_DTYPE = record_dtype(ffi.typeof("struct fc_staged"))
PLAN_DTYPE = record_dtype(ffi.typeof("struct fc_flow_plan"))
NUMBER_UNKNOWN = 2**64 - 1


class Staging(Closeable):
    """One staging file, mapped. `handle` is the `struct fc_staging *` C takes."""

    def __init__(self, path: Path, handle: Any) -> None:
        self.path = path
        self.handle = handle
        self._region: NDArray[np.uint8] | None = None
        """[data bytes] the mapping, once its views keep it."""

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        messages: int,
        data_bytes: int,
        records: int = 1 << 16,
        held: int = 1024,
        sends: int | None = None,
        segments: int | None = None,
    ) -> Staging:
        """A new file, reserved in full.

        messages: records of the flow table's pool; data_bytes: payload staged at once; records:
        messages staged at once; held: packets without a message; sends, segments: room for plans,
        by default what messages of 2 KiB would need that fill the data region.
        """
        sends = max(1 << 14, data_bytes // 2048) if sends is None else sends
        segments = max(1 << 17, 4 * sends) if segments is None else segments
        sizes = ffi.new(
            "struct fc_staging_sizes *",
            {
                "messages": messages,
                "data_bytes": data_bytes,
                "records": records,
                "orphans": held,
                "sends": sends,
                "segments": segments,
            },
        )
        handle = ffi.new("struct fc_staging *")
        code = lib.fc_staging_create(str(path).encode(), sizes, handle)
        check_shared_memory(code, "create staging", path, new=True)
        return cls(path, handle)

    @classmethod
    def open(cls, path: Path) -> Staging:
        """An existing file. Raises RingError on another magic, layout version or size."""
        handle = ffi.new("struct fc_staging *")
        code = lib.fc_staging_open(str(path).encode(), handle)
        check_shared_memory(code, "open staging", path, new=False)
        return cls(path, handle)

    def map_pages(self) -> None:
        """Has every page at hand before packets come: a fault for each costs more than its copy. A
        kernel that cannot leaves it to the faults."""
        lib.fc_populate(self.handle.map.base, self.handle.map.bytes)

    @property
    def data_free_bytes(self) -> int:
        """Of the data region, between the blocks of staged messages."""
        return int(self.handle.header.data_bytes - self.handle.header.data_in_use)

    @property
    def completions(self) -> int:
        """Messages that became complete so far; `fc_staged.completed` counts along."""
        return int(self.handle.header.completions)

    @property
    def orphan_count(self) -> int:
        """Packets kept now whose message is not known."""
        return int(self.handle.header.orphans_used)

    def records(self) -> NDArray[np.void]:
        """[records ever used] STAGED_DTYPE, a read-only view; `state` 1 marks those in use."""
        size = int(self.handle.header.records_used) * STAGED_DTYPE.itemsize
        view = np.frombuffer(ffi.buffer(self.handle.records, size), dtype=STAGED_DTYPE)
        view.flags.writeable = False
        return view

    def held(self) -> NDArray[np.intp]:
        """[messages] which of `records` are in use."""
        if not self.handle.header.records_in_use:
            return np.zeros(0, np.intp)  # without a look at thousands that were
        return np.flatnonzero(self.records()["state"] == 1)

    def held_messages(self) -> NDArray[np.void]:
        """[messages] what is known of each of them, a copy."""
        return self.records()["message"][self.held()]

    def plans(self) -> NDArray[np.void]:
        """[flows a table can hold] PLAN_DTYPE, index = flow; a read-only view."""
        size = lib.FC_FLOWS_MAX * PLAN_DTYPE.itemsize
        view = np.frombuffer(ffi.buffer(self.handle.plans, size), dtype=PLAN_DTYPE)
        view.flags.writeable = False
        return view

    def iteration_at(self, flows: FlowTable, flow: int, psn: int) -> int | None:
        """The shard's step that a packet is of by the plan of its flow, also where it never came;
        None: not known. psn: unwrapped, as this ring's table has it."""
        return int(lib.fc_step_at(flows.handle, self.handle, flow, psn)) or None

    def orphan_packets(self) -> Iterator[tuple[int, int, NDArray[np.uint8]]]:
        """(flow index, unwrapped PSN, payload) of every packet whose message is not known."""
        for _, flow, psn, payload in self.orphan_packets_at():
            yield flow, psn, payload

    def orphan_packets_at(self) -> Iterator[tuple[int, int, int, NDArray[np.uint8]]]:
        """The same with the place of each before it."""
        left = self.orphan_count
        for index in range(int(self.handle.header.orphans_max)):
            if left == 0:
                return
            entry = self.handle.orphans[index]
            if entry.used:
                left -= 1
                at = self.handle.orphan_data + index * lib.FC_ORPHAN_BYTES
                payload = np.frombuffer(bytes(ffi.buffer(at, entry.payload_bytes)), np.uint8)
                yield index, int(entry.flow), int(entry.psn), payload

    def orphan_differs(self, place: int) -> bool:
        """Copies of the packet held there were not all the same."""
        return bool(self.handle.orphans[place].differs)

    @property
    def has_other_copies(self) -> bool:
        return bool(self.handle.header.others_used)

    def other_copies(self) -> Iterator[tuple[int, int, NDArray[np.uint8]]]:
        """(position of the message, unwrapped PSN, payload) of every copy of a staged packet that
        has other bytes than the first one."""
        for index in range(lib.FC_OTHER_COPIES if self.has_other_copies else 0):
            entry = self.handle.others[index]
            if entry.used:
                at = self.handle.other_data + index * lib.FC_ORPHAN_BYTES
                payload = np.frombuffer(bytes(ffi.buffer(at, entry.payload_bytes)), np.uint8)
                yield int(entry.position), int(entry.psn), payload

    @property
    def orphan_room(self) -> int:
        """Packets without a message that still find room."""
        return int(self.handle.header.orphans_max) - self.orphan_count

    def missing(self, record: int) -> tuple[Range, ...]:
        """Wire bytes of a staged message that never came, ascending."""
        return tuple(self._missing(record))

    def _missing(self, record: int) -> Iterator[Range]:
        bounds = ffi.new("uint64_t[2]")
        while lib.fc_staged_next_missing(self.handle, record, bounds[1], bounds, bounds + 1):
            yield int(bounds[0]), int(bounds[1])

    def region(self) -> NDArray[np.uint8]:
        """[data bytes] where payloads lie, read-only; a view, valid until the file is closed, or as
        `close_with_last_view` says."""
        if self._region is not None:
            return self._region
        view = np.frombuffer(
            ffi.buffer(self.handle.data, int(self.handle.header.data_bytes)), np.uint8
        )
        view.flags.writeable = False
        return view

    def payload(self, record: int) -> NDArray[np.uint8]:
        """A copy of what a staged message carried: [wire bytes], zero where nothing came."""
        size = int(self.handle.records[record].message.length_bytes)
        out = np.empty(size, np.uint8)
        lib.fc_staged_read(self.handle, record, ffi.from_buffer("uint8_t[]", out))
        return out

    def close_with_last_view(self) -> None:
        """From now on `region` and each view of it keep the mapping; it is closed with the last of
        them, and with this object. `close` is not called."""
        handle = self.handle
        data = ffi.gc(ffi.cast("uint8_t *", handle.data), lambda _: lib.fc_staging_close(handle))
        # The buffer keeps what it is of alive, the array the buffer, and each view the array.
        self._region = np.frombuffer(ffi.buffer(data, int(handle.header.data_bytes)), np.uint8)
        self._region.flags.writeable = False

    def close(self) -> None:
        lib.fc_staging_close(self.handle)
