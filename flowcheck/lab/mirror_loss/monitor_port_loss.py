"""Drops copies at a cluster's monitor port with a probability, and counts them.

The filter sits where the port sends (tc's clsact, egress), so both kinds of switch and a tunnel
pass it, and no frame between hosts does.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from pyroute2 import NetlinkError

from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.lab_runs import MIRROR_LOSS_REFUSED
from flowcheck.lab.cluster.cluster_spec import MONITOR, Cluster
from flowcheck.lab.cluster.network_namespaces import netlink
from flowcheck.lab.cluster.veth_links import index_of
from flowcheck.lab.mirror_loss.bpf_syscalls import ArrayMap, load_program
from flowcheck.lab.mirror_loss.drop_program import (
    COUNTER_BYTES,
    RECORD_BYTES,
    THRESHOLD_BYTES,
    drop_program,
    threshold_of,
)
from flowcheck.lab.mirror_loss.dropped_frames import DroppedFrame, decode_record
from flowcheck.lab.mirror_loss.loss_count import MirrorLossCount

LOG_ENTRIES = 1 << 16
"""Dropped copies whose first bytes are kept, 9 MB of kernel memory. A choice: a job of 1.6 million
copies loses fewer at 0.04."""
EGRESS = 0xFFFFFFF3
"""TC_H_CLSACT with TC_H_MIN_EGRESS (linux/pkt_sched.h)."""
PREFERENCE = 1
"""Place among the filters of the port: it is the only one."""


class MonitorPortLoss:
    """A filter at the monitor port of a cluster that is up. It stays until the cluster goes. It
    counts at once, and drops from `begin` on."""

    def __init__(self, cluster: Cluster, probability: float, seed: int) -> None:
        """Raises FlowCheckError if the kernel has no such filter."""
        self.probability, self.seed = probability, seed
        self._counters = ArrayMap(COUNTER_BYTES, 1)
        self._threshold = ArrayMap(THRESHOLD_BYTES, 1)
        self._log = ArrayMap(RECORD_BYTES, LOG_ENTRIES)
        maps = (self._counters.fd, self._threshold.fd, self._log.fd)
        code = drop_program(*maps, LOG_ENTRIES, seed)
        program = load_program(code)
        try:
            _attach(cluster, program)
        finally:
            os.close(program)

    def __enter__(self) -> MonitorPortLoss:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, what: BaseException | None, at: TracebackType | None
    ) -> None:
        for each in (self._counters, self._threshold, self._log):
            each.close()

    def begin(self) -> None:
        """From now on copies are dropped."""
        self._threshold.write(0, struct.pack("=Q", threshold_of(self.probability)))

    def frames(self) -> list[DroppedFrame]:
        """The dropped copies in their order, the first LOG_ENTRIES of them."""
        _, dropped = self._numbers()
        return [decode_record(self._log.read(n)) for n in range(min(dropped, LOG_ENTRIES))]

    def count(self) -> MirrorLossCount:
        """What was dropped so far; exact once the traffic stands still."""
        copies, dropped = self._numbers()
        payloads = [one.payload_bytes for one in self.frames() if one.payload_bytes]
        return MirrorLossCount(
            probability=self.probability,
            seed=self.seed,
            copies=copies,
            dropped=dropped,
            dropped_roce=len(payloads),
            dropped_payload_bytes=sum(payloads),
            not_logged=max(0, dropped - LOG_ENTRIES),
        )

    def _numbers(self) -> tuple[int, int]:
        copies, dropped = struct.unpack("=QQ", self._counters.read(0))
        return copies, dropped


@contextmanager
def _said(what: str) -> Iterator[None]:
    try:
        yield
    except NetlinkError as error:
        reason = os.strerror(error.code)
        raise FlowCheckError(MIRROR_LOSS_REFUSED(what=what, error=reason)) from error


def _attach(cluster: Cluster, program: int) -> None:
    with netlink(cluster.switch_namespace) as route:
        port = index_of(route, MONITOR)
        with _said("tc's hook at a port (CONFIG_NET_SCH_INGRESS)"):
            route.tc("add", "clsact", port)
        with _said("tc's BPF classifier (CONFIG_NET_CLS_BPF)"):
            route.tc(
                "add-filter",
                "bpf",
                port,
                fd=program,
                name="mirror-loss",
                parent=EGRESS,
                prio=PREFERENCE,
                direct_action=True,
            )
