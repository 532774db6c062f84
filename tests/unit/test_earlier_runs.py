"""Run directories of the version before the lifecycle record are taken over, wherever it was
killed: read as its own functions read them, and followed to the same end.

Judged by what that version said of folders it left (tests/data/earlier_runs), and by torch.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from support.chain import torch_steps
from support.earlier import (
    Upgraded,
    as_before,
    frozen,
    stories,
    take_over,
    tree_of,
    trees,
    verdict_of,
)
from support.file_kills import explore, lacks
from support.incarnations import JOB, Life, floats
from support.lifecycle import checkpoints
from support.lives import Deaths, Killed
from support.staged import Chain
from test_base_command import BASE, STEPS, Trainer, first_life, frames_of, resumed  # noqa: F401
from test_replica_reset import GIVEN, SAVED, UNSEEN, given, shown, trained

from flowcheck.config import encode_config
from flowcheck.lab.synthetic_traffic.synthetic_job import write_pcap
from flowcheck.messages import StepLost
from flowcheck.ops.trainer_checkpoint import base_command as verb
from flowcheck.stages.extraction.job_restart import promote_successor, remove_stale_offers
from flowcheck.stages.job_state import earlier_run_directories
from flowcheck.stages.job_state.lifecycle_record_reader import (
    Incarnation,
    incarnation_of,
    read_record,
)
from flowcheck.stages.job_state.lifecycle_record_schema import RequestKind
from flowcheck.stages.job_state.lifecycle_state_machines import ExtractState, IncarnationState
from flowcheck.stages.job_state.lifecycle_writers import ExtractLifecycle
from flowcheck.stages.replica_update.anchor_replay import AnchorReplay
from flowcheck.stages.run_directory.run_dir import RunDir

TAKEN_OVER = [("promoted", "01"), ("promoted-joined", "01")]
"""Where nothing killed it."""


@pytest.mark.parametrize(("story", "number"), stories())
def test_what_it_left_is_read_as_it_read_it(story: str, number: str, tmp_path: Path) -> None:
    facts, run = frozen(story, number, tmp_path), RunDir(tmp_path)
    record, told = read_record(run), msgspec.convert(facts["incarnation"], Incarnation)
    verdict = verdict_of(facts)
    assert record.verdict == verdict
    assert (record.extract.offered is not None) == facts["offered"]
    amid = verdict is not None and told.number == verdict.number + 1
    if amid:  # it had begun to call the later one followed, whose files were still on their way
        assert verdict is not None and record.incarnation.number == verdict.number
        assert record.state_of(told.number) is IncarnationState.ACCEPTED
    else:
        assert record.incarnation == told
    learned = record.extract.state is not ExtractState.STAGING
    assert learned == facts["learned"]
    request, asked = earlier_run_directories.request(run), facts["base"] or facts["anchor"]
    assert (request is not None) == earlier_run_directories.is_asked(run) == (asked is not None)
    if request is not None:
        assert (str(request.step), request.source) == (asked["step"], asked["source"])
        assert (request.kind is RequestKind.BASE) == (facts["base"] is not None)
        assert asked.get("after", "0") == str(request.after)
        assert asked.get("request", request.id) == request.id


def taken_over(run: RunDir) -> ExtractLifecycle:
    """As an extractor that is started there."""
    lifecycle = ExtractLifecycle(run, [].append, awaits_base=False)
    shard: Any = SimpleNamespace(clear=lambda: None)
    if (verdict := lifecycle.verdict()) is not None and verdict.followed:
        promote_successor(lifecycle, verdict, shard)
    remove_stale_offers(lifecycle)
    return lifecycle


def own(run: RunDir) -> dict[str, bytes]:
    """What is there of incarnations, the records of either version aside."""
    tree = dict(tree_of(run.learned_folder))
    names = ("incarnation.json", "extract.json", "update.json", "verdict.json")
    return {path: data for path, data in tree.items() if not path.endswith(names)}


@pytest.mark.parametrize(
    ("story", "number"), [one for one in stories() if one[0].startswith("promoted")]
)
def test_a_taking_over_that_it_was_killed_in_is_ended(
    story: str, number: str, tmp_path: Path
) -> None:
    frozen(story, "01", tmp_path / "wanted")
    wanted = RunDir(tmp_path / "wanted")
    frozen(story, number, tmp_path / "run")
    run = RunDir(tmp_path / "run")
    lifecycle = taken_over(run)
    assert own(run) == own(wanted)
    assert incarnation_of(run) == incarnation_of(wanted) == lifecycle.part.followed
    assert lifecycle.state is ExtractState.FOLLOWING
    assert taken_over(run).part == lifecycle.part and own(run) == own(wanted)


def test_an_offer_that_it_had_half_written_goes(tmp_path: Path) -> None:
    frozen("goes-on", "06", tmp_path)
    run = RunDir(tmp_path)
    assert (run.learned_folder / ".next.tmp").is_dir()
    assert taken_over(run).state is ExtractState.FOLLOWING
    assert not any(path.is_dir() for path in run.learned_folder.iterdir())


@pytest.fixture
def folder() -> Iterator[Path]:
    if why := lacks():
        pytest.skip(why)
    with tempfile.TemporaryDirectory(prefix="flowcheck-test-", dir="/dev/shm") as made:
        yield Path(made)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("fills", [7, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("number", ["02", "27", "30"])
def test_and_so_it_is_though_this_version_is_killed_in_it_as_well(
    folder: Path, number: str, fills: int
) -> None:
    """number: nothing done; all but its record; its record, and the old job's file."""
    wanted = RunDir(folder / "wanted")
    frozen("promoted", "01", wanted.root)

    def judge(place: Path, when: str) -> None:
        run = RunDir(place)
        pending = read_record(run).verdict is not None
        assert incarnation_of(run).number == (1 if pending else 2), when
        taken_over(run)
        assert own(run) == own(wanted), when
        assert incarnation_of(run) == incarnation_of(wanted), when

    def make(place: Path) -> None:
        frozen("promoted", number, place)

    def work(place: Path) -> None:
        taken_over(RunDir(place))

    explored = explore(folder, make, work, judge, fills=fills)
    assert len(explored.calls) > 15


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("story", "number"), TAKEN_OVER)
def test_its_taking_over_is_written_here_as_it_was(folder: Path, story: str, number: str) -> None:
    """Killed wherever it was: the same folders are left."""
    left = folder / "left"
    left.mkdir()

    def make(place: Path) -> None:
        frozen(story, "02", place)

    def work(place: Path) -> None:
        if (place / "learned/next").exists():
            take_over(place / "learned", lambda: None)

    def judge(place: Path, when: str) -> None:
        tree = tree_of(place / "learned")
        digest = hashlib.sha256(repr(tree).encode()).hexdigest()
        (left / digest).write_bytes(msgspec.msgpack.encode(tree))

    explore(folder, make, work, judge)
    found = {
        tuple(msgspec.msgpack.decode(path.read_bytes(), type=list[tuple[str, bytes]]))
        for path in left.iterdir()
    }
    assert found == trees(story)


@pytest.fixture
def play(shm: Path, tmp_path: Path) -> Iterator[Callable[..., Upgraded]]:
    opened: list[Upgraded] = []

    def make(frames: list[Any], deaths: Deaths, **settings: Any) -> Upgraded:
        write_pcap(tmp_path / "lives.pcap", frames)
        chain = Chain(tmp_path, shm / "memory", [tmp_path / "lives.pcap"], 256)
        both = Upgraded(chain, **settings)
        both.deaths = deaths
        chain.run.config.write_bytes(encode_config(both.config))
        opened.append(both)
        return both

    yield make
    for both in opened:
        both.close()


def parameters(both: Upgraded) -> list[tuple[int, str]]:
    lines = map(json.loads, both.chain.run.steps.read_text().splitlines())
    return [(line["step"], line["parameters_sha256"]) for line in lines]


def sha256(weights: Any) -> str:
    return hashlib.sha256(weights.tobytes()).hexdigest()


def came_back(resumed_from: int) -> tuple[list[Any], list[str]]:
    """Frames of a job that is killed and comes back from a step, and its parameters by torch."""
    life, weights = first_life(), floats(first_life().truth.weights)
    gradients = [floats(g) for g in life.truth.gradients]
    before = torch_steps(weights, gradients[:STEPS], "adamw", lr=1e-3)
    second = Life(replace(JOB, seed=1), before[resumed_from - 1], number=1)
    later = [floats(g) for g in second.generate().gradients]
    wanted = torch_steps(weights, gradients[:resumed_from] + later, "adamw", lr=1e-3)
    frames = life.frames_of(stop=life.starts[STEPS] + 9) + second.frames_of()
    return frames, [sha256(own) for own in wanted]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "least"), [(4, 7), pytest.param(1, 15, marks=pytest.mark.nightly)]
)
def test_a_handover_goes_on_from_that_versions_files_wherever_both_stages_are_killed(
    play: Callable[..., Upgraded], monkeypatch: pytest.MonkeyPatch, more: int, least: int
) -> None:
    frames, wanted = came_back(2)
    both = play(frames, Deaths(monkeypatch, more))
    both.drive()
    both.deaths.begun = False
    assert both.upgrades > least
    assert parameters(both) == list(enumerate(wanted, 1))
    assert both.chain.heard.of(StepLost) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "at", [36, 40, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(1, 42, 4))]
)
def test_a_taking_over_of_its_own_that_was_killed_is_followed_to_the_end(
    play: Callable[..., Upgraded], monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """at: changes that it made before; 36: its incarnation.json is that of the later one, and
    job.json is not; 40: both are, and the folder was not moved yet."""
    frames, wanted = came_back(3)
    deaths = Deaths(monkeypatch, 4)
    both = play(frames, deaths)
    run = both.chain.run
    both.drive(until=lambda: read_record(run).verdict is not None)
    shard = both.extract._followed.generations.shard  # type: ignore[union-attr]
    as_before(run)
    deaths.begun, deaths.left = True, at
    with pytest.raises(Killed):
        take_over(run.learned_folder, shard.clear)
    deaths.begun = False
    assert not run.extract_record.exists() and not run.update_record.exists()
    both.extract.stop()
    both.update.stop()
    both.update, both.extract = both._update(), both._extract()
    both.drive()
    assert parameters(both) == list(enumerate(wanted, 1))


@pytest.mark.slow
@pytest.mark.parametrize(("more", "least"), [(4, 4), pytest.param(1, 8, marks=pytest.mark.nightly)])
def test_a_base_it_was_given_is_taken(
    play: Callable[..., Upgraded],
    resumed: tuple[Trainer, Path],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    more: int,
    least: int,
) -> None:
    trainer, file = resumed
    frames, wanted = frames_of(trainer, after=first_life())
    deaths = Deaths(monkeypatch, more)
    both = play(frames, deaths)
    both.drive(until=lambda: both.applied_iteration() >= STEPS + 3)
    deaths.begun = False
    verb.submit_base(both.chain.run, both.config, file)
    as_before(both.chain.run)
    assert checkpoints(both.chain.run) == ["base.safetensors"]
    both.update = both._again(both.update, both._update)
    deaths.begun, deaths.left, deaths.count = True, 0, 0
    both.drive()
    deaths.begun = False
    assert both.upgrades > least and not checkpoints(both.chain.run)
    told = parameters(both)[STEPS:]
    assert [step for step, _ in told] == list(range(BASE, BASE + JOB.steps + 1))
    assert [sha for _, sha in told[1:]] == wanted


@pytest.mark.slow
@pytest.mark.parametrize("amid", [False, True])
def test_an_anchor_it_was_given_is_taken_once(
    play: Callable[..., Upgraded], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, amid: bool
) -> None:
    """amid: it was killed when the incarnation had it and no line of anchors.jsonl."""
    frames, wanted, file = trained(tmp_path)
    deaths = Deaths(monkeypatch)
    both = play(frames, deaths, gradient_log={"taken_steps": 4})
    run = both.chain.run
    both.drive(until=lambda: both.applied_iteration() >= GIVEN)
    request = given(both, file)  # type: ignore[arg-type]
    as_before(run)
    assert checkpoints(run) == ["anchor.safetensors"]
    if amid:
        killed_amid_an_anchor(both)
    both.update = both._again(both.update, both._update)
    deaths.begun, deaths.left, deaths.count = True, 0, 0
    both.drive()
    deaths.begun = False
    assert both.upgrades > 8 and not checkpoints(run)
    assert shown(both)[UNSEEN:] == list(enumerate(wanted, 1))[UNSEEN:]  # type: ignore[arg-type]
    [line] = [json.loads(line) for line in run.anchors.read_text().splitlines()]
    assert (line["step"], line["at"], line["request"]) == (SAVED, GIVEN, request)


def killed_amid_an_anchor(both: Upgraded) -> None:
    """That version put the state in its place, and wrote the incarnation, before it said so."""
    put, run = AnchorReplay._put, both.chain.run
    aside = run.learned_folder / "aside"
    shutil.copy2(run.learned_folder / "anchor.safetensors", aside)

    def killed(*words: Any) -> Any:
        followed, _ = put(*words)
        (run.learned_folder / "incarnation.json").write_bytes(msgspec.json.encode(followed))
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AnchorReplay, "_put", killed)
        both.update.stop()
        both.update = both._update()
        with pytest.raises(Killed):
            while both.update.work():
                pass
    run.update_record.unlink()
    for path in run.learned_folder.glob("*.safetensors"):
        path.unlink()
    aside.rename(run.learned_folder / "anchor.safetensors")
