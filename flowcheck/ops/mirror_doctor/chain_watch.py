"""A port that a chain has for itself: the chain's own counters, read at the beginning and the end.
No frame is taken from it."""

from __future__ import annotations

import time

from flowcheck.ops.mirror_doctor.capturing_chains import CapturingChain
from flowcheck.ops.mirror_doctor.load_series import LINK_OVERHEAD_BYTES, Load
from flowcheck.ops.mirror_doctor.named_ports import NamedPort
from flowcheck.ops.mirror_doctor.port_figures import PortFigures, links_of, losses_of
from flowcheck.plane.shared_memory.packet_counters import FLOW_TABLE_FULL, VERDICTS

LOOK_EVERY_S = 0.1
"""Seconds between two looks at the bytes that came: the window of the peak."""


class ChainWatch:
    """Counters of a chain's rings for one of its sources. Raises FlowCheckError where they cannot
    be read."""

    def __init__(self, named: NamedPort, chain: CapturingChain) -> None:
        self.named, self.chain = named, chain
        self._began = chain.counters()
        self._flows = chain.flows()
        self._last, self._last_s = self._began["capture"], time.monotonic()
        self._peak_gbps = 0.0

    def look(self) -> None:
        """Notes the rate since the look before, at most every LOOK_EVERY_S."""
        now_s = time.monotonic()
        if now_s - self._last_s < LOOK_EVERY_S:
            return
        now = self.chain.counters()["capture"]
        rate = _gbps(_grown(self._last, now), now_s - self._last_s)
        self._peak_gbps = max(self._peak_gbps, rate)
        self._last, self._last_s = now, now_s

    def figures(self, seconds: float) -> PortFigures:
        """What came meanwhile."""
        now, flows = self.chain.counters(), self.chain.flows()
        capture = _grown(self._began["capture"], now["capture"])
        parse = _grown(self._began["parse"], now["parse"])
        verdicts = {name: n for name in VERDICTS if (n := parse[f"{name}_frames"])}
        load = Load(
            bytes=capture["rx_bytes"],
            mean_gbps=_gbps(capture, seconds),
            peak_1ms_gbps=None,
            peak_100ms_gbps=round(self._peak_gbps, 6),
            busy_run_bytes=None,
            busy_run_ms=None,
            line_run_bytes=None,
            line_run_ms=None,
            backlog_bytes=None,
            complete=True,
        )
        return PortFigures(
            port=self.named.name,
            kind=self.named.kind.value,
            seconds=round(seconds, 6),
            frames=capture["rx_frames"],
            verdicts=verdicts,
            links=links_of(flows.values(), self._flows),
            load=load,
            icrc_checked=parse["icrc_checked_frames"],
            icrc_every=1,
            duplicate_packets=parse["duplicate_packets"],
            vlan_frames=parse["vlan_frames"],
            encapsulated_frames=parse["encapsulated_frames"],
            tunnels={},
            vlans=[],
            cut_frames=verdicts.get("snapped", 0),
            cut_bytes=None,
            cut_by_capture=False,
            capture_losses={},
            interface_counters={},
            link_up=None,
            admin_up=None,
            speed_mbps=None,
            flow_table_full_packets=parse[FLOW_TABLE_FULL],
            chain=str(self.chain.run),
            chain_losses=losses_of(capture),
            from_chain=True,
        )


def _grown(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """{counter: by how much it grew}; all of them where the chain began anew meanwhile."""
    return {
        name: value - (before.get(name, 0) if value >= before.get(name, 0) else 0)
        for name, value in after.items()
    }


def _gbps(capture: dict[str, int], seconds: float) -> float:
    on_link = capture["rx_bytes"] + LINK_OVERHEAD_BYTES * capture["rx_frames"]
    return round(on_link * 8 / seconds / 1e9, 6) if seconds > 0 else 0.0
