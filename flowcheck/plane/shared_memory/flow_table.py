"""The flow table and message pool of one ring's parser, in shared memory."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowcheck._core import ffi, lib
from flowcheck.closing_context import Closeable
from flowcheck.plane.shared_memory.shared_file_errors import check_shared_memory
from flowcheck.wire.traffic.observed_messages import FlowKey

if TYPE_CHECKING:  # a parser loads no numpy
    import numpy as np
    from numpy.typing import NDArray

NO_FLOW = int(lib.FC_NO_FLOW)
"""mark.flow of a frame that belongs to no flow."""

NUMBER_UNKNOWN = 2**64 - 1
"""fc_message.number where the transport cannot tell it."""

PSN_ORIGIN = 2**32
"""Unwrapped PSN of PSN 0 of a flow seen from its start (fc_flow.h)."""


def record_dtype(ctype: Any) -> np.dtype[np.void]:
    """The numpy dtype of a C struct: the compiler's own offsets, whatever the padding."""
    import numpy as np

    names, formats, offsets = [], [], []
    for name, field in ctype.fields:
        names.append(name)
        offsets.append(field.offset)
        formats.append(_format(field.type))
    return np.dtype(
        {"names": names, "formats": formats, "offsets": offsets, "itemsize": ffi.sizeof(ctype)}
    )


def _format(ctype: Any) -> Any:
    if ctype.kind == "array":
        return (_format(ctype.item), (ctype.length,))
    if ctype.kind == "struct":
        return record_dtype(ctype)
    return f"u{ffi.sizeof(ctype)}"


@cache
def flow_dtype() -> np.dtype[np.void]:
    return record_dtype(ffi.typeof("struct fc_flow"))


def address_text(raw: bytes) -> str:
    """16 key bytes as text: IPv4 where they are ::ffff:a.b.c.d."""
    address = ipaddress.IPv6Address(raw)
    return str(address.ipv4_mapped or address)


def flow_key(record: np.void) -> FlowKey:
    """The key of one record of `FlowTable.flows()`."""
    return FlowKey(
        source=address_text(bytes(record["key"]["source"])),
        destination=address_text(bytes(record["key"]["destination"])),
        dest_qp=int(record["key"]["dest_qp"]),
        incarnation=int(record["incarnation"]),
        partition=int(record["key"]["partition"]),
    )


def psn_missing(record: np.void) -> int:
    """Packets of one flow known to exist and never seen, tails of known messages included."""
    used = int(record["holes_used"])
    holes = sum(int(hole["stop"]) - int(hole["start"]) for hole in record["holes"][:used])
    return holes + int(record["lost_holes"]) + psn_missing_at_end(record)


def psn_missing_at_end(record: np.void) -> int:
    """Those of them that lie behind the last packet seen."""
    return max(0, int(record["expected_psn"]) - int(record["next_psn"]))


class FlowTable(Closeable):
    """Flows and messages of one ring, mapped. `handle` is the `struct fc_flows *` C takes."""

    def __init__(self, path: Path, handle: Any) -> None:
        self.path = path
        self.handle = handle

    @classmethod
    def create(cls, path: Path, *, messages: int) -> FlowTable:
        """A new table; `messages`: a power of two, at least twice the slots of the ring."""
        handle = ffi.new("struct fc_flows *")
        code = lib.fc_flows_create(str(path).encode(), messages, handle)
        check_shared_memory(code, "create flow table", path, new=True)
        return cls(path, handle)

    @classmethod
    def open(cls, path: Path, *, writable: bool = False) -> FlowTable:
        """An existing table; writable for its parser alone. Raises RingError on a foreign file."""
        handle = ffi.new("struct fc_flows *")
        code = lib.fc_flows_open(str(path).encode(), writable, handle)
        check_shared_memory(code, "open flow table", path, new=False)
        return cls(path, handle)

    def flows(self) -> NDArray[np.void]:
        """[flows used] records of `flow_dtype`, index = mark.flow; a view the parser may change.

        The view must not outlive `close()`.
        """
        import numpy as np

        used = int(lib.fc_flows_used(self.handle))
        size = used * flow_dtype().itemsize
        view = np.frombuffer(ffi.buffer(self.handle.flows, size), dtype=flow_dtype())
        view.flags.writeable = False
        return view

    @property
    def newest_message(self) -> int:
        """Pool position of the newest message; positions count from 1."""
        return int(lib.fc_flows_messages_made(self.handle))

    @property
    def pool_records(self) -> int:
        return int(self.handle.mask) + 1

    def message(self, position: int) -> Any | None:
        """A copy of the record as `struct fc_message *`, or None when the pool has lost it."""
        out = ffi.new("struct fc_message *")
        return out if lib.fc_flows_message(self.handle, position, out) else None

    def messages(self, start: int = 1) -> Iterator[Any]:
        """Copies of the records from `start` on that are still kept, in order of discovery."""
        for position in range(
            max(start, self.newest_message - self.pool_records + 1), self.newest_message + 1
        ):
            record = self.message(position)
            if record is not None:
                yield record

    def close(self) -> None:
        lib.fc_flows_close(self.handle)
