"""Hybrid sharding over a mesh (2, 2) with the ports of all shards, live: one checkpoint of the
whole model. The judges are the trainers' own digests, and their DCP folders as torch reads them."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from support.chain import wait_until
from support.standing import standing
from support.started import SCRIPTS, Ranks, launch
from test_hybrid_shard_script import chain, followed, reached, told
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from flowcheck.lab import cluster
from flowcheck.lab.job_run.digest_comparison import Digests, trainer_digests
from flowcheck.ops.lifecycle.run_outcome import last_step
from flowcheck.stages.run_directory.run_dir import RunDir

pytestmark = [
    pytest.mark.lab,
    pytest.mark.nightly,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="no ip command"),
    pytest.mark.timeout(600),
]
STEPS, SAVED = 7, 6
KEPT, MORE = 4, 3
"""Steps before the kill, at least, and behind it."""


@pytest.fixture
def hosts() -> Iterator[cluster.Cluster]:
    """Two hosts of two GPUs with a NIC each, of which both ports of the first one are mirrored."""
    mirrors = cluster.parse_mirrors(["p0:both", "p1:both"])
    made = cluster.Cluster(
        name=f"a{os.getpid()}", network=208, hosts=2, gpus=2, nics=2, mirrors=mirrors
    )
    with standing(made) as up:
        yield up


@contextmanager
def followed_by(hosts: cluster.Cluster, run: RunDir) -> Iterator[list[RunDir]]:
    """A chain that follows all shards; yields [shard] its run directory."""
    addresses = ", ".join(f'"{hosts.port_address(port)}"' for port in range(2))
    sharded = (
        f'[sharded]\nstyle = "hsdp"\nfactory = "{SCRIPTS / "hybrid.py"}:rails_bf16"\n'
        f"mesh = [2, 2]\naddresses = [{addresses}]\nseed = 3\n"
        '[services]\nuser = "root"\n'
    )
    with chain(hosts, run, sharded, f'checkpoint = "{run.root}.kept"\n'):
        yield [run, run.job_run_dir(2)]


def steps_of(runs: list[RunDir]) -> list[dict[int, Digests]]:
    """[shard] {step: digests} of its replica."""
    return [{step: one for step, one in followed(run).items() if step} for run in runs]


def whole_of(folder: Path, scratch: Path) -> dict[str, Any]:
    """A DCP folder as torch reads it."""
    dcp_to_torch_save(folder, scratch)
    read: dict[str, Any] = torch.load(scratch, weights_only=False)
    return read


def equal(one: Any, two: Any) -> bool:
    """In every bit, of all that both have to have."""
    if isinstance(one, dict):
        return set(one) == set(two) and all(equal(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(equal, one, two))
    if isinstance(one, torch.Tensor):
        return one.dtype == two.dtype and torch.equal(one, two)
    return bool(one == two)


def test_all_shards_are_one_checkpoint_equal_to_the_trainers(
    hosts: cluster.Cluster, tmp_path: Path
) -> None:
    run, own = RunDir(tmp_path / "run"), tmp_path / "own"
    with followed_by(hosts, run) as runs:
        launch(
            hosts, "hybrid.py", str(own), "rails", "bf16", "slow",
            f"save={SAVED}", f"steps={STEPS}",
        )  # fmt: skip
        for one in runs:
            reached(one, STEPS)
        folder, restored = tmp_path / f"own.dcp-{SAVED}", tmp_path / "restored"
        code, said = told("audit", folder, "--run", run.root)
        assert code == 0, said
        code, said = told("restore", "--run", run.root, "--format", "torch", "--out", restored)
        assert code != 0 and "--format dcp" in said and not restored.exists()
        words = ["restore", "--run", run.root, "--step", SAVED, "--format", "dcp"]
        code, said = told(*words, "--out", restored)
        assert code == 0, said
        code, said = told("verify", restored)
        assert code == 0, said
    found = steps_of(runs)
    assert found == [trainer_digests(tmp_path / f"own.{shard}") for shard in range(2)]
    assert all(set(one) == set(range(1, STEPS + 1)) for one in found)
    theirs = whole_of(folder, tmp_path / "theirs.pt")
    ours = whole_of(restored, tmp_path / "ours.pt")
    assert equal(ours["model"], theirs["model"])
    assert equal(ours["optimizer"]["state"], theirs["optimizer"]["state"])
    assert ours["step"] == theirs["step"] == SAVED


def test_killed_and_resumed_from_all_shards_it_is_the_job_that_was_not(
    hosts: cluster.Cluster, tmp_path: Path
) -> None:
    run, restored = RunDir(tmp_path / "run"), tmp_path / "restored"
    with followed_by(hosts, run) as runs:
        killed(hosts, tmp_path / "killed", runs)
        code, said = told("restore", "--run", run.root, "--format", "dcp", "--out", restored)
        assert code == 0, said
    kept = tmp_path / "kept"
    code, said = told("restore", "--run", run.root, "--format", "dcp", "--out", kept)
    assert code == 0, said  # of what each shard saved when the chain ended
    assert equal(whole_of(kept, tmp_path / "kept.pt"), whole_of(restored, tmp_path / "live.pt"))
    killed_at = whole_of(restored, tmp_path / "restored.pt")["step"]
    end = killed_at + MORE
    words = "hybrid.py", str(tmp_path / "resumed"), "rails", "bf16"
    launch(hosts, *words, f"load={kept}", f"steps={end}")
    launch(hosts, "hybrid.py", str(tmp_path / "control"), "rails", "bf16", f"steps={end}")
    wanted = [trainer_digests(tmp_path / f"control.{shard}") for shard in range(2)]
    resumed = [trainer_digests(tmp_path / f"resumed.{shard}") for shard in range(2)]
    assert killed_at >= KEPT and set(wanted[0]) == set(range(1, end + 1))
    later = range(killed_at + 1, end + 1)
    assert resumed == [{step: one[step] for step in later} for one in wanted]


def killed(hosts: cluster.Cluster, digests: Path, runs: list[RunDir]) -> None:
    """All trainers are killed once each shard has some steps, and what they sent is applied."""
    environment = {
        "MASTER_ADDR": hosts.address(0),
        "MASTER_PORT": "29577",
        "FLOWCHECK_LAB_INTERFACE": ",".join(hosts.interfaces),
        "steps": "99",
    }
    words = [sys.executable, str(SCRIPTS / "hybrid.py"), str(digests), "rails", "bf16", "slow"]
    ranks = Ranks(hosts, words, environment, digests.parent)

    def at() -> list[int]:
        return [int((last_step(run) or {}).get("step", 0)) for run in runs]

    try:
        wait_until(lambda: min(at()) >= KEPT, 120, "steps")
    finally:
        ranks.kill()
    sent: list[int] = []
    while (newest := at()) != sent:
        sent = newest
        time.sleep(2)
