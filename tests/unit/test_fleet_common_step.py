"""Which step several shards have in common, of one life of the training job. Judged by jobs that
are made up here with all their lives, of which each chain and copy has seen a part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refused_as import refused_as
from test_fleet_reports import fleet

from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog import fleet_running as told
from flowcheck.findings.finding import Finding
from flowcheck.fleet.common_step import CommonStep, Holder, Life, common_step
from flowcheck.ops.fleet import fleet_restore_command as verb
from flowcheck.ops.restore.restore_request import RestoreRequest, StepSource
from flowcheck.step_numbers import Step

Lives = tuple[tuple[int, int], ...]
"""[life - 1] (the step that it began with, its last step)"""


def made_in(lives: Lives, life: int, step: int) -> int:
    """The life in which the state of a step was made, in the past of `life`."""
    while life > 1 and step <= lives[life - 1][0]:
        life -= 1
    return life


@st.composite
def histories(draw: st.DrawFn) -> Lives:
    lives: list[tuple[int, int]] = [(0, draw(st.integers(1, 6)))]
    for _ in range(draw(st.integers(0, 2))):
        origin = draw(st.integers(0, lives[-1][1]))
        lives.append((origin, origin + draw(st.integers(0, 5))))
    return tuple(lives)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[Lives, dict[str, list[Holder]]]:
    """2 or 3 shards, each with up to three that have a part of the past of some life in memory."""
    lives = draw(histories())
    shards = {}
    for at in range(draw(st.integers(2, 3))):
        holders = []
        for number in range(draw(st.integers(0, 3))):
            life = draw(st.integers(1, len(lives)))
            origin, last = lives[life - 1]
            newest = draw(st.integers(origin, last))
            steps = range(max(0, newest - draw(st.integers(0, 4))), newest + 1)
            knows = draw(st.sampled_from([True, True, True, False]))
            digests = {s: f"{at}-{made_in(lives, life, s)}-{s}" for s in steps}
            own = Life(number=life, origin=origin) if knows else None
            of = None if number == 0 else f"s{at}"
            name = f"s{at}.{number}"
            holders.append(Holder(name=name, of=of, node="n", life=own, steps=digests))
        shards[f"s{at}"] = holders
    return lives, shards


@settings(max_examples=400, deadline=None)
@given(fleets())
def test_no_two_lives_are_joined_and_no_step_of_one_is_missed(
    made: tuple[Lives, dict[str, list[Holder]]],
) -> None:
    lives, shards = made
    found = common_step(shards)
    every = [one for holders in shards.values() for one in holders]
    newest = max((one.life.number for one in every if one.life is not None), default=0)
    if isinstance(found, CommonStep):
        step = found.step
        states = {own.steps[step] for holders in found.holders.values() for own in holders}
        by = {state.split("-")[1] for state in states}
        assert len(by) == 1 and by == {str(made_in(lives, newest, step))}
        assert set(found.holders) == set(shards) and all(found.holders.values())
    # Whatever is of the newest life's past, and whose owner says so, is found, or a newer step.
    known = {
        name: {s for o in own for s in o.steps if o.life is not None and o.life.number == newest}
        for name, own in shards.items()
    }
    common = set.intersection(*known.values())
    if common:
        assert isinstance(found, CommonStep) and found.step >= max(common)


def holder(name: str, of: str | None, life: Life | None, **steps: str) -> Holder:
    own = {int(step[1:]): digest for step, digest in steps.items()}
    return Holder(name=name, of=of, node=f"n-{name}", life=life, steps=own)


FIRST, SECOND = Life(number=1, origin=0), Life(number=2, origin=50)
THIRD = Life(number=3, origin=40)
MIDWAY = Life(number=1, origin=60, base=60)


def refused(found: CommonStep | Finding, entry: Any) -> bool:
    return isinstance(found, Finding) and found.is_any_of(entry)


def test_a_copy_that_is_still_in_the_life_before_gives_what_both_have_in_their_past() -> None:
    shards = {
        "a": [holder("a", None, SECOND, s50="a50", s100="a100-of-2")],
        "b": [holder("b.c", "b", FIRST, s50="b50", s100="b100-of-1")],
    }
    found = common_step(shards)
    assert isinstance(found, CommonStep) and found.step == 50
    assert found.digest("b") == "b50" and found.life == SECOND
    del shards["b"][0].steps[50]
    assert refused(common_step(shards), told.LIVES_DIFFER)
    joined = common_step(shards, despite_lives=True)
    assert isinstance(joined, CommonStep) and (joined.step, joined.life) == (100, None)


@pytest.mark.parametrize(("one", "other"), [(THIRD, FIRST), (FIRST, MIDWAY), (SECOND, None)])
def test_lives_that_cannot_be_compared_are_not_joined(one: Life, other: Life | None) -> None:
    shards = {
        "a": [holder("a", None, one, s30="a", s70="a")],
        "b": [holder("b", None, other, s30="b", s70="b")],
    }
    assert refused(common_step(shards), told.LIVES_DIFFER)
    assert isinstance(common_step({"b": shards["b"]}), CommonStep), "one shard is not joined"


def test_nobody_knows_a_life() -> None:
    shards = {name: [holder(name, None, None, s3="x")] for name in "abc"}
    assert refused(common_step(shards), told.LIVES_UNKNOWN)
    assert refused(common_step({name: [] for name in "ab"}), told.NO_COMMON_STEP)


def test_a_copy_whose_state_differs_from_its_chains_is_not_believed_and_not_given() -> None:
    chain, copy = holder("a", None, FIRST, s6="a6", s7="a7"), holder("a.b", "a", FIRST, s7="other")
    found = common_step({"a": [copy, chain], "z": [holder("z", None, FIRST, s6="z6", s7="z7")]})
    assert isinstance(found, CommonStep) and found.step == 6, "the newest that all agree on"
    assert refused(common_step({"a": [chain, copy]}, wanted=7), told.STATES_OF_STEP_DIFFER)
    # A copy of a chain that began anew midway has another count: it is believed where it is equal.
    chain, copy = holder("a", None, MIDWAY, s7="a7"), holder("a.b", "a", SECOND, s7="a7", s8="a8")
    found = common_step({"a": [copy, chain]})
    assert isinstance(found, CommonStep) and found.step == 7
    assert [one.name for one in found.holders["a"]] == ["a", "a.b"]


class Given:
    """In place of servers and of restore_command.restore: writes where it is asked to, or
    refuses."""

    def __init__(self, patch: pytest.MonkeyPatch, shards: list[dict[str, list[Holder]]]) -> None:
        self.refuses, self.lost, self.asked = set[str](), set[str](), list[str]()
        self._looks = shards
        patch.setattr(verb.restore_command, "restore", self._restore)
        patch.setattr(verb, "kept_at_servers", self._kept)
        patch.setattr(verb, "look_for_steps", lambda *_: self._looks.pop(0))

    def _restore(self, request: RestoreRequest) -> None:
        self.asked.append(str(request.source.url))
        if self.asked[-1] in self.refuses:
            raise StateError(told.STATE_MISSING())
        request.output.write_text(f"{request.source.step} {request.source.digest}")

    @contextmanager
    def _kept(self, _: Any, wanted: Any, step: int) -> Iterator[Any]:
        left = {
            shard: [own for own, _ in pairs if f"{own.name}-{step}" not in self.lost]
            for shard, pairs in wanted.items()
        }
        for shard, chains in left.items():
            if not chains:
                raise StateError(told.STATE_CHANGED(chain=shard, step=step, why="gone"))
        yield left


def two(*newest: int) -> dict[str, list[Holder]]:
    """{shard: its chain and copy} with steps up to these."""
    shards = {}
    for at, last in enumerate(newest):
        steps = {f"s{step}": f"{at}-{step}" for step in range(1, last + 1)}
        names = ((f"s{at}.b", f"s{at}"), (f"s{at}", None))
        shards[f"s{at}"] = [holder(name, of, FIRST, **steps) for name, of in names]
    return shards


@pytest.mark.parametrize("count", [2, 3])
def test_several_shards_come_all_or_none(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, out = fleet(count), tmp_path / "out"
    monkeypatch.setattr(verb, "fleet_of", lambda _: state)
    request = RestoreRequest(source=StepSource(), output=out, form="torch")
    newest = (3, 4, 5)[:count]

    def restored(to: Path, step: int | None = None) -> int:
        return verb.run(
            tmp_path / "file",
            replace(request, output=to),
            None if step is None else Step(step),
            None,
            despite_lives=False,
            as_json=True,
        )

    made = Given(monkeypatch, [two(*newest)])
    made.refuses = {state.chains[0].served}
    assert restored(out) == 0
    assert made.asked[:2] == [state.chains[0].served, state.chains[1].served]
    names = {f"s{at}" for at in range(count)}
    assert {path.name for path in out.iterdir()} == {verb.INDEX, *names}
    index = msgspec.json.decode((out / verb.INDEX).read_bytes(), type=verb.Restored)
    assert index.step == 3 and index.life == FIRST
    assert index.assumed == (told.ONE_LIFE(),)
    for one in index.shards:
        assert (out / one.shard).read_text() == f"3 {one.digest}" == f"3 {one.shard[1:]}-3"
        assert one.chain == ("s0.b" if one.shard == "s0" else one.shard)
        assert one.out == str(out / one.shard)
    Given(monkeypatch, [])
    with refused_as(told.OUT_EXISTS, kind=ConfigError):
        restored(out)

    # A step that is lost before all are kept: the next look has a newer one.
    made = Given(monkeypatch, [two(*newest), two(*(4, 5, 6)[:count])])
    made.lost = {"s1-3", "s1.b-3"}
    assert restored(tmp_path / "later") == 0
    assert (tmp_path / "later" / "s1").read_text() == "4 1-4"
    made = Given(monkeypatch, [two(*newest)] * verb.TRIES)
    made.lost = {"s1-3", "s1.b-3"}
    with refused_as(told.STATE_CHANGED):
        restored(tmp_path / "half")

    made = Given(monkeypatch, [two(*newest)])
    made.refuses = {own.served for own in state.chains if own.shard == "s1"}
    with refused_as(told.STATE_MISSING):
        restored(tmp_path / "half")
    Given(monkeypatch, [two(*newest)])
    with refused_as(told.STEP_NOWHERE):
        restored(tmp_path / "half", 9)
    assert not list(tmp_path.glob("*half*"))
