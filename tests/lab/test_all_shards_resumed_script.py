"""Hybrid sharding over a mesh (2, 2) with the ports of all shards, live: the trainers are killed
and resumed on the same chain. The judges are the trainers' own digests and DCP folders, and a job
that was not killed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support.chain import wait_until
from support.started import launch
from test_all_shards_script import (
    KEPT,
    MORE,
    followed_by,
    hosts,  # noqa: F401
    killed,
    steps_of,
    whole_of,
)
from test_hybrid_shard_script import reached, told

from flowcheck.lab import cluster
from flowcheck.lab.job_run.digest_comparison import Digests, trainer_digests
from flowcheck.ops.watch.state.chain_state import HealthWord
from flowcheck.ops.watch.state.state_reader import StateReader
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.run_directory.run_dir import RunDir

pytestmark = [
    pytest.mark.lab,
    pytest.mark.nightly,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="no ip command"),
    pytest.mark.timeout(900),
]


def test_killed_and_resumed_twice_on_the_same_chain_it_is_the_job_that_was_not(
    hosts: cluster.Cluster,  # noqa: F811
    tmp_path: Path,
) -> None:
    """The resumed job sends no weights: its replicas wait until the folder that it resumed from is
    given, and then have every step that was logged. The folder is the replicas' own."""
    run, resumed = RunDir(tmp_path / "run"), [dict[int, Digests](), dict[int, Digests]()]
    with followed_by(hosts, run) as runs:
        killed(hosts, tmp_path / "killed", runs)
        for life in (2, 3):
            restored = tmp_path / f"restored-{life}"
            code, said = told("restore", "--run", run.root, "--format", "dcp", "--out", restored)
            assert code == 0, said
            begin = whole_of(restored, tmp_path / f"restored-{life}.pt")["step"]
            end = begin + MORE
            own = tmp_path / f"resumed-{life}"
            launch(
                hosts, "hybrid.py", str(own), "rails", "bf16", "slow",
                f"load={restored}", f"steps={end}", f"save={end}",
            )  # fmt: skip
            for one in runs:
                wait_until(lambda of=one, n=life: incarnation_of(of).number == n, 120, "a new life")
                assert incarnation_of(one).step is None  # it may have begun with anything
                assert StateReader(one.root).state().health.word is not HealthWord.EXACT
            code, said = told("base", restored, "--run", run.root)
            assert code == 0, said
            for one in runs:
                reached(one, end)
            code, said = told("audit", f"{own}.dcp-{end}", "--run", run.root)
            assert code == 0, said
            for shard in range(2):
                resumed[shard] |= trainer_digests(tmp_path / f"resumed-{life}.{shard}")
    launch(hosts, "hybrid.py", str(tmp_path / "control"), "rails", "bf16", f"steps={end}")
    wanted = [trainer_digests(tmp_path / f"control.{shard}") for shard in range(2)]
    first = end - 2 * MORE + 1
    assert first > KEPT
    assert resumed == [{step: one[step] for step in range(first, end + 1)} for one in wanted]
    found = steps_of(runs)
    assert [{step: one[step] for step in range(1, end + 1)} for one in found] == wanted
