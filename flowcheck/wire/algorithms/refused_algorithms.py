"""NCCL's algorithms that are not followed, each with the reason."""

from __future__ import annotations

from flowcheck.findings.catalog.nccl_algorithms import (
    COLLNET_NOT_FOLLOWED,
    NVLS_NOT_FOLLOWED,
    PAT_NOT_FOLLOWED,
)
from flowcheck.wire.algorithms.algorithm_names import Algorithm
from flowcheck.wire.algorithms.algorithm_spec import AlgorithmSpec

REFUSED = (
    AlgorithmSpec(
        name=Algorithm.NVLS,
        plural="NVLink SHARP",
        refused_because=NVLS_NOT_FOLLOWED(),
    ),
    AlgorithmSpec(
        name=Algorithm.COLLNET,
        plural="CollNet",
        refused_because=COLLNET_NOT_FOLLOWED(),
    ),
    AlgorithmSpec(
        name=Algorithm.PAT,
        plural="PAT",
        refused_because=PAT_NOT_FOLLOWED(),
    ),
)
