"""Chosen ports, mirrored in the lab: what a capture of exactly these holds, by `analyze`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from lab.test_lab_train import train
from support.chain import analyzed, flowcheck

from flowcheck.ops.mirror_ports.mirror_plan import MirrorPlan, PortsRequest, make_mirror_plan

pytestmark = [
    pytest.mark.lab,
    pytest.mark.nightly,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="no ip command"),
    pytest.mark.timeout(600),
]
HOSTS = 4
LAYOUT = f"""
nodes = {HOSTS}
gpus = 1
channels = 1
cable = [{{ nic = 0, switch = "lab", ports = "p{{0-{HOSTS - 1}}}", gbps = 10 }}]
monitor = [{{ switch = "lab", port = "monitor", gbps = 20 }}]
"""


@pytest.fixture
def chosen(tmp_path: Path) -> MirrorPlan:
    file = tmp_path / "layout.toml"
    file.write_text(LAYOUT)
    return make_mirror_plan(PortsRequest(file=file))


def mirrors(chosen: MirrorPlan) -> list[str]:
    """As the lab's options have them."""
    return [f"{pair.port}:{pair.direction}" for pair, _ in chosen.choice.placed]


def recorded(folder: Path, name: str, points: list[str]) -> Any:
    """What `analyze` says of the ring, of a job recorded through these."""
    words = [word for point in points for word in ("--mirror", point)]
    job = ["--layers", "1", "--width", "16", "--heads", "2", "--context", "32"]
    code, _, told = flowcheck(
        *("lab", "record", "--hosts", str(HOSTS), "--protocol", "LL", "--steps", "3"),
        *("--out", folder / name, *words, "--", *job, "--bucket-mb", "0.005"),
    )
    assert code == 0, told
    (ring,) = analyzed(folder / f"{name}.pcapng")["communicators"]
    return ring["coverage"]


def test_of_chosen_ports_a_capture_lacks_nothing_and_of_one_less_the_chunk_that_is_said(
    chosen: MirrorPlan, tmp_path: Path
) -> None:
    points = mirrors(chosen)
    assert recorded(tmp_path, "both", points)["missing_chunks"] == []
    (ring,) = chosen.rings
    lacks = {
        f"{pair.port}:{pair.direction}": (link.sender + 1) % HOSTS
        for pair in chosen.pairs_on(ring)
        for link in ring.links
        if link.out_of == pair.node
    }
    assert set(lacks) == set(points)
    for number, point in enumerate(points):
        found = recorded(tmp_path, f"one{number}", [point])
        assert found["missing_chunks"] == [lacks[point]]


def test_a_killed_job_goes_on_from_what_chosen_ports_carried(
    chosen: MirrorPlan, tmp_path: Path
) -> None:
    words = [word for point in mirrors(chosen) for word in ("--mirror", point)]
    found = train(
        tmp_path / "out",
        f"p{os.getpid()}",
        ["--hosts", str(HOSTS), *words, "--steps", "7", "--kill-at", "4", "--no-control"],
        [],
    )
    assert found["comparison"]["missing"] == found["comparison"]["different"] == []
    assert all(one["holds"] for one in found["statements"])
