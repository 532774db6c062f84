"""Packet counters of the C structs as dictionaries: verdicts, capture losses, packets without a
flow record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowcheck._core import ffi, lib
from flowcheck.findings.catalog import lost_steps
from flowcheck.findings.finding import Finding


def counter_values(counters: Any) -> dict[str, int]:
    """{field name: value} of a C counter struct or a pointer to one."""
    kind = ffi.typeof(counters)
    struct = kind.item if kind.kind == "pointer" else kind
    return {name: int(getattr(counters, name)) for name, _ in struct.fields}


VERDICTS: tuple[str, ...] = tuple(
    name.removeprefix("FC_").lower()
    for _, name in sorted(ffi.typeof("enum fc_verdict").elements.items())
    if name != "FC_VERDICTS"
)
"""Verdict names in the order of enum fc_verdict (fc_counters.h)."""


LOSS_COUNTERS = (
    "ring_full_frames",
    "oversize_frames",
    "nic_missed_frames",
    "nic_no_mbuf_frames",
    "nic_error_frames",
    "interface_missed_frames",
)
"""Capture counters of frames that reached this machine and no slot."""


def lost_frames(capture: Mapping[str, int]) -> int:
    """Frames that reached this machine and no slot, of a ring's capture counters."""
    return sum(capture[name] for name in LOSS_COUNTERS)


FLOW_TABLE_FULL = "flow_table_full_packets"
"""Parser's counter of write and SEND packets whose queue pair found no record in the table."""


def flow_table_full_finding(packets: int) -> Finding:
    """What more than 0 `packets` of FLOW_TABLE_FULL mean, and what to do."""
    return lost_steps.FLOW_TABLE_FULL(flows=lib.FC_FLOWS_MAX, packets=packets)


def frames_by_verdict(parse_counters: Any) -> dict[str, int]:
    """{verdict: frames} from a struct fc_parse_counters; every verdict, zeros too."""
    values = counter_values(parse_counters)
    return {name: values[f"{name}_frames"] for name in VERDICTS}
