"""A real DistributedDataParallel trainer with frozen parameters, a tied head and buffers: followed,
given back without a template, and gone on from as from the trainer's own file."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support import preloaded
from support.standing import standing
from support.started import SCRIPTS, launch
from test_unseen_scripts import LIMIT_S

from flowcheck.lab import cluster
from flowcheck.lab.job_run.digest_comparison import trainer_digests
from flowcheck.lab.recording.packet_tap import PacketTap

pytestmark = [
    pytest.mark.lab,
    pytest.mark.nightly,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="no ip command"),
]
ADAMW = 'name = "adamw"\nlearning_rate = 0.01\ntakes_frozen = true\n'
KILLED, END = 7, 11


@pytest.fixture(scope="module")
def hosts() -> Iterator[cluster.Cluster]:
    with standing(cluster.Cluster(name=f"f{os.getpid()}", network=206)) as made:
        yield made


def flowcheck(*words: object) -> str:
    done = preloaded.run(
        [*map(str, words)], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def job_file(folder: Path, norm: bool) -> Path:
    job = folder / "job.toml"
    arguments = "factory_arguments = { norm = true }\n" if norm else ""
    job.write_text(
        f'[optimizer]\n{ADAMW}\n[model]\nfactory = "{SCRIPTS}/frozen.py:make"\n{arguments}'
    )
    return job


def weights_of(file: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(file, weights_only=True)["model"]
    return found


@pytest.mark.parametrize(("norm", "protocol"), [(False, "LL"), (True, "Simple"), (True, "LL128")])
def test_trainer_goes_on_from_what_is_given_back_as_from_its_own_file(
    hosts: cluster.Cluster, tmp_path: Path, norm: bool, protocol: str
) -> None:
    capture, digests = tmp_path / "job.pcapng", tmp_path / "digests.jsonl"
    words = ["norm"] if norm else []
    with PacketTap(hosts.checkpoint_namespace, cluster.UPLINK, capture, comment="frozen"):
        of_net = (f"NCCL_PROTO={protocol}",)
        launch(
            hosts, "frozen.py", str(digests), str(tmp_path), "1", f"{KILLED}", "-", *words, *of_net
        )
    job, kept = job_file(tmp_path, norm), tmp_path / "kept"
    more = ("--job", job, "--digests", "--json", "--source", "file", "--out", kept)
    told = json.loads(flowcheck("replay", capture, *more))
    followed = {line["step"]: line["parameters_sha256"] for line in told["digests"]}
    assert followed == {n: one["parameters"] for n, one in trainer_digests(digests).items()}
    assert len(followed) == KILLED
    back = tmp_path / "back.pt"
    flowcheck("restore", "--checkpoint", kept, "--format", "torch", "--out", back)
    own = tmp_path / f"step-{KILLED}.pt"
    mine, theirs = weights_of(back), weights_of(own)
    assert list(mine) == list(theirs)
    assert [n for n, v in theirs.items() if not torch.equal(mine[n], v)] == []
    ends = []
    for name, file in (("own", own), ("back", back)):
        out = tmp_path / name
        out.mkdir()
        steps = (f"{KILLED + 1}", f"{END}", str(file), *words)
        launch(hosts, "frozen.py", str(out / "digests"), str(out), *steps, *of_net)
        ends.append(trainer_digests(out / "digests"))
    assert len(ends[0]) == END - KILLED and ends[0] == ends[1]
