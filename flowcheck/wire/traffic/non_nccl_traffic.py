"""Why nothing on a port can be followed: what its frames are (TCP, RDMA SEND, encrypted, ...),
by their verdicts."""

from __future__ import annotations

from collections.abc import Mapping

ENOUGH = 0.01
"""Share of all frames from which on encrypted ones are worth a word beside others."""
ENCRYPTED = (
    "{:,} frames are encrypted (MACsec, IPsec ESP or PSP): what is inside cannot be followed; "
    "mirror a port where they are in clear"
)
TCP_LEAST = 10_000
"""Frames: 10 MB and more. What launchers and stores say before NCCL begins is a few hundred."""
TCP_SO_FAR = (
    "{:,} frames are TCP, as a launcher and a store send them before NCCL's first connection"
)
_WITHOUT_WRITES = {
    "tcp": "{:,} frames are TCP: NCCL over sockets (NCCL_NET=Socket, NCCL_IB_DISABLE=1, or no "
    "device that it could use), gloo, or a store",
    "send": "{:,} frames are RDMA SENDs: storage, or a network plugin that is not NCCL's own "
    "(UCX, libfabric); the built-in one writes",
    "read": "{:,} frames are RDMA READs: storage, or a network plugin that is not NCCL's own",
    "atomic": "{:,} frames are RDMA atomics: transfers that GPUs start themselves, as NVSHMEM's, "
    "are not followed",
    "ud": "{:,} frames are unreliable datagrams: another transport's (AWS SRD, MPI), not NCCL's",
    "roce_other": "{:,} frames are of RoCE v1 or of an RDMA transport that NCCL does not use",
    "udp_other": "{:,} frames are UDP to other ports than RoCE's 4791",
    "fragment": "{:,} frames are fragments of IP packets: raise the MTU on their way",
}
"""By verdict."""


def non_nccl_reasons(frames: Mapping[str, int], *, goes_on: bool = False) -> tuple[str, ...]:
    """A sentence for each kind of frame that may be why nothing is followed; most frames first.

    frames: {verdict: frames}, as counted; goes_on: more come, and NCCL may just not have begun.
    """
    total = sum(frames.values())
    encrypted = frames.get("encrypted", 0)
    told = [(encrypted, ENCRYPTED)] if encrypted and encrypted >= ENOUGH * total else []
    if not frames.get("write"):
        told += [(frames.get(name, 0), sentence) for name, sentence in _WITHOUT_WRITES.items()]
        if goes_on and frames.get("tcp", 0) < TCP_LEAST:
            told = [(n, TCP_SO_FAR if s == _WITHOUT_WRITES["tcp"] else s) for n, s in told]
    told.sort(key=lambda pair: -pair[0])
    return tuple(sentence.format(count) for count, sentence in told if count)
