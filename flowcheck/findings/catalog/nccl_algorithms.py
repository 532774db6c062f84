"""NCCL's algorithms: why one is not followed, and what mirroring one takes."""

from __future__ import annotations

from flowcheck.findings.finding import Entry

USE_RING = "Set `NCCL_ALGO=Ring` for the trainers, so that NCCL uses rings instead."

NVLS_NOT_FOLLOWED = Entry(
    "algorithm.nvls_not_followed",
    "NVLink SHARP is not followed: it sums inside a node and uses trees of its own between nodes",
    remedy=USE_RING,
)
COLLNET_NOT_FOLLOWED = Entry(
    "algorithm.collnet_not_followed",
    "CollNet is not followed: the switch itself sums (SHARP), and no port carries a ring's data",
    remedy=USE_RING,
)
PAT_NOT_FOLLOWED = Entry(
    "algorithm.pat_not_followed",
    "PAT is not followed: FlowCheck does not know its schedule of sends",
    remedy=USE_RING,
)
TREES_MIRRORED = Entry(
    "algorithm.trees_mirrored_both_ways",
    "Trees: both directions of a port are mirrored, because following a tree needs both. Gb/s are "
    "counted as a ring's; an inner node of a tree sends about as much.",
)
