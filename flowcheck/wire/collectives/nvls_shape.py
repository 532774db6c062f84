"""What a communicator's NVLS trees are made of; what they carry is in nvls_tree_parts.py.

Sources: NCCL src/transport/nvls.cc (ncclNvlsInit, ncclNvlsTuning), src/enqueue.cc
(calcCollChunking, NCCL_NVLSTREE_MAX_CHUNKSIZE).
"""

from __future__ import annotations

from dataclasses import dataclass

from flowcheck.wire.collectives.nccl_parameters import NcclEra

SEVERAL_NODES = 4
"""From so many on NCCL_NVLSTREE_MAX_CHUNKSIZE is smaller (src/enqueue.cc, from 2.19 on)."""
SMALLER_CHUNK = 65_536
FIRST_CHUNK = {NcclEra.V2_19: 524_288}
"""Largest chunk in bytes, of the newest release of an era; of all others `USUAL_CHUNK`. 2.20 has
that of 2.19."""
USUAL_CHUNK = 131_072
"""NCCL_NVLS_CHUNKSIZE."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlsShape:
    """What a communicator's NVLS trees are made of."""

    heads: int
    """GPUs of each node that write to other nodes."""
    channels: int
    """NCCL's nvlsChannels, which need not be those of rings."""
    nodes: int
    chunk_bytes: int = 0
    """Largest chunk, before it is halved; 0: the usual one of the release."""

    def first_chunk(self, era: NcclEra) -> int:
        """Largest chunk in bytes."""
        if self.chunk_bytes:
            return self.chunk_bytes
        usual = FIRST_CHUNK.get(era, USUAL_CHUNK)
        return min(usual, SMALLER_CHUNK) if self.nodes >= SEVERAL_NODES else usual


NO_NVLS = NvlsShape(heads=0, channels=0, nodes=0)
NO_HEAD = -1
"""In place of a head's number: no NVLS tree passes."""
