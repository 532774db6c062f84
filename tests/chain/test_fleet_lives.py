"""Two shards of a job that is killed and relaunched: one chain follows it to its second life, the
other hears of the first one alone. What is restored together is of one life. Judged by torch's own
optimizer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.chain import LIMIT_S, flowcheck, torch_steps, wait_until
from support.fleets import Fleet
from support.incarnations import JOB, Life, floats

from flowcheck.findings.catalog import fleet_running as told
from flowcheck.lab.synthetic_traffic.synthetic_job import write_pcap
from flowcheck.ops.fleet.chain_keeping import ChainKeeping

KILLED_IN, RESUMED_FROM = 6, 3
"""The first life ends within step 6; the second one begins with the state of step 3."""
LATER = 4
LAST = RESUMED_FROM + LATER
OPTIMIZER = '[optimizer]\nname = "adamw"\nlearning_rate = 0.001\n[replica]\nkeep_bytes = 4194304\n'


class Shard:
    """Both lives of a shard of the job."""

    def __init__(self, folder: Path, number: int) -> None:
        first = Life(replace(JOB, seed=10 * number))
        made = first.generate()
        weights, stop = floats(made.weights), first.starts[KILLED_IN - 1] + 7
        gradients = [floats(g) for g in made.gradients]
        self.first = torch_steps(weights, gradients[: KILLED_IN - 1], "adamw", lr=1e-3)
        """[step - 1] float32: all parameters."""
        at = self.first[RESUMED_FROM - 1]
        second = Life(replace(JOB, seed=10 * number + 1, steps=LATER), at, number=1)
        later = [floats(g) for g in second.generate().gradients]
        every = gradients[:RESUMED_FROM] + later
        self.second = torch_steps(weights, every, "adamw", lr=1e-3)
        self.one_life, self.both = folder / f"{number}-one.pcap", folder / f"{number}-both.pcap"
        write_pcap(self.one_life, first.frames_of(stop=stop))
        write_pcap(self.both, first.frames_of(stop=stop) + second.frames_of())


@pytest.fixture
def shards(tmp_path: Path) -> list[Shard]:
    return [Shard(tmp_path, number) for number in range(2)]


@pytest.fixture
def fleet(tmp_path: Path, shards: list[Shard]) -> Iterator[Fleet]:
    files = {"ring0": ("a", shards[0].both), "ring1": ("b", shards[1].one_life)}
    jobs = {
        name: (node, f'checkpoint = "{tmp_path / name}"\n[[source]]\nfile = "{file}"\n{OPTIMIZER}')
        for name, (node, file) in files.items()
    }
    made = Fleet(tmp_path, jobs, "ab")
    try:
        yield made
    finally:
        made.close()


def restored(fleet: Fleet, out: Path, *words: str) -> Any:
    asked = ["fleet", "restore", fleet.file, "--format", "torch", "--out", out, "--json", *words]
    code, said, err = flowcheck(*asked)
    assert code == 0, said + err
    return json.loads(said)


def weights_in(out: Path) -> np.ndarray:
    model = torch.load(out)["model"]
    return np.concatenate([value.numpy().reshape(-1) for value in model.values()])


@pytest.mark.timeout(400)
def test_a_shard_that_is_still_in_the_first_life_is_not_joined_with_the_second(
    fleet: Fleet, shards: list[Shard], tmp_path: Path
) -> None:
    chains = {"ring0": "a", "ring0.b": "b", "ring1": "b", "ring1.a": "a"}
    for name, node in chains.items():
        folder = fleet.node(node)
        folder.take(fleet.state().for_node(node))
        assert ChainKeeping(folder, name).look() is None
    keeper = fleet.keeper("a")
    other = fleet.keeper("b")
    for name in chains:
        fleet.reaches(name, LAST if name.startswith("ring0") else KILLED_IN - 1)

    def life(name: str) -> tuple[int, int] | None:
        found = fleet.chain(name)
        own = None if found is None else found.life
        return None if own is None else (own.number, own.origin)

    # A copy hears of the life beside its steps.
    lives = [(2, RESUMED_FROM)] * 2 + [(1, 0)] * 2
    wait_until(lambda: [life(name) for name in chains] == lives, LIMIT_S, "the lives")
    # Both have a step 5: one of them of the first life, the other of the second.
    five = fleet.chain("ring0"), fleet.chain("ring1")
    assert all(own is not None and KILLED_IN - 1 in own.exact for own in five)
    assert not np.array_equal(shards[0].first[4], shards[0].second[4])

    for number, alive in enumerate((True, False)):
        out = tmp_path / f"out{number}"
        if not alive:  # then the chains are asked themselves
            keeper.process.kill()
            wait_until(lambda: fleet.chain("ring0") is None, LIMIT_S, "the keeper's end")
        done = restored(fleet, out)
        assert done["step"] == RESUMED_FROM and done["life"]["number"] == 2
        assert done == json.loads((out / "fleet-step.json").read_text())
        assert [one["code"] for one in done["assumed"]] == [told.ONE_LIFE.code]
        assert [one["chain"] for one in done["shards"]] == ["ring0", "ring1"]
        for name, own in zip(("ring0", "ring1"), shards, strict=True):
            assert np.array_equal(weights_in(out / name), own.first[RESUMED_FROM - 1])
    asked = ["fleet", "restore", fleet.file, "--format", "torch", "--out", tmp_path / "none"]
    code, _, err = flowcheck(*asked, "--step", str(KILLED_IN - 1), "--json")
    assert code == 2 and json.loads(err)["finding"]["code"] == told.LIVES_DIFFER.code
    assert not (tmp_path / "none").exists()
    done = restored(fleet, tmp_path / "joined", "--despite-lives")
    assert done["step"] == KILLED_IN - 1 and done["life"] is None
    assert [one["code"] for one in done["assumed"]] == [told.LIVES_JOINED.code]
    assert np.array_equal(weights_in(tmp_path / "joined" / "ring0"), shards[0].second[4])
    assert np.array_equal(weights_in(tmp_path / "joined" / "ring1"), shards[1].first[4])
    done = restored(fleet, tmp_path / "one.pt", "--shard", "ring0")
    assert done["step"] == LAST
    assert np.array_equal(weights_in(tmp_path / "one.pt"), shards[0].second[-1])

    # When all were stopped and no keeper answers, what each has saved is named, with its command.
    state = fleet.node("a").file
    other.process.kill()
    wait_until(lambda: fleet.chain("ring1") is None, LIMIT_S, "the other keeper's end")
    for node in "ab":
        fleet.node(node).stop(2)
    for name in chains:
        assert flowcheck("down", "--run", fleet.run(name).root)[0] == 0
    code, out, err = flowcheck("fleet", "status", state, "--json")
    notes = json.loads(out)["notes"]
    stopped = [one["arguments"] for one in notes if one["code"] == told.STOPPED_HERE.code]
    assert code == 1 and stopped == [{"generation": 2, "node": node} for node in "ab"], err
    saved = [one for one in notes if one["code"] == told.SAVED_HERE.code]
    # A copy has no place of its own to save to.
    steps = {one["arguments"]["chain"]: one["arguments"]["step"] for one in saved}
    assert steps == {"ring0": LAST, "ring1": KILLED_IN - 1}
    words = saved[0]["remedy"].split("`")[1].replace("FILE", str(tmp_path / "saved.pt")).split()
    assert flowcheck(*words[1:])[0] == 0
    assert np.array_equal(weights_in(tmp_path / "saved.pt"), shards[0].second[-1])
