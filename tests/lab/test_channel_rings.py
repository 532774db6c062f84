"""Rings of one job that is parallel in other ways too, on one mirrored node: a replica for each.

The judge are the trainers' own digests of each ring's parameters and optimizer state, and their own
checkpoints.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support import preloaded
from support.chain import wait_until
from support.cut import recorded_behind
from support.standing import standing
from support.started import SCRIPTS, launch
from test_unseen_scripts import ADAMW

from flowcheck.lab import cluster
from flowcheck.lab.job_run.digest_comparison import Digests, trainer_digests
from flowcheck.lab.job_run.flowcheck_services import FlowCheckServices
from flowcheck.lab.recording.packet_tap import PacketTap
from flowcheck.stages.run_directory.run_dir import RunDir

pytestmark = [
    pytest.mark.lab,
    pytest.mark.nightly,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="no ip command"),
]
STEPS = 5


def node(hosts: int, gpus: int) -> cluster.Cluster:
    """Every GPU has a port of its own; those of the first node are mirrored."""
    mirrors = [cluster.Mirror(port, way) for port in range(gpus) for way in ("rx", "tx")]
    return cluster.Cluster(name=f"g{os.getpid()}", network=205, hosts=hosts, mirrors=tuple(mirrors))


@pytest.fixture(scope="module")
def four() -> Iterator[cluster.Cluster]:
    with standing(node(4, 2)) as made:
        yield made


def digests(line: dict[str, Any]) -> dict[str, str]:
    return {"parameters": line["parameters_sha256"], **line.get("states_sha256", {})}


def of_trainers(folder: Path, rings: int) -> list[dict[int, Digests]]:
    return [trainer_digests(folder / f"digests.{ring}") for ring in range(rings)]


def each_is_one_of(replicas: list[dict[int, Digests]], trainers: list[dict[int, Digests]]) -> None:
    """Every replica took every step of one ring, and no two are of the same one."""
    assert all(len(steps) == STEPS for steps in trainers)
    assert sorted(trainers.index(replica) for replica in replicas) == list(range(len(trainers)))


def replayed(capture: Path, jobs: int, *words: str, model: str = "") -> list[dict[int, Digests]]:
    job = capture.with_suffix(".toml")
    job.write_text(f"[optimizer]\n{ADAMW}\n{model}")
    command = ["replay", str(capture), "--job", str(job)]
    command += ["--jobs", str(jobs), "--digests", "--json", "--source", "file", *words]
    done = preloaded.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    every = (told, *told["beside"])
    return [{line["step"]: digests(line) for line in one["digests"]} for one in every]


@pytest.mark.parametrize(
    ("words", "protocol"),
    [
        ("dp2,tp2", "LL"),
        ("dp2,tp2 alike", "Simple"),
        ("dp2,tp2 alike seed", "LL128"),
        ("dp2,pp2", "LL128"),
        ("dp2,pp2 alike", "LL"),
    ],
)
def test_each_ring_of_a_job_is_followed(
    four: cluster.Cluster, tmp_path: Path, words: str, protocol: str
) -> None:
    capture = tmp_path / "job.pcapng"
    with PacketTap(four.checkpoint_namespace, cluster.UPLINK, capture, comment=words):
        said = words.split()
        launch(four, "rings.py", str(tmp_path / "digests"), *said, f"NCCL_PROTO={protocol}")
    replicas = replayed(capture, 2, "--out", str(tmp_path / "out"))
    each_is_one_of(replicas, of_trainers(tmp_path, 2))
    index = json.loads((tmp_path / "out/jobs.json").read_text())
    assert index["step"] == STEPS and len(index["jobs"]) == 2
    assert not set(index["jobs"][0]["queue_pairs"]) & set(index["jobs"][1]["queue_pairs"])


@pytest.mark.parametrize("words", ["dp2,tp2 alike norm", "dp2,pp2 norm"])
def test_rings_clipped_by_the_norm_of_both_are_followed(
    four: cluster.Cluster, tmp_path: Path, words: str
) -> None:
    capture = tmp_path / "job.pcapng"
    with PacketTap(four.checkpoint_namespace, cluster.UPLINK, capture, comment=words):
        launch(four, "rings.py", str(tmp_path / "digests"), *words.split(), "NCCL_PROTO=LL")
    clip = "clip_norm = 0.5\nclip_together = true\n"
    each_is_one_of(replayed(capture, 2, model=clip), of_trainers(tmp_path, 2))
    alone = replayed(capture, 2, model="clip_norm = 0.5\nclip_alone = true\n")
    assert not any(one in of_trainers(tmp_path, 2) for one in alone), "the norm of both matters"


@pytest.mark.parametrize("protocol", ["LL", "Simple"])
def test_rings_summed_as_megatron_sums_them_are_followed(
    four: cluster.Cluster, tmp_path: Path, protocol: str
) -> None:
    capture = tmp_path / "job.pcapng"
    words = ("dp2,tp2", "alike", "own", f"NCCL_PROTO={protocol}")
    with PacketTap(four.checkpoint_namespace, cluster.UPLINK, capture, comment="own"):
        launch(four, "rings.py", str(tmp_path / "digests"), *words)
    factory = Path(__file__).parent / "scripts/rings_part.py"
    model = f'[model]\nfactory = "{factory}:make"\norder = "reversed"\n'
    each_is_one_of(replayed(capture, 2, model=model), of_trainers(tmp_path, 2))


def test_tensor_pipeline_and_data_parallel_rings_are_followed(tmp_path: Path) -> None:
    made = node(8, 4)
    capture = tmp_path / "job.pcapng"
    with (
        standing(made),
        PacketTap(made.checkpoint_namespace, cluster.UPLINK, capture, comment="rings"),
    ):
        launch(made, "rings.py", str(tmp_path / "digests"), "dp2,pp2,tp2", "NCCL_PROTO=LL")
    each_is_one_of(replayed(capture, 4), of_trainers(tmp_path, 4))


def test_four_rings_are_clipped_by_one_norm_in_the_order_that_is_stated(tmp_path: Path) -> None:
    """Which order it is here, the ring of the lab's own backend decides: one of those tried is."""
    made = node(8, 4)
    capture = tmp_path / "job.pcapng"
    with (
        standing(made),
        PacketTap(made.checkpoint_namespace, cluster.UPLINK, capture, comment="rings"),
    ):
        words = ("dp2,pp2,tp2", "norm", "NCCL_PROTO=LL")
        launch(made, "rings.py", str(tmp_path / "digests"), *words)
    trainers = of_trainers(tmp_path, 4)
    clip = "clip_norm = 0.5\nclip_together = true\n"
    for first in (3, 1, 2, 4):
        order = [(first - 1 + n) % 4 + 1 for n in range(4)]
        replicas = replayed(capture, 4, model=f"{clip}clip_order = {order}\n")
        if all(replica in trainers for replica in replicas):
            break
    each_is_one_of(replicas, trainers)


def test_a_live_chain_follows_each_ring_and_gives_them_back(
    four: cluster.Cluster, tmp_path: Path
) -> None:
    job = tmp_path / "job.toml"
    job.write_text(
        f'jobs = 2\ncheckpoint = "{tmp_path}/kept"\ndigests = true\n'
        '[[source]]\ninterface = "eth0"\n[ring]\nslots = 8192\n'
        f"[staging]\nsize_bytes = 67108864\n[optimizer]\n{ADAMW}\n"
    )
    enter = ("ip", "netns", "exec", four.checkpoint_namespace)
    services = FlowCheckServices(job, tmp_path / "run", tmp_path / "log", enter=enter)
    runs = [RunDir(tmp_path / "run"), RunDir(tmp_path / "run/jobs/2")]
    try:
        services.wait_listening()
        launch(
            four, "rings.py", str(tmp_path / "digests"), "dp2,tp2", "alike", "save",
            "NCCL_PROTO=LL",
        )  # fmt: skip
        wait_until(lambda: min(map(steps_taken, runs)) == STEPS, 60, "the last step of each")
        status = said("status", "--run", tmp_path / "run", "--json")
        assert [one["step"] for one in status["jobs"]] == [STEPS] * 2
        templates = [tmp_path / f"digests.{ring}.step-2.pt" for ring in (1, 0)]
        words = [word for template in templates for word in ("--template", template)]
        told = said(
            "restore", "--run", tmp_path / "run", *words, "--out", tmp_path / "back", "--json"
        )
    finally:
        services.stop()
    each_is_one_of([taken(run) for run in runs], of_trainers(tmp_path, 2))
    for one in told["jobs"]:
        own = torch.load(Path(one["template"].replace("step-2", f"step-{STEPS}")))
        equal(torch.load(one["out"]), own)
    index = json.loads((tmp_path / "kept/jobs.json").read_text())
    assert index["step"] == STEPS


def test_rings_are_joined_amid_their_run_and_each_finds_its_base(
    four: cluster.Cluster, tmp_path: Path
) -> None:
    capture = tmp_path / "job.pcapng"
    with PacketTap(four.checkpoint_namespace, cluster.UPLINK, capture, comment="joined"):
        words = ("dp2,tp2", "alike", "save", "NCCL_PROTO=LL")
        launch(four, "rings.py", str(tmp_path / "digests"), *words)
    late = recorded_behind(capture, 0.45, tmp_path / "late.pcapng")
    part = SCRIPTS / "rings_part.py"
    job = tmp_path / "job.toml"
    job.write_text(
        f'jobs = 2\ndigests = true\n[[source]]\nfile = "{late}"\n[ring]\nslots = 8192\n'
        f"[staging]\nsize_bytes = 67108864\n[optimizer]\n{ADAMW}\n[replica]\njoins = true\n"
        f'[model]\nfactory = "{part}:make_wrapped"\nloss = "{part}:loss"\nbucket_cap_mb = 0.01\n'
    )
    services = FlowCheckServices(job, tmp_path / "run", tmp_path / "log", enter=())
    runs = [RunDir(tmp_path / "run"), RunDir(tmp_path / "run/jobs/2")]
    try:
        wait_until(lambda: services.output().count("was joined midstream") == 2, 60, "both joined")
        for ring in (1, 0):
            base, then = (tmp_path / f"digests.{ring}.step-{step}.pt" for step in (2, STEPS))
            said("base", base, "--then", then, "--run", tmp_path / "run", "--json")
        wait_until(lambda: min(map(steps_taken, runs)) == STEPS - 1, 60, "the last step of each")
    finally:
        services.stop()
    trainers = of_trainers(tmp_path, 2)
    found = [
        trainers.index(of)
        for run in runs
        for of in trainers
        if taken(run) == {step: of[step] for step in range(2, STEPS + 1)}
    ]
    assert sorted(found) == [0, 1]


def steps_taken(run: RunDir) -> int:
    return len(run.steps.read_bytes().splitlines()) if run.steps.exists() else 0


def taken(run: RunDir) -> dict[int, Digests]:
    lines = [json.loads(line) for line in run.steps.read_bytes().splitlines()]
    return {line["step"]: digests(line) for line in lines}


def said(*words: str | Path) -> dict[str, Any]:
    done = preloaded.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def equal(one: Any, two: Any) -> None:
    """Bit for bit."""
    assert type(one) is type(two)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, two)
    elif isinstance(one, dict):
        assert one.keys() == two.keys()
        for key in one:
            equal(one[key], two[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(two)
        for a, b in zip(one, two, strict=True):
            equal(a, b)
    else:
        assert one == two
