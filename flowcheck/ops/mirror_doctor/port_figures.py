"""The figures of one port, from the parser's counters and flow table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from flowcheck.ops.mirror_doctor.load_series import Load
from flowcheck.ops.mirror_doctor.loss_runs import LossRuns, runs_of_flow
from flowcheck.plane.shared_memory.flow_table import (
    flow_key,
    psn_missing,
    psn_missing_at_end,
)
from flowcheck.plane.shared_memory.packet_counters import LOSS_COUNTERS
from flowcheck.wire.traffic.observed_messages import FlowKey

WRITES = ("write", "orphan", "stale", "doubtful", "refused")
"""Verdicts of RDMA write packets."""


class Link(msgspec.Struct, kw_only=True):
    """All queue pairs from one host to another, as the port shows them."""

    source: str
    destination: str
    queue_pairs: int = 0
    data_packets: int = 0
    """Write packets of flows with immediates or with messages of several packets: what NCCL sends
    between ranks."""
    data_bytes: int = 0
    """Payload of them, each packet once."""
    control_packets: int = 0
    """Other write packets: with NCCL the clear-to-sends for what comes the other way."""
    ack_packets: int = 0
    """Answers of either kind to what comes the other way."""
    nak_packets: int = 0
    """Those of them that refuse a packet: it is sent again, and what follows it."""
    duplicate_packets: int = 0
    """Write packets that came again."""
    doubled_packets: int = 0
    """Those of them of flows of which nearly every packet came again, each as often."""
    missing_packets: int = 0
    """Sequence numbers between the first and the last packet that never came whole."""
    damaged_packets: int = 0
    """Those of them whose place a frame with a wrong ICRC of the same queue pair may have."""
    loss_runs: LossRuns = msgspec.field(default_factory=LossRuns)
    """How many of them are missing in a row, those with such a frame too."""
    under_way_packets: int = 0
    """Packets of the last message of each flow that had not come when the watch ended."""
    icrc_bad_frames: int = 0

    @property
    def write_packets(self) -> int:
        return self.data_packets + self.control_packets


DOUBLED_LEAST = 8
"""Duplicates of a flow from which on a mirror is taken to send it twice. A choice: a few may be one
retransmission of a short flow."""
DOUBLED_WITHIN = 0.1
"""How near to a whole number duplicates by distinct packets of such a flow are. A choice: two
copies are 1, three are 2; packets that a queue pair sends again come as often as it happens."""
DOUBLED_SHARE = 0.5
"""The same of a flow of which packets are missing: two copies of which a fifth is lost are 0.67."""


class PortFigures(msgspec.Struct, kw_only=True):
    """What one port brought."""

    port: str
    kind: str
    seconds: float
    """How long it was watched; of a file from its first frame to its last."""
    frames: int
    """All that reached this machine's capture, those dropped here too."""
    verdicts: dict[str, int]
    """{verdict: frames}, of those that were looked at; without zeros."""
    links: list[Link]
    load: Load | None
    icrc_checked: int
    icrc_every: int
    """The ICRC of every n-th frame was checked; 0: of none from some moment on, as none was
    right."""
    duplicate_packets: int
    vlan_frames: int
    encapsulated_frames: int
    tunnels: dict[str, int]
    """{kind: frames}, of a sample of the encapsulated ones."""
    vlans: list[int]
    cut_frames: int
    cut_bytes: int | None
    """The length of most cut frames."""
    cut_by_capture: bool
    """The file says that they were longer: its capture cut them."""
    capture_losses: dict[str, int]
    """{counter: frames} of frames that reached this machine and no slot."""
    interface_counters: dict[str, int]
    """{counter: by how much it grew} of the NIC, without zeros."""
    link_up: bool | None
    admin_up: bool | None
    speed_mbps: int | None
    flow_table_full_packets: int
    gone: bool = False
    """The interface was taken away while it was watched."""
    sampled: tuple[str, ...] = ()
    """Figures that rest on a sample."""
    chain: str | None = None
    """Run directory of a chain that captures this port as well, or whose counters these are."""
    chain_losses: dict[str, int] = {}
    """Of that chain in the same seconds."""
    from_chain: bool = False
    """These are the counters of the chain, which has the port for itself."""

    @property
    def writes(self) -> int:
        return sum(self.verdicts.get(name, 0) for name in WRITES)

    @property
    def missing_packets(self) -> int:
        return sum(link.missing_packets for link in self.links)

    @property
    def dropped_here(self) -> int:
        return sum(self.capture_losses.values())


def losses_of(capture: Mapping[str, int]) -> dict[str, int]:
    """Those of LOSS_COUNTERS that are not 0."""
    return {name: capture[name] for name in LOSS_COUNTERS if capture[name]}


def links_of(
    flows: Iterable[np.void], before: Mapping[FlowKey, np.void] | None = None
) -> list[Link]:
    """The links of a flow table's records, in order of first sight. before: {key: record} of an
    earlier look, which is taken off."""
    found: dict[tuple[str, str], Link] = {}
    for record in flows:
        key = flow_key(record)
        at = (key.source, key.destination)
        link = found.setdefault(at, Link(source=at[0], destination=at[1]))
        earlier = None if before is None else before.get(key)
        _add_flow(link, record, earlier)
    return [link for link in found.values() if link.write_packets or link.ack_packets]


def _add_flow(link: Link, record: np.void, earlier: np.void | None) -> None:
    def grown(name: str) -> int:
        return int(record[name]) - (0 if earlier is None else int(earlier[name]))

    writes, again = grown("write_packets"), grown("duplicate_packets")
    link.queue_pairs += 1
    if record["has_immediates"] or record["pmtu_bytes"]:
        link.data_packets += writes
        link.data_bytes += grown("payload_bytes")
    else:
        link.control_packets += writes
    link.ack_packets += grown("ack_packets")
    link.nak_packets += grown("nak_packets")
    link.duplicate_packets += again
    wrong = grown("icrc_bad_frames")
    missing, under_way = _missing(record)
    if earlier is not None:
        missing = max(0, missing - _missing(earlier)[0])
    if _each_came_again(writes - again, again, missing):
        link.doubled_packets += again
    link.icrc_bad_frames += wrong
    link.missing_packets += missing
    link.damaged_packets += min(missing, wrong)
    link.loss_runs.add(runs_of_flow(record, earlier))
    link.under_way_packets += under_way


def _each_came_again(distinct: int, again: int, missing: int) -> bool:
    """Whether a flow's packets came again evenly: all of them once, or twice and so on."""
    if again < DOUBLED_LEAST or distinct <= 0:
        return False
    copies = again / distinct
    if missing and DOUBLED_SHARE <= copies < 1:
        return True
    return abs(copies - max(1, round(copies))) <= DOUBLED_WITHIN


def _missing(record: Any) -> tuple[int, int]:
    """(packets missing before the last one seen, packets behind it)."""
    at_end = psn_missing_at_end(record)
    return psn_missing(record) - at_end, at_end


class Host(msgspec.Struct, kw_only=True):
    """One host in the data that ports brought."""

    address: str
    sends_bytes: int = 0
    receives_bytes: int = 0
    grants_packets: int = 0
    """Clear-to-sends of it."""


def hosts_of(links: list[Link]) -> list[Host]:
    """The hosts of these links, in order of first sight."""
    found: defaultdict[str, Host] = defaultdict()
    for link in links:
        for address in (link.source, link.destination):
            found.setdefault(address, Host(address=address))
        found[link.source].sends_bytes += link.data_bytes
        found[link.source].grants_packets += link.control_packets
        found[link.destination].receives_bytes += link.data_bytes
    return list(found.values())


def joined_links(ports: list[PortFigures]) -> list[Link]:
    """The links of several ports: what more than one shows counts once, by the port that saw most
    of it."""
    found: dict[tuple[str, str], Link] = {}
    for port in ports:
        for link in port.links:
            at = (link.source, link.destination)
            if at not in found or link.data_bytes > found[at].data_bytes:
                found[at] = link
    return list(found.values())
