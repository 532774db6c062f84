"""What looks like all-reduces and may be gathered parameters is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flowcheck.findings.catalog.distributed_optimizers import (
    MAY_BE_SHARDED,
    MAY_BE_ZERO,
    ONE_ALL_REDUCE,
)
from flowcheck.wire.collectives.nccl_parameters import Protocol
from flowcheck.wire.learn.jobs.sharding.zero import maybe_zero
from flowcheck.wire.learn.reading import Collective


def reduced(values: np.ndarray) -> Collective:
    data = np.ascontiguousarray(values).view(np.uint8)
    return Collective(
        index=0,
        kind="all_reduce",
        communicator=0,
        protocol=Protocol.SIMPLE,
        ranks=4,
        channels=1,
        bytes=data.size,
        covered_bytes=data.size,
        missing=(),
        result=data,
        conflicts=0,
        sources=(),
        assumed=(),
        first_ns=0,
        placements=(),
    )


@pytest.mark.parametrize("wide", [True, False])
def test_parameters_are_told_from_gradients(wide: bool) -> None:
    draw = np.random.default_rng(3)

    def stored(values: np.ndarray) -> np.ndarray:
        bits = values.astype("<f4")
        return bits if wide else (bits.view("<u4") >> 16).astype("<u2")

    weights = draw.standard_normal(500)
    steps = [weights := weights + 0.01 * draw.standard_normal(500) for _ in range(4)]
    told, labelled = maybe_zero([reduced(stored(values)) for values in steps])
    assert len(told) == 1 and told[0].is_any_of(MAY_BE_ZERO)
    assert all(c.assumed[0].is_any_of(ONE_ALL_REDUCE) for c in labelled)
    gradients = [draw.standard_normal(500) for _ in range(4)]
    told, labelled = maybe_zero([reduced(stored(values)) for values in gradients])
    assert not told and not any(c.assumed for c in labelled)
    assert not maybe_zero([reduced(stored(weights))] * 4)[0]
    assert not maybe_zero([reduced(stored(values)) for values in steps[:2]])[0]
    gathered = [replace(reduced(stored(values)), kind="all_gather") for values in steps]
    told, _ = maybe_zero(gathered)
    assert len(told) == 1 and told[0].is_any_of(MAY_BE_SHARDED)
