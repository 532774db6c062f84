"""DeepSpeed itself trains: its whole state is followed, by its own account of every step."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from math import prod
from pathlib import Path

import pytest
import torch
from support import preloaded
from support.standing import standing
from support.started import SCRIPTS, launch
from test_unseen_scripts import replay

import flowcheck
from flowcheck.findings.catalog.distributed_optimizers import GATHERED_DIFFERS, MASTERS_COMPARED
from flowcheck.lab import cluster
from flowcheck.lab.recording.packet_tap import PacketTap

pytestmark = [
    pytest.mark.lab,
    pytest.mark.nightly,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="no ip command"),
    pytest.mark.skipif(
        importlib.util.find_spec("deepspeed") is None,
        reason="no DeepSpeed: DS_BUILD_OPS=0 pip install 'flowcheck[deepspeed]'",
    ),
]
STEPS, GONE = 6, 3
MODEL = SCRIPTS / "deepspeed_model.py"
READY = f'loss = "{MODEL}:loss"\n'
ADAMW = 'name = "adamw"\nlearning_rate = 0.01\n'
GROUPS = """
[[optimizer.groups]]
parameters = ["ndim>1"]

[[optimizer.groups]]
parameters = "rest"
"""
KINDS = ("exp_avg", "exp_avg_sq")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DeepSpeed's own extension, built before any rank asks for it. Of a folder of others too,
    torch awaits a lock without a limit, also one whose owner was killed."""
    folder = tmp_path_factory.mktemp("extensions")
    code = "from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder as B; B().load()"
    environment = os.environ | {"DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(folder)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=500)
    return folder


@pytest.fixture
def hosts(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, built: Path
) -> Iterator[cluster.Cluster]:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(built))
    with standing(
        cluster.Cluster(name=f"d{os.getpid()}", network=209, hosts=getattr(request, "param", 2))
    ) as made:
        yield made


def tables(ranks: int, *, of: str = "bfloat16", sharded: str = "", model: str = READY) -> str:
    """of: of the model's file, what makes it with the optimizer's groups."""
    whole = "bfloat16" if of == "groups" else of
    head = f'[sharded]\nstyle = "zero"\nfactory = "{MODEL}:{of}"\nranks = {ranks}\n{sharded}'
    return f'{head}[model]\nfactory = "{MODEL}:{whole}"\n{model}'


def truth(digests: Path, step: int, ranks: int) -> dict[str, dict[str, torch.Tensor]]:
    """{kind: {parameter: value}}: the parameters, and what each rank told of its part of the
    float32 copies and states, joined."""
    told = [torch.load(f"{digests}.{step}.{rank}", weights_only=True) for rank in range(ranks)]
    found: dict[str, dict[str, torch.Tensor]] = {"parameters": told[0]["model"]}
    for number, names in enumerate(told[0]["groups"]):
        flats = {kind: [one["states"][number][kind] for one in told] for kind in KINDS}
        flats["masters"] = [one["masters"][number] for one in told]
        for kind, parts in flats.items():
            whole, at = torch.cat(parts), 0
            for name in names:
                like = told[0]["model"][name]
                own = whole[at : at + prod(like.shape)].reshape(like.shape)
                found.setdefault(kind, {})[name] = own
                at += prod(like.shape)
    return {kind: {n: own[n] for n in told[0]["model"]} for kind, own in found.items()}


def sha256(held: dict[str, torch.Tensor]) -> str:
    flat = (own.reshape(-1).view(torch.uint8).numpy().tobytes() for own in held.values())
    return hashlib.sha256(b"".join(flat)).hexdigest()


@pytest.mark.parametrize(
    ("hosts", "words", "more"),
    [
        (2, ("stage2", "bfloat16", "NCCL_PROTO=LL"), {}),
        (
            3,
            ("stage2", "bfloat16", "clip", "NCCL_PROTO=LL"),
            {"optimizer": ADAMW + "clip_norm = 0.02\n"},
        ),
        (2, ("stage1", "bfloat16", "micro", "NCCL_PROTO=LL"), {"model": ""}),
        (
            3,
            ("stage1", "bfloat16", "buckets", "foreach", "NCCL_PROTO=Simple"),
            {"sharded": "bucket_elements = 12000\n", "model": ""},
        ),
        (
            2,
            ("stage2", "bfloat16", "groups", "buckets", "NCCL_PROTO=LL128"),
            {"of": "groups", "sharded": "bucket_elements = 12000\n"},
        ),
    ],
    indirect=["hosts"],
)
def test_every_step_has_the_trainers_own_state(
    hosts: cluster.Cluster, tmp_path: Path, words: tuple[str, ...], more: dict[str, str]
) -> None:
    more = dict(more)
    capture, digests, out = tmp_path / "job.pcapng", tmp_path / "digests", tmp_path / "out"
    with PacketTap(hosts.checkpoint_namespace, cluster.UPLINK, capture, comment="deepspeed"):
        launch(hosts, "deepspeed_job.py", str(digests), *words)
    optimizer = more.pop("optimizer", ADAMW)
    stated = tables(hosts.hosts, **more)
    told = replay(capture, optimizer, stated, "--out", str(out))
    assert not told["why"] and not told["lost"]
    found = {line["step"]: line for line in told["digests"]}
    assert list(found) == list(range(1, STEPS + 1))
    for step, line in found.items():
        right = truth(digests, step, hosts.hosts)
        assert line["parameters_sha256"] == sha256(right["parameters"])
        assert all(line["states_sha256"][kind] == sha256(right[kind]) for kind in KINDS)
    held = flowcheck.load(out)
    right = truth(digests, STEPS, hosts.hosts)
    assert held["masters"].keys() == right["masters"].keys()
    assert all(torch.equal(held["masters"][name], own) for name, own in right["masters"].items())
    compared = MASTERS_COMPARED(steps=STEPS, step=STEPS)
    assert str(compared) in [one["sentence"] for one in told["assumed"]]
    wrong = replay(capture, optimizer.replace("0.01", "0.02"), stated)
    assert "NOT proved exact" in wrong["why"]["sentence"]
    assert any(GATHERED_DIFFERS.code in str(note) for note in wrong["notes"])


def test_killed_trainers_go_on_from_what_is_restored(
    hosts: cluster.Cluster, tmp_path: Path
) -> None:
    words = ("stage2", "bfloat16", "groups", "clip", "NCCL_PROTO=LL")
    capture, template, out = tmp_path / "job.pcapng", tmp_path / "template", tmp_path / "out"
    control, again, restored = (tmp_path / name for name in ("control", "again", "restored"))
    launch(hosts, "deepspeed_job.py", str(control), *words)
    with PacketTap(hosts.checkpoint_namespace, cluster.UPLINK, capture, comment="deepspeed"):
        more = f"until:{GONE}", f"save:{template}"
        launch(hosts, "deepspeed_job.py", str(tmp_path / "gone"), *words, *more)
    optimizer = ADAMW + "clip_norm = 0.02\n" + GROUPS
    told = replay(capture, optimizer, tables(2, of="groups"), "--out", str(out))
    assert not told["why"] and told["steps"] == GONE
    command = ["restore", "--checkpoint", str(out), "--format", "deepspeed"]
    preloaded.run([*command, "--like", str(template), "--out", str(restored)], check=True)
    launch(hosts, "deepspeed_job.py", str(again), *words, f"load:{restored}")
    for step in range(GONE + 1, STEPS + 1):
        one, other = truth(control, step, 2), truth(again, step, 2)
        for kind, own in one.items():
            assert all(torch.equal(other[kind][name], value) for name, value in own.items())
