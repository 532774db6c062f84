"""One checkpoint for the replicas of all shards: all of them have it or none, though the command is
killed anywhere. Judged by torch's own optimizer, which goes on from the very checkpoint.

The shards here are cut from nothing: each has the whole of a small model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.lifecycle import checkpoints, waiting
from support.lives import Both, Killed
from support.refused_as import refused_as
from support.staged import Chain
from support.two_rings import TwoRings
from test_base_command import BASE, STEPS, Trainer, first_life, frames_of, lines

from flowcheck.config import encode_config
from flowcheck.errors import StateError
from flowcheck.findings.catalog.base_checkpoints import NOT_WHAT_IT_BEGAN_WITH
from flowcheck.findings.catalog.hybrid_jobs import BASE_UNFINISHED, OF_SHARD
from flowcheck.lab.synthetic_traffic.synthetic_job import write_pcap
from flowcheck.ops.restore.shards_restore import refuse_other_lives
from flowcheck.ops.trainer_checkpoint import base_of_shards, base_proof
from flowcheck.ops.watch.state.state_reader import StateReader
from flowcheck.stages.job_state.given_to_shards import (
    GivenToShards,
    forget_given,
    given_to_shards,
    record_given,
    unfinished,
)
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step

CHANGES = ("record_given", "submit_proved", "await_taken", "append_base_line", "forget_given")


class Shards:
    """Two jobs that resumed from one checkpoint, or each from its own, and wait for it."""

    def __init__(self, folder: Path, shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.shm, self.patch = folder, shm, monkeypatch
        self.both: list[Both] = []
        self.wanted: list[list[str]] = []
        monkeypatch.setattr(RunDir, "stage_pids", lambda self: {"update": 1})

    @property
    def runs(self) -> list[RunDir]:
        return [one.chain.run for one in self.both]

    def add(self, trainer: Trainer) -> None:
        """One more shard, of which all steps are logged."""
        frames, wanted = frames_of(trainer, after=first_life())
        place = self.folder / f"shard-{len(self.both)}"
        place.mkdir()
        write_pcap(place / "lives.pcap", frames)
        chain = Chain(place, self.shm / f"memory-{len(self.both)}", [place / "lives.pcap"], 256)
        both = Both(chain)
        chain.run.config.write_bytes(encode_config(both.config))
        both.drive()
        assert incarnation_of(chain.run).step is None
        self.both.append(both)
        self.wanted.append(wanted)

    def drive(self) -> None:
        for both in self.both:
            both.drive()

    def dies_at(self, number: int) -> None:
        """The command is killed right before its change of that number, from 0."""
        self.patch.undo()
        self.patch.setattr(RunDir, "stage_pids", lambda self: {"update": 1})
        left = [number]

        def dying(change: Callable[..., Any], *, waits: bool) -> Callable[..., Any]:
            def changed(*words: Any) -> Any:
                if not left[0]:
                    raise Killed
                left[0] -= 1
                if waits:
                    self.drive()
                return change(*words)

            return changed

        for name in CHANGES:
            own = getattr(base_proof if name == "await_taken" else base_of_shards, name)
            self.patch.setattr(base_of_shards, name, dying(own, waits=name == "await_taken"))


@pytest.fixture
def shards(shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shards]:
    made = Shards(tmp_path, shm, monkeypatch)
    yield made
    for both in made.both:
        both.close()


@pytest.fixture(scope="module")
def resumed() -> Trainer:
    """A trainer at step BASE."""
    trainer, random = Trainer(), np.random.default_rng(5)
    for _ in range(BASE):
        trainer.step(random.standard_normal(trainer.flat().size, np.float32))
    return trainer


def test_all_shards_go_on_from_the_file_though_the_command_is_killed_anywhere(
    shards: Shards, resumed: Trainer, tmp_path: Path
) -> None:
    file = resumed.save(tmp_path / "step-37.pt", BASE)
    for _ in range(2):
        shards.add(copy.deepcopy(resumed))
    deaths = 0
    for number in (2, 1, 1, 2, 1, 2, 100):
        shards.dies_at(number)
        try:
            base_of_shards.give_to_shards(shards.runs, file)
        except Killed:
            deaths += 1
            told = unfinished(shards.runs)
            assert told is not None and told.is_any_of(BASE_UNFINISHED)
            with refused_as(BASE_UNFINISHED):
                refuse_other_lives(shards.runs)
            if deaths % 2:
                shards.drive()  # the updaters outlive it
        except StateError:
            # The updater has what a killed command asked of it, and it is asked once more.
            shards.drive()
    assert deaths > 2 and unfinished(shards.runs) is None
    refuse_other_lives(shards.runs)
    shards.drive()
    for both, wanted in zip(shards.both, shards.wanted, strict=True):
        told = lines(both)[STEPS:]
        assert [line["step"] for line in told] == list(range(BASE, BASE + len(wanted) + 1))
        assert [line["parameters_sha256"] for line in told[1:]] == wanted
        assert incarnation_of(both.chain.run).base == BASE


def test_status_tells_a_checkpoint_that_not_all_shards_are_known_to_have(tmp_path: Path) -> None:
    config: Any = SimpleNamespace(all_shards=True)
    with closing(TwoRings(tmp_path)) as rings:
        runs = [rings.own(1), rings.own(2)]
        given = GivenToShards(file="step-4.pt", step=Step(4), lives=(1, 1), taken=(0,))
        record_given(runs, given)
        reader = StateReader(rings.run.root, cached_s=0)
        reader.state()
        told = reader._given(config)
        assert told == BASE_UNFINISHED(file="step-4.pt", step=4, taken=1, shards=2)
        record_given(runs, replace(given, lives=(1, 2)))  # of a life that is over
        assert reader._given(config) is None
        record_given(runs, given)
        forget_given(runs)
        assert reader._given(config) is None


@pytest.mark.parametrize("other", [0, 1])
def test_a_shard_that_did_not_begin_with_it_leaves_all_as_they_are(
    shards: Shards, resumed: Trainer, tmp_path: Path, other: int
) -> None:
    file = resumed.save(tmp_path / "step-37.pt", BASE)
    for shard in range(2):
        trainer = copy.deepcopy(resumed)
        if shard == other:
            trainer.step(np.ones_like(trainer.flat()))
        shards.add(trainer)
    with refused_as(OF_SHARD, shard=other) as refused:
        base_of_shards.give_to_shards(shards.runs, file)
    assert refused.value.finding.arguments["why"].is_any_of(NOT_WHAT_IT_BEGAN_WITH)
    assert given_to_shards(shards.runs) is None
    for both in shards.both:
        assert waiting(both.chain.run) is None and not checkpoints(both.chain.run)
    shards.drive()
    assert all(incarnation_of(run).step is None for run in shards.runs)
