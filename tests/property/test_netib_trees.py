"""All-reduces by trees of an independent generator: every step's gradient, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from property.test_netib_followed import follow
from support.netib import Options

from flowcheck.wire.algorithms.algorithm_names import Algorithm
from flowcheck.wire.training_job.learned_job import decode_job

WIDE = ((300, 128), (300,), (64, 300), (64,))
TREES = Options(
    shapes=WIDE, ranks=4, channels=2, version=(2, 23), tree_below=1 << 30, caps_bytes=(40000, 90000)
)
FOLLOWED = {
    "root": replace(TREES, mirrored=(0,)),
    "inner": replace(TREES, mirrored=(2,), metric_every=2, steps=5),
    "3-ranks-219": replace(TREES, ranks=3, mirrored=(1,), version=(2, 19), protocol="Simple"),
    "mixed": replace(
        TREES, ranks=5, mirrored=(3,), version=(2, 26), tree_below=90000, metric_every=2
    ),
    "mixed-simple": replace(
        TREES, ranks=7, protocol="Simple", version=(2, 29), mix=((2000, "LL"),), tree_below=90000
    ),
    "ll128": replace(TREES, ranks=6, protocol="LL128", version=(2, 21), mirrored=(4,)),
    "two-mirrors": replace(TREES, ranks=8, mirrored=(2, 5)),
    "beside-tensors": replace(TREES, tensor_layers=2, tensor_near=True),
    "beside-metrics": replace(TREES, mirrored=(2,), metrics_group=True),
    "nodes": replace(TREES, ranks=12, gpus=2, mirrored=(2,), channels=4, tree_found=2),
    "nodes-mixed": replace(
        TREES, ranks=16, gpus=4, mirrored=(1,), tree_below=90000, protocol="Simple", metric_every=2
    ),
    "nodes-back": replace(
        TREES, ranks=9, gpus=3, mirrored=(0,), tree_chain="back", version=(2, 19), protocol="LL128"
    ),
    "two-nodes": replace(TREES, ranks=4, gpus=2, metric_every=2),
    "two-nodes-other": replace(TREES, ranks=4, gpus=2, mirrored=(1,), version=(2, 30)),
    "two-nodes-shared": replace(TREES, ranks=4, gpus=2, tree_pattern="split"),
    "two-nodes-ll128": replace(
        TREES, ranks=8, gpus=4, channels=4, tree_found=2, version=(2, 30), protocol="LL128"
    ),
    "two-nodes-mixed": replace(
        TREES, ranks=8, gpus=4, channels=4, tree_found=2, tree_below=90000, version=(2, 21)
    ),
    "two-nodes-simple": replace(
        TREES, ranks=8, gpus=4, tree_pattern="split", protocol="Simple", version=(2, 19)
    ),
    "two-nodes-eight-gpus": replace(
        TREES,
        ranks=16,
        gpus=8,
        channels=4,
        tree_found=2,
        protocol="Simple",
        version=(2, 28),
        mix=((2000, "LL"),),
        tree_below=90000,
    ),
}
BY_DAY = ("inner", "two-nodes")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.nightly] * (name not in BY_DAY)) for name in FOLLOWED],
)
def test_trees_are_followed(name: str, tmp_path: Path, shm: Path) -> None:
    options = FOLLOWED[name]
    chain = follow(options, tmp_path, shm)
    job = decode_job(chain.run.learned_job.read_bytes())
    assert job.communicators[0].ranks == options.ranks
    assert any(op.algorithm is Algorithm.TREE for op in job.each)
