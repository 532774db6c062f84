"""Hybrid sharding over a mesh (2, 2), live: what a replica of the one shard of a mirrored port
promises. The judges are the trainers' own digests, and their DCP folders as torch reads them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support import preloaded
from support.chain import wait_until
from support.live import greetings
from support.refused_as import refused_as
from support.standing import standing
from support.started import SCRIPTS, launch
from test_unseen_scripts import ADAMW, replay
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from flowcheck.findings.catalog.hybrid_jobs import PADDING_NOT_ZERO, SHARD_NOT_WHOLE
from flowcheck.lab import cluster
from flowcheck.lab.job_run.digest_comparison import Digests, trainer_digests
from flowcheck.lab.recording.packet_tap import PacketTap
from flowcheck.ops.lifecycle.run_outcome import last_step
from flowcheck.ops.restore import restore_command
from flowcheck.ops.restore.restore_request import RestoreRequest, StepSource
from flowcheck.stages.run_directory.run_dir import RunDir

pytestmark = [
    pytest.mark.lab,
    pytest.mark.nightly,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="no ip command"),
    pytest.mark.timeout(500),
]
STEPS, SAVED = 7, 6
PORT = 1
"""Of the first host's second GPU: it carries shard 1, which has rows of padding."""


@contextmanager
def two_rails(port: int) -> Iterator[cluster.Cluster]:
    """Two hosts of two GPUs with a NIC each, of which one port is mirrored."""
    mirrors = cluster.parse_mirrors([f"p{port}:both"])
    made = cluster.Cluster(
        name=f"z{os.getpid()}", network=207, hosts=2, gpus=2, nics=2, mirrors=mirrors
    )
    with standing(made) as hosts:
        yield hosts


def sharded(shard: int) -> str:
    factory = f"{SCRIPTS / 'hybrid.py'}:rails_bf16"
    return (
        f'[sharded]\nstyle = "hsdp"\nfactory = "{factory}"\nmesh = [2, 2]\nshard = {shard}\n'
        f'seed = 3\n[services]\nuser = "root"\n'
    )


@contextmanager
def chain(hosts: cluster.Cluster, run: RunDir, more: str, top: str = "") -> Iterator[None]:
    job = run.root.with_suffix(".toml")
    head = f'run = "{run.root}"\ndigests = true\n[[source]]\ninterface = "{cluster.UPLINK}"\n'
    job.write_text(f"{top}{head}[optimizer]\n{ADAMW}\n{more}")
    words = [sys.executable, "-m", "flowcheck", "up", str(job)]
    process = cluster.run_in(hosts.checkpoint_namespace, words, env=os.environ)
    try:
        wait_until(lambda: greetings(run, "capture-0") == 1, 120, "capture on the interface")
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def reached(run: RunDir, step: int) -> None:
    wait_until(lambda: (last_step(run) or {}).get("step") == step, 60, f"step {step}")


def followed(run: RunDir) -> dict[int, Digests]:
    lines = [json.loads(line) for line in run.steps.read_text().splitlines()]
    return {
        line["step"]: {"parameters": line["parameters_sha256"], **line["states_sha256"]}
        for line in lines
    }


def told(*words: object) -> tuple[int, str]:
    """(exit code, what it printed) of the command."""
    done = preloaded.run(list(map(str, words)), capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def shard_of(whole: torch.Tensor, shard: int) -> torch.Tensor:
    """Of two, as torch deals a tensor's rows out."""
    parts: Sequence[torch.Tensor] = whole.chunk(2)
    return parts[shard] if shard < len(parts) else whole[:0]


def test_one_shard_is_followed_audited_and_restored_while_the_job_runs(tmp_path: Path) -> None:
    """The trainer's folder is written by all ranks, on both shards, past the mirrored port."""
    run, own = RunDir(tmp_path / "run"), tmp_path / "own"
    with two_rails(PORT) as hosts, chain(hosts, run, sharded(PORT)):
        launch(
            hosts, "hybrid.py", str(own), "rails", "bf16", "slow",
            f"save={SAVED}", f"steps={STEPS}",
        )  # fmt: skip
        reached(run, STEPS)
        folder = tmp_path / f"own.dcp-{SAVED}"
        code, said = told("audit", folder, "--run", run.root)
        assert code == 0, said
        restored = tmp_path / "restored"
        code, said = told(
            *("restore", "--run", run.root, "--step", SAVED),
            *("--format", "safetensors", "--out", restored),
        )
        assert code == 0, said
        request = RestoreRequest(
            source=StepSource(run=run.root), output=tmp_path / "whole", form="dcp"
        )
        with refused_as(SHARD_NOT_WHOLE, form="dcp", shard=PORT, shards=2):
            restore_command.restore(request)
        assert not (tmp_path / "whole").exists()
    found = {step: one for step, one in followed(run).items() if step}
    assert found == trainer_digests(tmp_path / f"own.{PORT}") and set(found) == {
        *range(1, STEPS + 1)
    }
    dcp_to_torch_save(folder, tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt", weights_only=False)["model"]
    (file,) = restored.glob("*.safetensors") if restored.is_dir() else (restored,)
    shards = load_file(file)
    assert set(whole) <= set(shards)
    assert all(torch.equal(shards[name], shard_of(whole[name], PORT)) for name in whole)


def test_a_port_of_another_shard_than_the_stated_one_shows_where_rows_are_padding(
    tmp_path: Path,
) -> None:
    """Shard 1 is stated, whose last rows pad it; the port has shard 0's gradients there."""
    capture = tmp_path / "job.pcapng"
    with (
        two_rails(0) as hosts,
        PacketTap(hosts.checkpoint_namespace, cluster.UPLINK, capture, comment="hybrid.py"),
    ):
        launch(hosts, "hybrid.py", str(tmp_path / "own"), "rails", "bf16", "steps=3")
    right = replay(capture, ADAMW, sharded(0))
    assert [line["step"] for line in right["digests"]] == [1, 2, 3] and not right["lost"]
    wrong = replay(capture, ADAMW, sharded(1))
    assert not wrong["digests"]
    assert PADDING_NOT_ZERO.code in json.dumps(wrong)
