"""What the extractor does not take: plans that contradict, files that do not belong together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.extraction import (
    SIMPLE,
    Bench,
    Packet,
    Send,
    bench,
    packets_of,
    plan_of,
)

from flowcheck.errors import RingError
from flowcheck.plane.extractor import Extractor
from flowcheck.plane.plans import PLAN_ACTIVE
from flowcheck.plane.staging import Staging
from flowcheck.wire.edge_messages import SendKind

SIZE = 4096


def data(seed: int, size: int = SIZE) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8).tobytes()


def whole(seed: int, protocol: int = SIMPLE, size: int = SIZE) -> Send:
    return Send(data(seed, size), protocol, SendKind.FINAL, ((0, size, 0),))


def learn_flow(run: Bench, packet: Packet) -> None:
    run.run([packet])


@pytest.mark.parametrize(
    "segments",
    [((0, SIZE, 4),), ((0, 8, 0), (4, 8, 16)), ((0, 6, 0),), ((4, SIZE, 0),)],
    ids=["beyond the gradient", "out of order", "between elements", "beyond the message"],
)
def test_plans_that_contradict_the_shard_are_refused(
    shm: Path, segments: tuple[tuple[int, int, int], ...]
) -> None:
    with bench(shm) as run:
        learn_flow(run, packets_of([whole(1)])[0])
        with pytest.raises(RingError):
            run.extractor.install(plan_of([Send(data(1), SIMPLE, SendKind.FINAL, segments)]))
        assert run.staging.plans()["state"][0] != PLAN_ACTIVE


def test_plan_of_a_flow_nobody_saw_waits(shm: Path) -> None:
    with bench(shm) as run:
        assert not run.extractor.install(plan_of([whole(1)]))


def test_files_that_do_not_belong_together_are_refused(shm: Path) -> None:
    with bench(shm) as run:
        with (
            Staging.create(shm / "other", messages=64, data_bytes=1 << 16) as other,
            pytest.raises(RingError, match="message records"),
        ):
            Extractor(run.ring, run.flows, other)
        (shm / "foreign").write_bytes(b"x" * 8192)
        with pytest.raises(RingError, match="not a FlowCheck staging file"):
            Staging.open(shm / "foreign")
