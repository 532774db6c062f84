"""Data-parallel training beside other communicators on one mirrored port: told apart, followed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.standing import standing
from test_unseen_scripts import ADAMW, run

from flowcheck.lab import cluster

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="no ip command"),
]


@pytest.fixture(scope="module")
def hosts() -> Iterator[cluster.Cluster]:
    with standing(cluster.Cluster(name=f"v{os.getpid()}", network=202, hosts=4)) as made:
        yield made


@pytest.mark.nightly
@pytest.mark.parametrize("protocol", ["LL", "LL128", "Simple"])
@pytest.mark.parametrize("way", ["tensor", "pipeline", "experts", "metrics"])
def test_the_data_parallel_job_is_followed_beside_others(
    hosts: cluster.Cluster, tmp_path: Path, way: str, protocol: str
) -> None:
    outcome = run(hosts, tmp_path, ADAMW, "parallel.py", way, f"NCCL_PROTO={protocol}")
    assert len(outcome.trainer) == 5
    assert outcome.replica == outcome.trainer and not outcome.why
