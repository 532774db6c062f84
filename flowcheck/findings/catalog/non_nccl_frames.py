"""What a port carries where nothing on it is NCCL's."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

ENCRYPTED = Entry(
    "frames.encrypted",
    "{frames:,} frames are encrypted (MACsec, IPsec ESP or PSP), and FlowCheck cannot read them",
    remedy="Mirror a port where the frames are not encrypted.",
)
TCP_SO_FAR = Entry(
    "frames.tcp_so_far",
    "{frames:,} frames are TCP, as a launcher and a store send them before NCCL's first connection",
)
TCP = Entry(
    "frames.tcp",
    "{frames:,} frames are TCP: NCCL over sockets (NCCL_NET=Socket, NCCL_IB_DISABLE=1, or no "
    "device that it could use), gloo, or a store",
    remedy="Let NCCL use RoCE: unset `NCCL_NET` and `NCCL_IB_DISABLE`, check `NCCL_IB_HCA`.",
)
SENDS = Entry(
    "frames.sends",
    "{frames:,} frames are RDMA SENDs: storage, or a network plugin that is not NCCL's own "
    "(UCX, libfabric); NCCL's built-in one writes",
    remedy="Let NCCL use its built-in plugin: `NCCL_NET=IB`.",
)
READS = Entry(
    "frames.reads",
    "{frames:,} frames are RDMA READs: storage, or a network plugin that is not NCCL's own",
)
ATOMICS = Entry(
    "frames.atomics",
    "{frames:,} frames are RDMA atomics: FlowCheck does not follow transfers that GPUs start "
    "themselves, as NVSHMEM's",
)
PUTS = Entry(
    "frames.puts",
    "{frames:,} RDMA atomics are beside the writes, as signals behind one-sided puts: NCCL's GIN "
    "and RMA (symmetric memory, the hierarchical copy engine), NVSHMEM or DeepEP; FlowCheck does "
    "not follow puts",
    remedy="Let gradients go by NCCL's own rings and trees: `NCCL_GIN_ENABLE=0`, and no symmetric "
    "memory for their buffers.",
)
DATAGRAMS = Entry(
    "frames.datagrams",
    "{frames:,} frames are unreliable datagrams: another transport's (AWS SRD, MPI), not NCCL's",
)
OTHER_ROCE = Entry(
    "frames.other_roce",
    "{frames:,} frames are of RoCE v1 or of an RDMA transport that NCCL does not use",
)
OTHER_UDP = Entry("frames.other_udp", "{frames:,} frames are UDP to other ports than RoCE's 4791")
FRAGMENTS = Entry(
    "frames.fragments",
    "{frames:,} frames are fragments of IP packets, which FlowCheck cannot read",
    remedy="Raise the MTU of every link between the NICs.",
)
