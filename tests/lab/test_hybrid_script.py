"""Hybrid sharding over a mesh (replicas, 1): parameters and optimizer state, bit for bit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import preloaded
from support.chain import wait_until
from support.live import greetings
from support.standing import standing
from support.started import SCRIPTS, Ranks, launch
from test_unseen_scripts import ADAMW, MOMENTUM, run

from flowcheck.lab import cluster
from flowcheck.lab.job_run.digest_comparison import trainer_digests
from flowcheck.ops.lifecycle.run_outcome import last_step
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.run_directory.run_dir import RunDir

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="no ip command"),
]
STEPS = 6


@pytest.fixture
def hosts(request: pytest.FixtureRequest) -> Iterator[cluster.Cluster]:
    with standing(
        cluster.Cluster(name=f"y{os.getpid()}", network=206, hosts=getattr(request, "param", 2))
    ) as made:
        yield made


def sharded(factory: str, ranks: int, *, seed: int | None = 3) -> str:
    told = f'[sharded]\nstyle = "hsdp"\nfactory = "{SCRIPTS / "hybrid.py"}:{factory}"\n'
    started = "" if seed is None else f"seed = {seed}\n"
    return f"{told}mesh = [{ranks}, 1]\n{started}"


@pytest.mark.parametrize(
    ("hosts", "factory", "words", "optimizer"),
    [
        (2, "make", ("NCCL_PROTO=LL",), ADAMW),
        pytest.param(3, "bf16", ("bf16", "NCCL_PROTO=Simple"), ADAMW, marks=pytest.mark.nightly),
        pytest.param(2, "half", ("half", "NCCL_PROTO=LL"), ADAMW, marks=pytest.mark.nightly),
        pytest.param(3, "blocks", ("blocks", "sgd"), MOMENTUM, marks=pytest.mark.nightly),
        pytest.param(
            2, "make", ("clip", "accumulate"), ADAMW + "clip_norm = 0.05\n",
            marks=pytest.mark.nightly,
        ),
        pytest.param(3, "summed", ("sum", "NCCL_PROTO=LL128"), ADAMW, marks=pytest.mark.nightly),
    ],
    indirect=["hosts"],
)  # fmt: skip
def test_every_step_is_the_trainers_with_its_state(
    hosts: cluster.Cluster, tmp_path: Path, factory: str, words: tuple[str, ...], optimizer: str
) -> None:
    more = sharded(factory, hosts.hosts)
    found = run(hosts, tmp_path, optimizer, "hybrid.py", *words, more=more)
    assert set(found.replica) == set(range(1, STEPS + 1)) and not found.why


AS_ROOT = '[services]\nuser = "root"\n'
"""Whoever restored may give the folder as a base."""
KEPT, MORE = 4, 3
"""Steps before the kill, at least, and behind it."""


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_killed_and_resumed_from_the_restored_checkpoint_it_is_the_job_that_was_not(
    hosts: cluster.Cluster, tmp_path: Path
) -> None:
    """The resumed job sends no weights: its replica waits until the file that it resumed from is
    given, and then has every step that was logged."""
    run, job, restored = RunDir(tmp_path / "run"), tmp_path / "job.toml", tmp_path / "restored"
    head = f'run = "{run.root}"\ndigests = true\n[[source]]\ninterface = "{cluster.UPLINK}"\n'
    job.write_text(f"{head}[optimizer]\n{ADAMW}\n{sharded('bf16', hosts.hosts)}{AS_ROOT}")
    words = [sys.executable, "-m", "flowcheck", "up", str(job)]
    chain = cluster.run_in(hosts.checkpoint_namespace, words, env=os.environ)
    try:
        wait_until(lambda: greetings(run, "capture-0") == 1, 60, "capture on the interface")
        killed_at = _killed(hosts, tmp_path / "killed", run)
        _flowcheck("restore", "--run", run.root, "--format", "dcp", "--out", restored)
        launch(
            hosts, "hybrid.py", str(tmp_path / "resumed"), "bf16", f"load={restored}",
            f"steps={killed_at + MORE}",
        )  # fmt: skip
        wait_until(lambda: incarnation_of(run).number == 2, 90, "the resumed job")
        assert incarnation_of(run).step is None  # it may have begun with anything
        _flowcheck("base", restored, "--run", run.root)
        wait_until(
            lambda: (last_step(run) or {}).get("step") == killed_at + MORE, 60, "the last step"
        )
    finally:
        chain.send_signal(signal.SIGINT)
        chain.wait(60)
    launch(hosts, "hybrid.py", str(tmp_path / "control"), "bf16", f"steps={killed_at + MORE}")
    wanted = trainer_digests(tmp_path / "control")
    resumed = trainer_digests(tmp_path / "resumed")
    later = range(killed_at + 1, killed_at + MORE + 1)
    assert resumed == {step: wanted[step] for step in later}
    lines = [json.loads(line) for line in run.steps.read_text().splitlines()]
    found = {
        line["step"]: {"parameters": line["parameters_sha256"], **line["states_sha256"]}
        for line in lines
        if line["step"]
    }
    assert {step: found[step] for step in wanted} == wanted


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_without_a_seed_the_trainers_own_folder_is_the_base(
    hosts: cluster.Cluster, tmp_path: Path
) -> None:
    """It resumed from a folder that torch.distributed.checkpoint wrote; no frame shows that."""
    before = tmp_path / "before"
    launch(hosts, "hybrid.py", str(before), "bf16", "save=2", "steps=2")
    run, job = RunDir(tmp_path / "run"), tmp_path / "job.toml"
    head = f'run = "{run.root}"\ndigests = true\n[[source]]\ninterface = "{cluster.UPLINK}"\n'
    told = sharded("bf16", hosts.hosts, seed=None)
    job.write_text(f"{head}[optimizer]\n{ADAMW}\n{told}{AS_ROOT}")
    words = [sys.executable, "-m", "flowcheck", "up", str(job)]
    chain = cluster.run_in(hosts.checkpoint_namespace, words, env=os.environ)
    folder = f"{before}.dcp-2"
    try:
        wait_until(lambda: greetings(run, "capture-0") == 1, 60, "capture on the interface")
        launch(hosts, "hybrid.py", str(tmp_path / "own"), "bf16", f"load={folder}", "steps=6")
        wait_until(run.replica.exists, 60, "a job that waits")
        assert not (last_step(run) or {}).get("step")
        _flowcheck("base", folder, "--run", run.root)
        wait_until(lambda: (last_step(run) or {}).get("step") == STEPS, 60, "the last step")
    finally:
        chain.send_signal(signal.SIGINT)
        chain.wait(60)
    wanted = trainer_digests(tmp_path / "own")
    lines = [json.loads(line) for line in run.steps.read_text().splitlines()]
    found = {
        line["step"]: {"parameters": line["parameters_sha256"], **line["states_sha256"]}
        for line in lines
        if line["step"] > 2
    }
    assert set(wanted) == {3, 4, 5, STEPS} and found == wanted


def _killed(hosts: cluster.Cluster, digests: Path, run: RunDir) -> int:
    """The step of the replica where trainers were killed that had taken some more steps."""
    environment = {
        "MASTER_ADDR": hosts.address(0),
        "MASTER_PORT": "29577",
        "FLOWCHECK_LAB_INTERFACE": cluster.UPLINK,
        "steps": "99",
    }
    words = [sys.executable, str(SCRIPTS / "hybrid.py"), str(digests), "bf16", "slow"]
    ranks = Ranks(hosts, words, environment, digests.parent)
    try:
        wait_until(lambda: (last_step(run) or {}).get("step", 0) >= KEPT, 90, "steps")
    finally:
        ranks.kill()
    sent = 0
    while (newest := (last_step(run) or {})["step"]) != sent:
        sent = newest
        time.sleep(2)
    return int(newest)


def _flowcheck(*words: object) -> None:
    done = preloaded.run(list(map(str, words)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
