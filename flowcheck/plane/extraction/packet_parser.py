"""The packet parser of one ring: marks slots and keeps the flow table, one C call per span."""

from __future__ import annotations

from typing import Any

from flowcheck._core import ffi, lib
from flowcheck.closing_context import Closeable
from flowcheck.errors import RingError, check
from flowcheck.plane.shared_memory.flow_table import FlowTable
from flowcheck.plane.shared_memory.frame_ring import FrameRing


class Parser(Closeable):
    """Takes back what a killed parser left half done, then goes on from `ring.parsed`."""

    def __init__(self, ring: FrameRing, flows: FlowTable, *, icrc_every: int = 1) -> None:
        """icrc_every: check the ICRC of every n-th slot, 0 of none.

        Raises RingError when the table is read-only, too small for the ring, or torn.
        """
        self.ring, self.flows = ring, flows
        slot = ffi.new("struct fc_parser **")
        code = lib.fc_parser_open(ring.handle, flows.handle, icrc_every, slot)
        check(code, ring.path.name, RingError)
        self.handle: Any = slot[0]

    def parse(self, limit: int) -> int:
        """Marks up to `limit` slots; returns how many."""
        return int(lib.fc_parse_span(self.handle, limit))

    def close(self) -> None:
        """Frees the parser; ring and table stay open and must be closed after it."""
        if self.handle:
            lib.fc_parser_close(self.handle)
            self.handle = None
