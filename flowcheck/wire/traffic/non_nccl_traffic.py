"""Why nothing on a port can be followed: what its frames are (TCP, RDMA SEND, encrypted, ...),
by their verdicts."""

from __future__ import annotations

from collections.abc import Mapping

from flowcheck.findings.catalog import non_nccl_frames
from flowcheck.findings.finding import Finding

ENCRYPTED_SHARE_LEAST = 0.01
"""Share of all frames from which on encrypted ones are worth a word beside others. A choice: less
tells of a stray tunnel."""
TCP_FRAMES_LEAST = 10_000
"""Frames: 10 MB and more. What launchers and stores say before NCCL begins is a few hundred. A
choice between the two."""
SIGNALS_LEAST = 10
"""Atomics beside writes that are worth a word. A choice: a lock or two are no puts."""
_WITHOUT_WRITES = {
    "tcp": non_nccl_frames.TCP,
    "send": non_nccl_frames.SENDS,
    "read": non_nccl_frames.READS,
    "atomic": non_nccl_frames.ATOMICS,
    "ud": non_nccl_frames.DATAGRAMS,
    "roce_other": non_nccl_frames.OTHER_ROCE,
    "udp_other": non_nccl_frames.OTHER_UDP,
    "fragment": non_nccl_frames.FRAGMENTS,
}
"""By verdict."""


def non_nccl_reasons(frames: Mapping[str, int], *, goes_on: bool = False) -> tuple[Finding, ...]:
    """A finding for each kind of frame that may be why nothing is followed; most frames first.

    frames: {verdict: frames}, as counted; goes_on: more come, and NCCL may just not have begun.
    """
    total = sum(frames.values())
    encrypted = frames.get("encrypted", 0)
    told = []
    if encrypted and encrypted >= ENCRYPTED_SHARE_LEAST * total:
        told.append((encrypted, non_nccl_frames.ENCRYPTED))
    if frames.get("write") and frames.get("atomic", 0) >= SIGNALS_LEAST:
        told.append((frames["atomic"], non_nccl_frames.PUTS))
    if not frames.get("write"):
        entries = dict(_WITHOUT_WRITES)
        if goes_on and frames.get("tcp", 0) < TCP_FRAMES_LEAST:
            entries["tcp"] = non_nccl_frames.TCP_SO_FAR
        told += [(frames.get(name, 0), entry) for name, entry in entries.items()]
    told.sort(key=lambda pair: -pair[0])
    return tuple(entry(count) for count, entry in told if count)
