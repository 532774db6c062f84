"""Copies dropped at the monitor port: which, how many, and that nothing else is.

Judges: the frames at both ends of the links; SplitMix64 written anew; the trainer's own saves, read
with torch.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from support import preloaded
from support.cabling import Tap, roce_frame
from support.switches import NEEDS_OVS, ONE_OVS_AT_A_TIME, SWITCHES

from flowcheck.lab import cluster as lab
from flowcheck.lab.job_run.run_plan import GPT
from flowcheck.lab.mirror_loss.monitor_port_loss import MonitorPortLoss

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="no ip command"),
    pytest.mark.timeout(300),
]
FRAMES, PAYLOAD = 400, 1024
SMALL = ("--layers", "2", "--width", "64", "--heads", "2", "--context", "32")
STEPS = 12
SENT_BY_FIRST = lab.parse_mirrors(["p0:rx"])
ORIGINAL_AT = 14 + 20 + 16
"""Bytes before the frame itself in ERSPAN: Ethernet, IPv4, GRE with a number, ERSPAN II."""


@contextmanager
def made(probability: float, seed: int, **words: object) -> Iterator[Any]:
    """(cluster, its loss), which has begun."""
    cluster = lab.Cluster(name=f"l{os.getpid()}", **words)  # type: ignore[arg-type]
    try:
        lab.up(cluster)
        with MonitorPortLoss(cluster, probability, seed) as loss:
            loss.begin()
            yield cluster, loss
    finally:
        lab.down(cluster.name)


def split_mix(state: int) -> int:
    """Output of Java's SplittableRandom for a state; not the code under test."""
    word = (1 << 64) - 1
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & word
    state = (state ^ state >> 27) * 0x94D049BB133111EB & word
    return state ^ state >> 31


def falls(number: int, probability: float, seed: int) -> bool:
    """Whether the copy of that number, from 1, is dropped."""
    state = split_mix(seed) + number * 0x9E3779B97F4A7C15 & (1 << 64) - 1
    return split_mix(state) < probability * 2**64


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize(("probability", "seed"), [(0.02, 1), (0.3, 99), (0.0, 1)])
def test_exactly_the_drawn_copies_are_missing(switch: str, probability: float, seed: int) -> None:
    with (
        made(probability, seed, switch=switch, mirrors=lab.parse_mirrors(["p0:rx"])) as (
            here,
            loss,
        ),
        Tap(here.host_namespace(0)) as sender,
        Tap(here.host_namespace(1)) as receiver,
        Tap(here.checkpoint_namespace) as monitor,
    ):
        frames = [roce_frame(here, 0, 1, number, PAYLOAD) for number in range(FRAMES)]
        lost = [n for n in range(FRAMES) if falls(n + 1, probability, seed)]
        for frame in frames:
            sender.send(frame)
        copies = monitor.received(FRAMES - len(lost))
        assert receiver.received(FRAMES) == frames
        count, dropped = loss.count(), loss.frames()
    assert copies == [frame for n, frame in enumerate(frames) if n not in lost]
    assert (count.copies, count.dropped, count.dropped_roce) == (FRAMES, len(lost), len(lost))
    assert count.dropped_payload_bytes == PAYLOAD * len(lost)
    assert [one.copy - 1 for one in dropped] == lost
    psns = [int.from_bytes(frames[n][14 + 20 + 8 + 9 :][:3], "big") for n in lost]
    assert [one.psn for one in dropped] == psns


def test_two_mirrors_lose_each_its_own() -> None:
    """A frame between two mirrored ports has two copies; mostly one of them is left."""
    words = lab.parse_mirrors(["p0:both", "p1:both"])
    with (
        made(0.1, 5, mirrors=words) as (here, loss),
        Tap(here.host_namespace(0)) as sender,
        Tap(here.host_namespace(1)) as receiver,
        Tap(here.checkpoint_namespace) as monitor,
    ):
        frames = [roce_frame(here, 0, 1, number, PAYLOAD) for number in range(FRAMES)]
        for frame in frames:
            sender.send(frame)
        left = sum(not falls(n + 1, 0.1, 5) for n in range(2 * FRAMES))
        seen = Counter(monitor.received(left))
        assert receiver.received(FRAMES) == frames
        count = loss.count()
    times = Counter(seen[frame] for frame in frames)
    assert (count.copies, count.copies - count.dropped) == (2 * FRAMES, left)
    assert times[1] + 2 * times[2] == left
    assert times[1] > 5 * times[0] > 0


@NEEDS_OVS
@ONE_OVS_AT_A_TIME
def test_copies_in_a_tunnel() -> None:
    with (
        made(0.2, 3, switch="ovs", erspan=True, mirrors=lab.parse_mirrors(["p0:rx"])) as (
            here,
            loss,
        ),
        Tap(here.host_namespace(0)) as sender,
        Tap(here.checkpoint_namespace) as monitor,
    ):
        frames = [roce_frame(here, 0, 1, number, PAYLOAD) for number in range(FRAMES)]
        for frame in frames:
            sender.send(frame)
        left = [frame for n, frame in enumerate(frames) if not falls(n + 1, 0.2, 3)]
        copies = monitor.received(len(left))
        count = loss.count()
    assert [copy[ORIGINAL_AT:] for copy in copies] == left
    assert count.dropped_payload_bytes == PAYLOAD * count.dropped > 0


def flowcheck(*words: str | Path) -> Any:
    done = preloaded.run(
        words,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def values(path: Path) -> dict[str, list[torch.Tensor]]:
    """Parameters and each optimizer state of a file of the lab's script, in registration order."""
    kept = torch.load(path, weights_only=True)
    states = [own for _, own in sorted(kept["optimizer"]["state"].items())]
    parameters = [own for name, own in kept["model"].items() if name != "head.weight"]
    kinds = ("exp_avg", "exp_avg_sq")
    return {"parameters": parameters} | {kind: [own[kind] for own in states] for kind in kinds}


@pytest.mark.nightly
def test_drill_with_a_loss(tmp_path: Path) -> None:
    """The job is the one without a loss; what is not called tainted is the trainer's, bit for bit;
    what is, is named."""
    name, out = f"l{os.getpid()}", tmp_path / "out"
    loss = ("--mirror-loss", "0.004", "--mirror-loss-from", "2", "--save-every", "1")
    options = ("--steps", str(STEPS), "--no-kill", "--no-control", "--protocol", "LL")
    try:
        found = flowcheck(
            *("lab", "train", "--json", "--name", name, "--out", out, *options, *loss),
            *("--", *SMALL),
        )
    finally:
        lab.down(name)
    count, followed = found["mirror_loss"], found["followed"]
    assert count["copies"] - count["dropped"] == sum(r["head"] for r in found["chain"]["rings"])
    assert count["dropped"] > 0
    # The last steps may lack bytes that no later traffic shows to be lost.
    last = followed["followed"]
    assert last >= STEPS // 2
    assert followed["not_followed"] == [*range(last + 1, STEPS + 1)]
    assert followed["partial"] and min(followed["partial"]) > 2
    assert set(followed["partial"]) <= set(followed["tainted"])
    comparison = found["comparison"]
    assert (comparison["different"], comparison["missing"]) == ([], followed["not_followed"])
    assert comparison["equal"] == last - len(followed["tainted"])

    checkpoint = out / f"services/checkpoints/step-{last}"
    saved, template = out / f"saves/step-{last}.pt", out / "trainers/job/step-0.pt"
    restored = tmp_path / "tainted.pt"
    flowcheck(
        *("restore", "--json", "--allow-tainted", "--checkpoint", checkpoint),
        *("--run", out / "services/run", "--template", template, "--out", restored),
    )
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    own, other = values(saved), values(restored)
    tainted = 0
    for number, parameter in enumerate(own["parameters"]):
        exact = torch.ones(parameter.numel(), dtype=torch.bool)
        for start, stop, since in manifest["tainted"].get(f"param.{number}", ()):
            exact[start:stop] = False
            assert 2 < since <= STEPS
        tainted += int((~exact).sum())
        for kind, tensors in own.items():
            mine, theirs = tensors[number].view(-1), other[kind][number].view(-1)
            assert torch.equal(mine[exact].view(torch.int32), theirs[exact].view(torch.int32))
    assert tainted == sum(followed["tainted_at_end"].values()) > 0
    assert found["chain"]["jobs"][0]["audit_passed"]
    # Over gloo, without the lab's switch: the same two ranks' job.
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(GPT)]
    folder = ("--out", str(tmp_path / "gloo"))
    trained = subprocess.run(
        [sys.executable, *command, "--backend", "gloo", *SMALL, "--steps", str(STEPS), *folder],
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        timeout=200,
        check=False,
    )
    assert trained.returncode == 0, trained.stderr
    unmirrored = values(tmp_path / f"gloo/step-{STEPS}.pt")
    for kind, tensors in values(out / f"saves/step-{STEPS}.pt").items():
        assert all(map(torch.equal, tensors, unmirrored[kind]))


@pytest.mark.nightly
def test_drill_with_a_hook(tmp_path: Path) -> None:
    """What the hook healed is the trainer's, bit for bit, by the trainer's own digests."""
    name, out, steps = f"l{os.getpid()}", tmp_path / "out", 100
    options = ("--steps", str(steps), "--no-kill", "--no-control", "--hook")
    try:
        found = flowcheck(
            *("lab", "train", "--json", "--name", name, "--out", out, *options),
            *("--mirror-loss", "0.001", "--", *SMALL),
        )
    finally:
        lab.down(name)
    healed, followed = found["healed"], found["followed"]
    assert healed["by_hook"] > 0 == healed["by_saves"]
    assert healed["asked_bytes"] > 12 * healed["by_hook"]  # the parameter, two states; evidence
    assert followed["partial"]
    comparison = found["comparison"]
    assert comparison["different"] == []
    assert comparison["equal"] == followed["exact"]
    # Exact behind a loss: without the hook no step would be.
    assert set(range(min(followed["partial"]), followed["followed"] + 1)) - {*followed["tainted"]}
    assert any("the hook healed" in fact for fact in found["facts"])
