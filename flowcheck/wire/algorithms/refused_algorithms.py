"""NCCL's algorithms that are not followed, each with the reason."""

from __future__ import annotations

from flowcheck.wire.algorithms.algorithm_names import Algorithm
from flowcheck.wire.algorithms.algorithm_spec import AlgorithmSpec

REFUSED = (
    AlgorithmSpec(
        name=Algorithm.NVLS,
        plural="NVLink SHARP",
        refused_because=(
            "NVLink SHARP sums inside a node, and its trees between nodes are not followed"
        ),
    ),
    AlgorithmSpec(
        name=Algorithm.COLLNET,
        plural="CollNet",
        refused_because="the switch itself sums (SHARP): no port carries what a ring would",
    ),
    AlgorithmSpec(
        name=Algorithm.PAT,
        plural="PAT",
        refused_because="its sums are not followed",
    ),
)
