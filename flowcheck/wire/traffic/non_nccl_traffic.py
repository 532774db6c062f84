"""Why nothing on a port can be followed: what its frames are (TCP, RDMA SEND, encrypted, ...),
by their verdicts."""

from __future__ import annotations

from collections.abc import Mapping

from flowcheck.findings.catalog import foreign_frames
from flowcheck.findings.finding import Finding

ENOUGH = 0.01
"""Share of all frames from which on encrypted ones are worth a word beside others. A choice: less
tells of a stray tunnel."""
TCP_LEAST = 10_000
"""Frames: 10 MB and more. What launchers and stores say before NCCL begins is a few hundred. A
choice between the two."""
_WITHOUT_WRITES = {
    "tcp": foreign_frames.TCP,
    "send": foreign_frames.SENDS,
    "read": foreign_frames.READS,
    "atomic": foreign_frames.ATOMICS,
    "ud": foreign_frames.DATAGRAMS,
    "roce_other": foreign_frames.OTHER_ROCE,
    "udp_other": foreign_frames.OTHER_UDP,
    "fragment": foreign_frames.FRAGMENTS,
}
"""By verdict."""


def non_nccl_reasons(frames: Mapping[str, int], *, goes_on: bool = False) -> tuple[Finding, ...]:
    """A finding for each kind of frame that may be why nothing is followed; most frames first.

    frames: {verdict: frames}, as counted; goes_on: more come, and NCCL may just not have begun.
    """
    total = sum(frames.values())
    encrypted = frames.get("encrypted", 0)
    told = []
    if encrypted and encrypted >= ENOUGH * total:
        told.append((encrypted, foreign_frames.ENCRYPTED))
    if not frames.get("write"):
        entries = dict(_WITHOUT_WRITES)
        if goes_on and frames.get("tcp", 0) < TCP_LEAST:
            entries["tcp"] = foreign_frames.TCP_SO_FAR
        told += [(frames.get(name, 0), entry) for name, entry in entries.items()]
    told.sort(key=lambda pair: -pair[0])
    return tuple(entry(count) for count, entry in told if count)
