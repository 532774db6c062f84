"""Packets that flows' own sequence numbers show and no mirror brought, off shared memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowcheck.plane.flows import FlowTable


def missing_packets(flows: FlowTable) -> int:
    """Of all flows of a ring: between packets that were seen. What lies behind the newest one may
    be on its way still, and is no loss before a later one came. The parser may be at work on a
    record meanwhile: what it changes just now may count otherwise."""
    records = flows.flows()
    return int(_each(records).sum()) if len(records) else 0


def _each(records: NDArray[np.void]) -> NDArray[np.int64]:
    """[flows] the holes of each (fc_flow.h), and those that no longer found a place among them."""
    holes = records["holes"]
    starts, stops = holes["start"].astype(np.int64), holes["stop"].astype(np.int64)
    known = np.arange(holes.shape[1])[None, :] < records["holes_used"].astype(np.int64)[:, None]
    inside = np.where(known, np.maximum(stops - starts, 0), 0).sum(axis=1)
    total: NDArray[np.int64] = inside + records["lost_holes"].astype(np.int64)
    return total
