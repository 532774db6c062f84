"""Recorded jobs of hybrid sharding, whose weights nobody sends, and the trainers' own account: over
a mesh (2, 1), and one shard of two over a mesh (2, 2)."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support import cut, preloaded
from support.preloaded.probes import fork_probes

from flowcheck.findings.catalog.hybrid_jobs import (
    NO_GROUPS_FIT,
    ONE_SHARD,
    ORDER_OF_EQUAL_GROUPS,
    START_AS_STATED,
    START_NOT_WHOLE,
)
from flowcheck.lab.job_run.digest_comparison import Digests, trainer_digests
from flowcheck.ops.analysis.job_hints import hints_from_job_file
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.replica.sharding import sharded_model_probe
from flowcheck.stages.job_learning.job_selection import flows_of
from flowcheck.wire.learn import read_stream

TESTS = Path(__file__).resolve().parents[1]
DATA = TESTS / "data" / "hybrid"
CAPTURE = DATA / "small-ll.pcap"
RAILS = DATA / "rails-ll.pcapng"
SAVED = DATA / "rails-saved-ll.pcapng"
FACTORY = TESTS / "lab" / "scripts" / "hybrid.py"
SEED = 3
STEPS = {1, 2, 3, 4}


SMALL = 'small"\nmesh = [2, 1]'
ONE_OF_TWO = 'rails"\nmesh = [2, 2]\nshard = '


def stated(folder: Path, *, seed: int | None = SEED, mesh: str = SMALL) -> Path:
    job = folder / "job.toml"
    job.write_text(
        '[optimizer]\nname = "sgd"\nlearning_rate = 0.05\nmomentum = 0.9\n'
        f'[sharded]\nstyle = "hsdp"\nfactory = "{FACTORY}:{mesh}\n'
        + (f"seed = {seed}\n" if seed is not None else "")
    )
    return job


def refusals(capture: Path, job: Path) -> list[str]:
    """Codes of why it is not followed, as the chain and `analyze` read it."""
    reading = hints_from_job_file(job, [capture]).read(read_capture_files([capture]))
    assert reading.job is None
    return [one.code for one in reading.why_not]


def replayed(
    capture: Path, folder: Path, *, seed: int | None = SEED, mesh: str = SMALL
) -> dict[str, Any]:
    job = stated(folder, seed=seed, mesh=mesh)
    words = ["replay", str(capture), "--job", str(job), "--digests", "--json", "--source", "file"]
    done = preloaded.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def steps_of(told: dict[str, Any]) -> dict[int, Digests]:
    return {
        line["step"]: {"parameters": line["parameters_sha256"], **line["states_sha256"]}
        for line in told["digests"]
    }


def codes(told: dict[str, Any]) -> set[str]:
    return {one["code"] for one in told["assumed"]}


def test_every_step_has_the_trainers_bits_and_says_what_it_began_with(tmp_path: Path) -> None:
    told = replayed(CAPTURE, tmp_path)
    found = steps_of(told)
    assert set(found) == STEPS and found == trainer_digests(DATA / "small-ll.jsonl")
    assert {START_AS_STATED.code, ORDER_OF_EQUAL_GROUPS.code} <= codes(told)


@pytest.mark.nightly
def test_with_another_seed_no_parameter_is_the_trainers_and_it_is_assumed(tmp_path: Path) -> None:
    """Nothing on the wire could tell: the momentum of the gradients is right all the same."""
    told = replayed(CAPTURE, tmp_path, seed=SEED + 1)
    found, own = steps_of(told), trainer_digests(DATA / "small-ll.jsonl")
    assert all(found[step]["parameters"] != own[step]["parameters"] for step in STEPS)
    assert all(found[step]["momentum_buffer"] == own[step]["momentum_buffer"] for step in STEPS)
    assert START_AS_STATED.code in codes(told)


@pytest.mark.nightly
def test_without_a_seed_no_step_is_made_of_weights_nobody_knows(tmp_path: Path) -> None:
    told = replayed(CAPTURE, tmp_path, seed=None)
    assert not told["digests"] and START_AS_STATED.code not in codes(told)


@pytest.fixture
def later(tmp_path: Path) -> Path:
    """A capture that begins behind the first sums: it would take the trainers' second step for the
    first one."""
    (tmp_path / "later").mkdir()
    # Of 240 frames; an iteration has some 50.
    return cut.behind(CAPTURE, 80, tmp_path / "later")


def test_a_capture_that_begins_behind_the_first_sums_is_refused(
    later: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork_probes(monkeypatch, sharded_model_probe)
    assert START_NOT_WHOLE.code in refusals(later, stated(tmp_path))


@pytest.mark.nightly
def test_a_capture_that_begins_behind_the_first_sums_is_not_followed(
    later: Path, tmp_path: Path
) -> None:
    told = replayed(later, tmp_path)
    assert not told["digests"]
    assert START_NOT_WHOLE.code in {one["code"] for one in told["why"]["arguments"]["reasons"]}


@pytest.mark.nightly  # by day with a checkpoint of all ranks between, below
def test_the_one_shard_that_a_port_carries_has_the_trainers_bits(tmp_path: Path) -> None:
    """Of odd sizes, so that shards are padded, and one parameter of which the shard has nothing."""
    told = replayed(RAILS, tmp_path, mesh=f"{ONE_OF_TWO}1")
    found = steps_of(told)
    assert set(found) == STEPS and found == trainer_digests(DATA / "rails-ll.jsonl")
    is_one_of_two(told)


def is_one_of_two(told: dict[str, Any]) -> None:
    assert {START_AS_STATED.code, ONE_SHARD.code} <= codes(told)
    (shard,) = (one for one in told["assumed"] if one["code"] == ONE_SHARD.code)
    assert shard["arguments"] == {"shard": 1, "shards": 2}


def test_another_models_groups_are_refused_as_those_of_the_stated_factory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody stated a [model] that could be corrected."""
    fork_probes(monkeypatch, sharded_model_probe)
    assert NO_GROUPS_FIT.code in refusals(RAILS, stated(tmp_path))


@pytest.mark.nightly
def test_another_models_groups_are_told_as_those_of_the_stated_factory(tmp_path: Path) -> None:
    told = replayed(RAILS, tmp_path, mesh=SMALL)
    assert not told["digests"]
    assert NO_GROUPS_FIT.code in json.dumps(told["why"])


def test_a_checkpoint_of_all_ranks_behind_the_first_step_hides_none_of_the_shards_sums(
    tmp_path: Path,
) -> None:
    """Its objects leave the host by one connection alone, which is no channel of the shard's ring.
    The sums are, by torch's own rule, of ceil(rows / 2) rows of each parameter of a group."""
    told = replayed(SAVED, tmp_path, mesh=f"{ONE_OF_TWO}1")
    found = steps_of(told)
    assert set(found) == STEPS and found == trainer_digests(DATA / "rails-saved-ll.jsonl")
    is_one_of_two(told)
    reading = hints_from_job_file(tmp_path / "job.toml", [SAVED]).read(read_capture_files([SAVED]))
    sums = Counter(c.bytes for c in reading.collectives if c.kind == "all_reduce" and c.ring)
    first, middle, root = 4 * (7 * 64 + 7), 4 * (9 * 13 + 9), 4 * (7 + 7 + 13 + 1)
    assert middle == 4 * (7 * 17 + 7)  # the two in the middle are as large
    wanted = {first: len(STEPS), middle: 2 * len(STEPS), root: len(STEPS)}
    assert {size: sums[size] for size in wanted} == wanted  # the other connection holds more
    assert reading.job is not None and not reading.why_not


@pytest.mark.nightly
def test_the_next_lifes_connections_are_never_taken_for_another_jobs(tmp_path: Path) -> None:
    """It begins with sums, as anything may: while no iteration of it is whole, none of its
    connections is dropped for good."""
    replayed(RAILS, tmp_path, mesh=f"{ONE_OF_TWO}1")  # writes the job file
    hints, tape = hints_from_job_file(tmp_path / "job.toml", [RAILS]), read_capture_files([RAILS])
    whole = hints.read(tape)
    assert whole.job is not None
    own = set(flows_of(whole.job, whole.flows))
    ordered, early = sorted(tape.messages, key=lambda m: m.order), []
    for count in range(12, 37, 8):  # of 128, of four steps
        reading = read_stream(
            tape.flows, ordered[:count], ended=False, before=whole.job, stated=hints.stated
        )
        assert not own.intersection(reading.others), count
        early.append(reading.job is None)
    assert any(early)
